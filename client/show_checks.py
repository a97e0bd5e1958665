"""A check as a person reads it: a table of references, then rows, memory, time, changes and notes."""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from client.checks import Checked
from client.receipts import encoded_text, seconds_text
from queue_schemas.checks import CheckReport
from queue_schemas.text import printable

_GIB = 1024**3


def print_checks(console: Console, checked: Sequence[Checked]) -> None:
    for number, each in enumerate(checked):
        if number:
            console.print()
        for line in _heading(each):
            console.print(Text(line), soft_wrap=True)
        if each.report.references:
            console.print(_table(each))
        for line in _lines(each):
            console.print(Text(line), soft_wrap=True)


def _heading(each: Checked) -> Iterator[str]:
    job = each.report.job
    runs = f", {each.runs:,} runs" if each.runs > 1 else ""
    film = f"{job['width']}x{job['height']}, {job['frames']} frames, {job['steps']} steps"
    yield f"{job['workflow']}, {film}{runs}"


def _table(each: Checked) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("file", no_wrap=True, overflow="ellipsis")
    for name, width in (("label", len("<Picture 1>")), ("as encoded", len("1344x768, 362 frames"))):
        table.add_column(name, no_wrap=True, min_width=width)
    for name in ("text rows", "rows", "of a step"):
        table.add_column(name, justify="right", no_wrap=True, min_width=len(name))
    for reference in each.report.references:
        sound = reference.sound
        table.add_row(
            Text(printable(each.names.get(reference.place, reference.place))),
            Text(reference.label),
            encoded_text(reference),
            f"{reference.text_tokens:,}",
            f"{reference.tokens - (sound.tokens if sound else 0):,}",
            f"{reference.step_share:.1%}",
        )
        if sound is not None:
            name = each.names.get(f"{reference.place}.audio", "its sound")
            row = (Text(f"  {printable(name)}"), Text(sound.label), seconds_text(sound.samples))
            table.add_row(*row, "", f"{sound.tokens:,}", "")
    return table


def _lines(each: Checked) -> Iterator[str]:
    report = each.report
    tokens = report.tokens
    about = "about " if tokens.prompt_is_estimate else ""
    yield (
        f"rows: {about}{tokens.total:,} = text {tokens.text:,} ({about}{tokens.prompt:,} of the prompt)"
        f" + references {tokens.conditions:,} + audio {tokens.audio:,} + video {tokens.video:,}"
    )
    if report.references:
        yield f"the references take {report.step_share:.1%} of a step"
    yield _memory(report)
    for seconds in report.seconds:
        films = "1 film" if seconds.records == 1 else f"{seconds.records} films"
        many = f", {seconds.total * each.runs / 3600:.2f} h for all" if each.runs > 1 else ""
        uncounted = ", and encoding the references" if report.references else ""
        told = f"{seconds.step:.2f} s a step, {seconds.total:.1f} s a film{many}{uncounted}"
        yield f"time on {seconds.device}: {told} (by {films})"
    for place, change in _changes(report):
        yield f"{each.names.get(place, place)}: {change}"
    for note in report.notes:
        yield f"note: {note}"


def _changes(report: CheckReport) -> Iterator[tuple[str, str]]:
    """Yield each change with the place of its file."""
    for reference in report.references:
        sound = reference.sound
        yield from ((reference.place, change) for change in reference.changes)
        if sound is not None:
            place = reference.place if sound.sha256 is None else f"{reference.place}.audio"
            yield from ((place, change) for change in sound.changes)


def _memory(report: CheckReport) -> str:
    memory = report.memory
    step = f"about {memory.activations_bytes / _GIB:.1f} GiB for a step"
    if memory.weights_min_bytes is None or memory.weights_max_bytes is None:
        return f"memory: the weights, and {step}"
    least, most = memory.weights_min_bytes / _GIB, memory.weights_max_bytes / _GIB
    return f"memory: {least:.0f} to {most:.0f} GiB of weights, by the text encoder, and {step}"
