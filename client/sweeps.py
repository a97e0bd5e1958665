"""Sweeps: prompts × seeds to runs, in a fixed order, and the sweep.json that names them all.

The same prompts, seeds and fields always give the same runs. Knows no queue.
"""

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from client.errors import SweepInputError
from client.handle import AnyJob
from queue_schemas import limits
from queue_schemas.jobs import draw_seed
from queue_schemas.sweeps import Sweep, SweepRun

_PROMPTS_FILE_BYTES = 64 * 1024 * 1024


def read_prompts(path: Path) -> list[tuple[str, str]]:
    """Return (`line 3`, prompt) for every line but blank ones and those that start with `#`.

    Spaces around a prompt are dropped. Raises SweepInputError, naming the line.
    """
    try:
        if path.stat().st_size > _PROMPTS_FILE_BYTES:
            raise SweepInputError(f"{path}: more than {_PROMPTS_FILE_BYTES:,} bytes are no prompts file")
        data = path.read_bytes()
    except OSError as error:
        raise SweepInputError(f"cannot read the prompts file {path}: {error.strerror}") from None
    prompts = []
    # Only line feeds end a line: str.splitlines would also cut a prompt at U+2028 or a form feed.
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        try:
            text = line.decode().strip()
        except UnicodeDecodeError as error:
            raise SweepInputError(f"{path}, line {number}: not UTF-8 ({error.reason})") from None
        if text and not text.startswith("#"):
            prompts.append((f"line {number}", text))
    if not prompts:
        raise SweepInputError(f"{path} holds no prompt; write one per line")
    return prompts


def parse_seeds(text: str, *, base_seed: int | None) -> list[int]:
    """Return the seeds that `--seeds` asks for: `1,2,3` (or `7,`) are themselves, `4` draws four.

    Drawn seeds are `base_seed` and others that follow from it, where it is given. Raises SweepInputError.
    """
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > 1 and not parts[-1]:
        parts.pop()
    if not all(part.isascii() and part.isdecimal() and len(part) < 20 for part in parts):
        raise SweepInputError(f"seeds {text!r}: give a count such as 4, or seeds such as 1,2,3")
    numbers = [int(part) for part in parts]
    if "," not in text:
        return draw_seeds(numbers[0], base_seed=base_seed)
    if base_seed is not None:
        raise SweepInputError(f"seeds {text!r} are explicit, so a base seed has no meaning; leave out one")
    if len(set(numbers)) != len(numbers):
        raise SweepInputError(f"seeds {text!r}: the same seed twice")
    return numbers


def draw_seeds(count: int, *, base_seed: int | None) -> list[int]:
    """Return `count` distinct seeds, the base seed first; the same base always gives the same ones."""
    if not 1 <= count <= limits.SWEEP_RUNS:
        raise SweepInputError(f"{count} seeds; a sweep has 1 to {limits.SWEEP_RUNS:,}")
    base = draw_seed() if base_seed is None else base_seed
    seeds: dict[int, None] = {base: None}
    number = 0
    while len(seeds) < count:
        digest = hashlib.sha256(f"h3 sweep seed {base} {number}".encode()).digest()
        seeds[int.from_bytes(digest[:8], "big") & limits.DRAWN_SEED_MAX] = None
        number += 1
    return list(seeds)


def expand(
    prompts: Sequence[tuple[str, str]], *, seeds: Sequence[int], fields: Mapping[str, Any]
) -> list[tuple[str, dict[str, Any]]]:
    """Return (label, job fields) of every run: all seeds of the first prompt, then of the next.

    Prompts come with a name, `line 3`; a label is that and the seed. Raises SweepInputError.
    """
    if len(prompts) * len(seeds) > limits.SWEEP_RUNS:
        asked = f"{len(prompts):,} prompts x {len(seeds):,} seeds"
        raise SweepInputError(f"{asked} are more than the {limits.SWEEP_RUNS:,} runs a sweep may have")
    return [
        (f"{name}, seed {seed}", {**fields, "prompt": prompt, "seed": seed})
        for name, prompt in prompts
        for seed in seeds
    ]


def describe_sweep(runs: Sequence[tuple[str, AnyJob]], *, now: datetime) -> Sweep:
    """Return the sweep of (label, job) runs, under a fresh readable id; a repeated job is one run."""
    found: dict[str, SweepRun] = {}
    for label, job in runs:
        run_id = job.job_id  # a run is its job until repeats exist
        if run_id not in found:
            found[run_id] = SweepRun(run_id=run_id, job=job.model_dump(mode="json"), label=label)
    return Sweep(
        sweep_id=f"sweep-{now:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}",
        created_at=now.isoformat(timespec="seconds"),
        runs=list(found.values()),
    )
