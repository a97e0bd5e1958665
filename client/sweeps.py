"""Sweeps: prompts × seeds to runs, in a fixed order, and the sweep.json that names them all.

The same prompts, seeds and fields always give the same runs. Knows no queue.
"""

import hashlib
import math
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from client.errors import SweepInputError
from client.given_files import read_given_file
from queue_schemas import limits
from queue_schemas.geometry import FPS, frames_for
from queue_schemas.jobs import draw_seed
from queue_schemas.runs import Priority
from queue_schemas.sweeps import Sweep, SweepRun

EXCERPT_CHARACTERS = 24


def read_prompts(path: Path) -> list[tuple[str, str]]:
    """Return (`line 3`, prompt) for every line but blank ones and those that start with `#`.

    Spaces around a prompt are dropped. Raises SweepInputError, naming the line.
    """
    data = read_given_file(path, limit_bytes=limits.PROMPTS_BYTES, what="prompts file")
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


def frames_of_seconds(seconds: float) -> int:
    """Return the shortest length on the frame grid that lasts so long. Raises SweepInputError."""
    if not (math.isfinite(seconds) and 0 < seconds <= limits.FRAMES_MAX / FPS):
        raise SweepInputError(f"seconds {seconds}: a film lasts up to {limits.FRAMES_MAX / FPS:.2f} seconds")
    return frames_for(seconds)


def excerpt(prompt: str) -> str:
    """Return the beginning of a prompt, on one line, for labels."""
    words = " ".join(prompt.split())
    return words if len(words) <= EXCERPT_CHARACTERS else words[: EXCERPT_CHARACTERS - 1].rstrip() + "…"


def expand(
    prompts: Sequence[tuple[str, str]], *, seeds: Sequence[int], fields: Mapping[str, Any]
) -> list[tuple[str, dict[str, Any]]]:
    """Return (label, job fields) of every run: all seeds of the first prompt, then of the next.

    Prompts come with a name, `line 3`; a label is that, the prompt's beginning and the seed. Raises
    SweepInputError.
    """
    if len(prompts) * len(seeds) > limits.SWEEP_RUNS:
        asked = f"{len(prompts):,} prompts x {len(seeds):,} seeds"
        raise SweepInputError(f"{asked} are more than the {limits.SWEEP_RUNS:,} runs a sweep may have")
    return [
        (f"{name}: {excerpt(prompt)}, seed {seed}", {**fields, "prompt": prompt, "seed": seed})
        for name, prompt in prompts
        for seed in seeds
    ]


def describe_sweep(
    runs: Sequence[SweepRun],
    *,
    now: datetime,
    priority: Priority = Priority.NORMAL,
    labels: Mapping[str, str] | None = None,
) -> Sweep:
    """Return the sweep of these runs, under a fresh readable id; a repeated run is one.

    Raises SweepInputError.
    """
    found = dict[str, SweepRun]()
    for run in runs:
        found.setdefault(run.run_id, run)
    if len(found) > limits.SWEEP_RUNS:
        raise SweepInputError(f"{len(found):,} runs; a sweep has up to {limits.SWEEP_RUNS:,}")
    return Sweep(
        sweep_id=f"sweep-{now:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}",
        created_at=now.isoformat(timespec="seconds"),
        priority=priority,
        labels=dict(labels or {}),
        runs=list(found.values()),
    )


def sweep_bytes(sweep: Sweep) -> bytes:
    """Return sweep.json. Raises SweepInputError when it is larger than a reader accepts."""
    data = sweep.model_dump_json().encode()
    if len(data) > limits.SWEEP_BYTES:
        raise SweepInputError(
            f"the sweep takes {len(data):,} bytes as JSON; at most {limits.SWEEP_BYTES:,} are kept: split it"
        )
    return data
