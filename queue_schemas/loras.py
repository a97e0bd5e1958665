"""LoRAs on the wire: which ones a job asks for, what an engine says of those it has, what a record keeps.

A distilled LoRA is made for so many steps at these shifts. Whoever builds a job takes them over where the
caller gave none; other values are the caller's right and a warning.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import Field, field_validator

from queue_schemas import limits
from queue_schemas.base import Asked, Told
from queue_schemas.errors import InvalidRequestError
from queue_schemas.names import FileIdentity, Name, TransformerTask

if TYPE_CHECKING:
    from queue_schemas.jobs import JobFields

MADE_FOR: Final = ("steps", "shift_video", "shift_audio")
"""Job fields that a LoRA may supply."""


class JobLora(Asked):
    """One LoRA of a job; their order is that in which they are added."""

    name: Name
    """As the node that loads it calls it (`h3 nodes`)."""
    strength: Annotated[float, Field(ge=-limits.LORA_STRENGTH_MAX, le=limits.LORA_STRENGTH_MAX)] = 1.0
    """Multiplies what the LoRA adds; 0 adds nothing."""

    @field_validator("strength")
    @classmethod
    def _without_sign_of_zero(cls, strength: float) -> float:
        return strength + 0.0  # -0.0 would be another job


class MadeFor(Told):
    """What the LoRA of one name was made for, as far as that is known."""

    name: str
    task: TransformerTask | None = None
    """What the registry says that it was trained on."""
    steps: int | None = None
    shift_video: float | None = None
    shift_audio: float | None = None


class LoraMatch(FileIdentity):
    """Which file a LoRA's name means, and how much of it fits the transformer."""

    name: str
    matched_modules: int
    """Linears that it changes."""
    matched_tensors: int
    num_tensors: int
    """Of the file; more than matched only under --allow-partial-lora."""


class AppliedLora(LoraMatch):
    """A LoRA as one job used it."""

    strength: float


class LoraCard(MadeFor, LoraMatch):
    """A LoRA that an engine has loaded."""

    file: str
    """The file's name."""
    dropped: dict[str, int] = {}
    """Why tensors were left out, and how many."""
    published: str | None = None
    """Name of the published file that it is, by the registry."""


def parse_lora(text: str) -> dict[str, Any]:
    """Turn `NAME` or `NAME:STRENGTH` into the fields of a `JobLora`. Raises InvalidRequestError."""
    name, colon, strength = text.partition(":")
    try:
        return {"name": name, **({"strength": float(strength)} if colon else {})}
    except ValueError:
        raise InvalidRequestError(f"lora {text!r}: write NAME or NAME:STRENGTH, such as turbo:0.8") from None


def with_made_for(fields: Mapping[str, Any], loras: Iterable[MadeFor]) -> dict[str, Any]:
    """Return a job's fields with the steps and shifts that its LoRAs were made for, where it has none.

    The first LoRA that knows one supplies it. What is no list of LoRAs is left for the schema to refuse.
    """
    filled, known = dict(fields), {lora.name: lora for lora in loras}
    asked = fields.get("loras")
    for name in map(_name_of, asked if isinstance(asked, list | tuple) else ()):
        lora = known.get(name)
        for field in MADE_FOR if lora is not None else ():
            value = getattr(lora, field)
            if value is not None:
                filled.setdefault(field, value)
    return filled


def _name_of(lora: Any) -> str:
    name = lora.get("name") if isinstance(lora, Mapping) else getattr(lora, "name", None)
    return name if isinstance(name, str) else ""


def lora_notes(
    job: "JobFields", loras: Iterable[MadeFor], *, transformer_task: str | None = None
) -> list[str]:
    """Return one sentence for each thing that is not what a LoRA of the job was made for."""
    known, notes = {lora.name: lora for lora in loras}, []
    for lora in job.loras:
        made_for = known.get(lora.name)
        if made_for is None or not lora.strength:
            continue
        if isinstance(made_for, LoraCard) and made_for.matched_tensors < made_for.num_tensors:
            part = f"{made_for.matched_tensors} of {made_for.num_tensors} tensors"
            notes.append(f"LoRA {lora.name} is applied in part: {part}")
        if made_for.task and transformer_task and made_for.task != transformer_task:
            notes.append(
                f"LoRA {lora.name} was made for {made_for.task}; the transformer for {transformer_task}"
            )
        for field in MADE_FOR:
            wanted, given = getattr(made_for, field), getattr(job, field)
            if wanted is not None and wanted != given:
                notes.append(f"LoRA {lora.name} was made for {field} {wanted:g}; this job has {given:g}")
    return notes


def applied_loras(job: "JobFields", cards: Iterable[LoraCard]) -> list[AppliedLora]:
    """Return what a job's record says of its LoRAs, in order; one that no card knows is left out."""
    known = {card.name: card for card in cards}
    return [
        AppliedLora.model_validate({**known[lora.name].model_dump(), "strength": lora.strength})
        for lora in job.loras
        if lora.name in known
    ]
