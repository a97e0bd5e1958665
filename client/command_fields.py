"""The job that a command line's options describe: what typer read, turned into a job's fields."""

from collections.abc import Mapping
from typing import Any

from client.errors import SweepInputError
from client.given_references import parse_reference
from client.sweeps import frames_of_seconds
from queue_schemas.loras import parse_lora


def with_lists(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields with each `--lora` and `--reference` as the object that a job holds."""
    parsers = {"loras": parse_lora, "references": parse_reference}
    return {
        name: [parsers[name](text) for text in value] if name in parsers else value
        for name, value in fields.items()
    }


def job_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of one job, `seconds` turned into a length on the frame grid."""
    job = with_lists(fields)
    seconds = job.pop("seconds", None)
    if seconds is None:
        return job
    if "frames" in job:
        raise SweepInputError("--frames and --seconds say the same; give one of them")
    return {**job, "frames": frames_of_seconds(seconds)}
