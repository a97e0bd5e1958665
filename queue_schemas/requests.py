"""`GenerateRequest`: the body of `POST /generate`, a job's fields flat plus where the result goes."""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any, Final, Literal, NoReturn

from pydantic import AfterValidator, ValidationError

from queue_schemas import limits
from queue_schemas.base import Asked
from queue_schemas.errors import InvalidRequestError, explain
from queue_schemas.jobs import WORKFLOWS, Job, T2VAJob, build_job, infer_workflow
from queue_schemas.loras import MadeFor

_TOO_DEEP: Final = f"JSON nested deeper than {limits.JSON_DEPTH} levels"
_JSON_KINDS: Final[Mapping[type, str]] = {
    list: "an array",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "a boolean",
    type(None): "null",
}


def check_output_name(name: str) -> str:
    """Return `name` if it is a relative path below the output root, ending in .mp4; else raise ValueError."""
    path = PurePosixPath(name)
    if not name or len(name) > limits.OUTPUT_NAME_CHARACTERS:
        raise ValueError(f"an output name has 1 to {limits.OUTPUT_NAME_CHARACTERS} characters")
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{name!r} leaves the output root; give a relative name such as 'fox/take1.mp4'")
    odd = next((char for char in name if char in "\\:" or not char.isprintable()), None)
    if odd is not None:
        raise ValueError(f"{name!r} holds {odd!r}, which not every system allows in a file's name")
    if any(len(part.encode()) > limits.OUTPUT_PART_BYTES for part in path.parts):
        raise ValueError(f"a part of an output name has at most {limits.OUTPUT_PART_BYTES} bytes")
    if path.suffix != ".mp4":
        raise ValueError(f"{name!r} must end in .mp4")
    return str(path)


class Delivery(Asked):
    """The fields that a request has beyond its job; never hashed."""

    output: Annotated[str, AfterValidator(check_output_name)] | None = None
    """Relative name of the mp4 below the engine's output root; `<job_id>.mp4` when left out."""
    dry_run: bool = False
    """Validate and describe, generate nothing."""
    conditioning_cache: Literal["use", "off"] = "use"
    """`off` has prompt and pictures encoded anew, and keeps nothing of them: for measuring."""


class T2VARequest(Delivery, T2VAJob):
    """The flat body of a text-to-video request; only its JSON Schema is used."""


class GenerateRequest(Asked):
    """A parsed body: the job, which is hashed, and the delivery, which is not."""

    job: Job
    delivery: Delivery = Delivery()

    @property
    def output(self) -> str:
        return self.delivery.output or f"{self.job.job_id}.mp4"


def parse_request(
    fields: Mapping[str, Any], *, checkpoint: str | None = None, loras: Iterable[MadeFor] = ()
) -> GenerateRequest:
    """Split a flat body into job and delivery; what is missing is drawn or filled as `build_job` does.

    Raises InvalidRequestError with one sentence, which names unknown fields and the nearest known one.
    """
    known = [*WORKFLOWS[infer_workflow(fields)].model_fields, *Delivery.model_fields]
    delivery = {name: fields[name] for name in Delivery.model_fields if name in fields}
    rest = {name: value for name, value in fields.items() if name not in Delivery.model_fields}
    try:
        parsed = Delivery.model_validate(delivery)
    except ValidationError as error:
        raise InvalidRequestError(explain(error, known_fields=known)) from None
    return GenerateRequest(job=build_job(rest, checkpoint=checkpoint, loras=loras), delivery=parsed)


def load_json_object(data: bytes, *, limit_bytes: int) -> dict[str, Any]:
    """Parse one JSON object of bounded size and depth; NaN, infinities and duplicate keys are refused.

    Raises InvalidRequestError.
    """
    if len(data) > limit_bytes:
        raise InvalidRequestError(f"{len(data):,} bytes of JSON; at most {limit_bytes:,} are accepted")
    try:
        value = json.loads(
            data,
            parse_constant=_refuse_number,
            parse_float=_finite_float,
            parse_int=_bounded_int,
            object_pairs_hook=_unique_pairs,
        )
    except ValueError as error:
        raise InvalidRequestError(f"not valid JSON: {error}") from None
    except RecursionError:
        raise InvalidRequestError(_TOO_DEEP) from None
    if not isinstance(value, dict):
        raise InvalidRequestError(f"expected a JSON object, found {_JSON_KINDS[type(value)]}")
    if _depth(value) > limits.JSON_DEPTH:
        raise InvalidRequestError(_TOO_DEEP)
    return value


def _refuse_number(text: str) -> NoReturn:
    raise ValueError(f"{text:.40} is no JSON number")


def _finite_float(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse_number(text)


def _bounded_int(text: str) -> int:
    if len(text) > limits.NUMBER_CHARACTERS:
        raise ValueError(f"a number of {len(text):,} characters; at most {limits.NUMBER_CHARACTERS} are read")
    return int(text)


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("the same key twice in one object")
    return found


def _depth(value: Any) -> int:
    """Levels of nesting; iterative, since the input chose the depth."""
    deepest, pending = 0, [(value, 1)]
    while pending:
        item, level = pending.pop()
        deepest = max(deepest, level)
        children = item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
        pending.extend((child, level + 1) for child in children if isinstance(child, dict | list))
    return deepest
