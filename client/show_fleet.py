"""What a person sees of the fleet on a terminal: nodes, queues, findings."""

from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from client.doctor import Finding
from client.jobs import JobsOverview
from queue_schemas.nodes import EngineState, NodeCard
from queue_schemas.text import printable

_LOG_LINES: Final = 3
"""Of a dead letter's log; `--json` has more of it, storage all."""


def print_nodes(console: Console, cards: Sequence[NodeCard]) -> None:
    """Print one row per node, and below where each writes."""
    if not cards:
        return
    names = ("node", "engine", "checkpoint", "weights", "device", "attention", "loras", "films")
    table = Table(*names, box=None, header_style="bold", pad_edge=False)
    for card in cards:
        engine = "busy" if card.busy and card.engine is EngineState.READY else str(card.engine)
        task = f" ({card.transformer_task})" if card.transformer_task else ""
        cells = [card.node, engine, card.checkpoint + task, card.weights, card.device]
        cells += [" ".join(card.attention_backends), " ".join(lora.name for lora in card.loras)]
        table.add_row(*(Text(printable(cell)) for cell in (*cells, str(card.jobs_served))))
    console.print(table)
    for card in cards:
        if card.storage_url:
            console.print(f"{card.node} writes to {card.storage_url}", soft_wrap=True)


def print_jobs(console: Console, overview: JobsOverview) -> None:
    """Print one row per queue that holds something, then what lies outside of them, dead letters last."""
    table = Table("priority", "waiting", "running", "oldest", "needs", box=None, header_style="bold")
    for queue in overview.queues:
        if queue.queued or queue.running:
            oldest = "" if queue.oldest_seconds is None else f"{queue.oldest_seconds:.0f} s"
            cells = (str(queue.queued), str(queue.running), oldest, " ".join(queue.needs))
            table.add_row(queue.priority, *(Text(printable(cell)) for cell in cells))
    if table.row_count:
        console.print(table)
    counts = overview.counts
    total = f"{overview.queued} waiting, {overview.running} running"
    console.print(f"{total}, {counts.due} due again later, {counts.dead} dead, {counts.parked} unreadable")
    for letter in overview.letters:
        console.print(f"dead after attempt {letter.attempt}: {letter.entry}: {letter.reason}", soft_wrap=True)
        for line in letter.log.splitlines()[-_LOG_LINES:]:
            console.print(f"    {line}", soft_wrap=True)


def print_findings(console: Console, findings: Sequence[Finding]) -> None:
    """Print one line per finding, and its remedy below it."""
    for finding in findings:
        mark = "ok   " if finding.is_fine else "FAULT"
        console.print(f"{mark} {finding.subject}: {finding.said}", soft_wrap=True)
        if finding.remedy:
            console.print(f"      {finding.remedy}", soft_wrap=True)
