"""Sweep files: YAML or JSON with prompts, seeds and axes over any job field, expanded in a fixed order.

    prompts: prompts.txt            # a file with one prompt per line, or a list of prompts
    seeds: 4                        # or the seeds themselves: [1, 2, 3]
    width: 960                      # any job field: the same for every run
    axes:
      steps: [8, 20]                # any job field: every value with every other axis

The same file always gives the same runs: prompts outermost, then the axes as written, seeds innermost. A job
field at the top that holds a list is an axis as well. Unknown names are refused with the nearest known one.
"""

import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from client.errors import SweepInputError
from client.given_files import read_given_file
from client.given_references import short_names
from client.sweep_references import with_references_beside
from client.sweeps import draw_seeds, excerpt, frames_of_seconds, read_prompts
from queue_schemas import limits
from queue_schemas.errors import InvalidRequestError, nearest_hint
from queue_schemas.jobs import WORKFLOWS
from queue_schemas.references import MEDIA_FIELDS
from queue_schemas.requests import load_json_object
from queue_schemas.runs import Priority

FILE_BASE_SEED: Final = 0
"""What a count of seeds follows from where the file names no `seed`: the same on every machine."""
_OWN: Final = ("prompts", "seeds", "axes", "priority", "labels", "force", "node")
_JOB_FIELDS: Final = tuple(
    dict.fromkeys(
        [
            *(name for job in WORKFLOWS.values() for name in job.model_fields if name != "schema_version"),
            "seconds",
        ]
    )
)
_LISTS: Final = ("references", "loras")
"""Job fields that are lists themselves: such a list at the top is no axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    """A sweep file, expanded."""

    runs: list[tuple[str, dict[str, Any]]]
    """(label, job fields), in order."""
    counted: str
    """`48 runs: 3 prompts x 2 steps x 8 seeds`."""
    priority: Priority | None = None
    node: str | None = None
    force: bool = False
    labels: Mapping[str, str]


def read_sweep_file(path: Path, *, fields: Mapping[str, Any]) -> SweepPlan:
    """Return the runs of a sweep file; `fields` win over what it says for all, never over an axis.

    Raises SweepInputError, naming file and field.
    """
    try:
        return _plan(with_references_beside(_load(path), path.parent), fields=fields, folder=path.parent)
    except (SweepInputError, InvalidRequestError) as error:
        shown = str(error)
        raise SweepInputError(shown if str(path) in shown else f"{path}: {shown}") from None


def _load(path: Path) -> dict[str, Any]:
    data = read_given_file(path, limit_bytes=limits.SWEEP_BYTES, what="sweep file")
    if path.suffix.lower() == ".json":
        return load_json_object(data, limit_bytes=limits.SWEEP_BYTES)
    try:
        document = _read_yaml(data, name=path.name)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise SweepInputError(f"not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(document, dict):
        raise SweepInputError(f"expected names and values, found {type(document).__name__}")
    return document


def _read_yaml(data: bytes, *, name: str) -> Any:
    loader = _PlainYaml(data)
    loader.name = name  # by which faults are placed; else they speak of a byte string
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


class _PlainYaml(yaml.SafeLoader):
    """YAML of which nothing is lost in silence, as the earlier value of a name that stands twice would be.

    An alias makes a few lines as large as memory when they are written out, so none is read.
    """

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            line = self.peek_event().start_mark.line + 1  # type: ignore[no-untyped-call]  # PyYAML's
            raise SweepInputError(f"line {line}: aliases (*name) are not read; write the value out")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: list[Any] = []
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if key.tag == "tag:yaml.org,2002:merge":
                raise SweepInputError(f"line {line}: merge keys (<<) are not read; write the values out")
            name = self.construct_object(key, deep=True)
            if name in seen:
                raise SweepInputError(f"line {line}: {name!r} stands twice")
            seen.append(name)
        return super().construct_mapping(node, deep)


def _plan(document: Mapping[str, Any], *, fields: Mapping[str, Any], folder: Path) -> SweepPlan:
    known = (*_OWN, *_JOB_FIELDS)
    for name in document:
        _check_name(name, known)
    axes = _axes(document)
    fixed = {name: value for name, value in document.items() if name in _JOB_FIELDS and name not in axes}
    fixed |= fields
    both = sorted(set(axes) & set(fields))
    if both:
        raise SweepInputError(f"{both[0]} is an axis of the file and an option; give it in one place")
    if "seconds" in {*axes, *fixed} and "frames" in {*axes, *fixed}:
        raise SweepInputError("frames and seconds say the same; give one of them")
    prompts = _prompts(document, axes, fixed, folder=folder)
    seeds = _seeds(document, axes, fixed)
    sizes = [("prompt", len(prompts)), *((name, len(values)) for name, values in axes.items())]
    sizes.append(("seed", len(seeds)))
    total = math.prod(size for _, size in sizes)
    if total > limits.SWEEP_RUNS:
        raise SweepInputError(f"{total:,} runs are more than the {limits.SWEEP_RUNS:,} that a sweep may have")
    return SweepPlan(
        runs=_expand(prompts, axes, seeds, fixed=fixed),
        counted=f"{_number(total, 'run')}: {' x '.join(_number(size, name) for name, size in sizes)}",
        priority=_priority(document.get("priority")),
        node=_text(document, "node"),
        force=_flag(document, "force"),
        labels=_labels(document.get("labels")),
    )


def _expand(
    prompts: Sequence[tuple[str, str]],
    axes: Mapping[str, Sequence[Any]],
    seeds: Sequence[int],
    *,
    fixed: Mapping[str, Any],
) -> list[tuple[str, dict[str, Any]]]:
    runs = []
    for (name, prompt), values, seed in itertools.product(prompts, itertools.product(*axes.values()), seeds):
        chosen = dict(zip(axes, values, strict=True))
        shown = [
            f"{axis} {short_names(value) if axis in MEDIA_FIELDS else value}"
            for axis, value in chosen.items()
        ]
        label = ", ".join([f"{name}: {excerpt(prompt)}", *shown, f"seed {seed}"])
        runs.append((label, _with_frames({**fixed, **chosen, "prompt": prompt, "seed": seed}, label=label)))
    return runs


def _with_frames(fields: dict[str, Any], *, label: str) -> dict[str, Any]:
    seconds = fields.pop("seconds", None)
    if seconds is None:
        return fields
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise SweepInputError(f"{label}: seconds is {seconds!r}; give a number")
    return {**fields, "frames": frames_of_seconds(float(seconds))}


def _axes(document: Mapping[str, Any]) -> dict[str, list[Any]]:
    named = document.get("axes", {})
    if not isinstance(named, dict):
        raise SweepInputError("axes: expected job fields, each with a list of values")
    axes = {name: values for name, values in document.items() if _is_axis(name, values)}
    for name, values in named.items():
        _check_name(name, _JOB_FIELDS)
        if name in document:
            raise SweepInputError(f"{name} stands both at the top and under axes; give it in one place")
        axes[name] = values
    for name, values in axes.items():
        if not isinstance(values, list) or not values:
            raise SweepInputError(f"axes: {name} needs a list of values, such as [8, 20]")
        if len({repr(value) for value in values}) != len(values):
            raise SweepInputError(f"axes: {name} holds the same value twice")
    return axes


def _is_axis(name: str, values: Any) -> bool:
    return name in _JOB_FIELDS and name not in _LISTS and isinstance(values, list)


def _prompts(
    document: Mapping[str, Any], axes: dict[str, list[Any]], fixed: dict[str, Any], *, folder: Path
) -> list[tuple[str, str]]:
    given = {
        "prompts": document.get("prompts"),
        "axes: prompt": axes.pop("prompt", None),
        "prompt": fixed.pop("prompt", None),
    }
    named = {name: value for name, value in given.items() if value is not None}
    if len(named) != 1:
        asked = "prompts: a list, or a file with one per line"
        raise SweepInputError(f"give prompts in one place; {asked}" if named else f"no prompts; give {asked}")
    ((name, value),) = named.items()
    if name == "prompts" and isinstance(value, str):
        return read_prompts(folder / value)
    values = value if isinstance(value, list) else [value]
    if not values:
        raise SweepInputError("prompts: the list is empty")
    for number, prompt in enumerate(values, start=1):
        if not isinstance(prompt, str):
            raise SweepInputError(f"prompt {number} is no text but {prompt!r}; put it into quotes")
    return [(f"prompt {number}", prompt) for number, prompt in enumerate(values, start=1)]


def _seeds(document: Mapping[str, Any], axes: dict[str, list[Any]], fixed: dict[str, Any]) -> list[int]:
    asked, listed, base = document.get("seeds"), axes.pop("seed", None), fixed.pop("seed", None)
    if listed is not None and asked is not None:
        raise SweepInputError("seeds and an axis of seed say the same; give one of them")
    if listed is not None and base is not None:
        raise SweepInputError("the seeds are listed, so a base seed has no meaning; leave out one")
    asked = listed if listed is not None else asked
    if isinstance(asked, list):
        if base is not None:
            raise SweepInputError("the seeds are listed, so a base seed has no meaning; leave out one")
        if not asked or not all(_is_seed(seed) for seed in asked):
            raise SweepInputError(f"seeds: whole numbers from 0 to {limits.SEED_MAX}, such as [1, 2, 3]")
        if len(set(asked)) != len(asked):
            raise SweepInputError("seeds: the same seed twice")
        return asked
    if asked is not None and (isinstance(asked, bool) or not isinstance(asked, int)):
        raise SweepInputError(f"seeds is {asked!r}; give a count such as 4, or seeds such as [1, 2, 3]")
    if base is not None and not _is_seed(base):
        raise SweepInputError(f"seed is {base!r}; give a whole number from 0 to {limits.SEED_MAX}")
    return draw_seeds(1 if asked is None else asked, base_seed=FILE_BASE_SEED if base is None else base)


def _is_seed(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= limits.SEED_MAX


def _priority(value: Any) -> Priority | None:
    if value is None:
        return None
    if value not in list(Priority):
        raise SweepInputError(f"priority is {value!r}; use one of {', '.join(Priority)}")
    return Priority(value)


def _labels(value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise SweepInputError("labels: expected names and texts")
    return {str(name): str(text) for name, text in value.items()}


def _text(document: Mapping[str, Any], name: str) -> str | None:
    value = document.get(name)
    if value is not None and not isinstance(value, str):
        raise SweepInputError(f"{name} is {value!r}; give a text")
    return value


def _flag(document: Mapping[str, Any], name: str) -> bool:
    value = document.get(name, False)
    if not isinstance(value, bool):
        raise SweepInputError(f"{name} is {value!r}; write true or false")
    return value


def _check_name(name: Any, known: Sequence[str]) -> None:
    if name not in known:
        hint = nearest_hint(str(name), known)
        raise SweepInputError(f"unknown field {name!r}{hint or '; there are ' + ', '.join(known)}")


def _number(count: int, noun: str) -> str:
    many = noun if count == 1 or noun.endswith("s") else f"{noun}s"
    return f"{count:,} {many}"
