"""`Job`: everything that can change a pixel or a sample, and its identity.

The client builds it, Redis carries it, the engine validates it, the pipeline reads it; nobody alters it.
What names an output or a priority is not here (`requests.py`, `sweeps.py`): it must not change the identity.
"""

import hashlib
import secrets
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import (
    Field,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from queue_schemas import geometry, limits
from queue_schemas.base import Asked, Lax, Text, Version1
from queue_schemas.errors import InvalidRequestError, explain
from queue_schemas.identity import canonical_json
from queue_schemas.loras import JobLora, MadeFor, with_made_for
from queue_schemas.names import Name
from queue_schemas.references import (
    KEYFRAMES,
    MEDIA_FIELDS,
    Keyframe,
    MediaSource,
    Medium,
    ReferenceItem,
    check_references,
    media_of,
    replaced,
    shown_source,
)
from queue_schemas.text import shortened


class ConventionsName(StrEnum):
    """Preset of every choice on which ComfyUI and diffusers disagree."""

    COMFYUI = "comfyui"
    DIFFUSERS = "diffusers"


class Sampler(StrEnum):
    """How one step moves the latents from one sigma to the next."""

    EULER = "euler"
    RES_MULTISTEP = "res_multistep"


class Schedule(StrEnum):
    """Which sigmas the steps visit: ComfyUI's 1000-entry table, or diffusers' shifted linear grid."""

    SIMPLE = "simple"
    LINEAR = "linear"


class VaeDtype(StrEnum):
    """Storage and product dtype of the video VAE; float32 is for exact diagnostics."""

    FLOAT16 = "float16"
    FLOAT32 = "float32"


PRESET_SCHEDULE = {ConventionsName.COMFYUI: Schedule.SIMPLE, ConventionsName.DIFFUSERS: Schedule.LINEAR}

# What the validators below check, said in JSON Schema: they give better sentences than its keywords could.
_PROMPT_SCHEMA = {"type": "string", "minLength": 1, "maxLength": limits.PROMPT_CHARACTERS}
_SIDE_SCHEMA = {
    "type": "integer",
    "minimum": limits.SIDE_PIXELS_MIN,
    "maximum": limits.SIDE_PIXELS_MAX,
    "multipleOf": limits.SIDE_MULTIPLE,
}
_FRAMES_SCHEMA = {
    "type": "integer",
    "enum": [n for n in range(limits.FRAMES_MIN, limits.FRAMES_MAX + 1) if geometry.on_grid(n)],
}


class JobFields(Asked):
    """The fields that every workflow has."""

    schema_version: Version1 = 1
    prompt: Annotated[Text, WithJsonSchema(_PROMPT_SCHEMA)]
    """1 to 7,000 characters of any script; kept to the last byte."""
    width: Annotated[int, WithJsonSchema(_SIDE_SCHEMA)] = 960
    """Pixels; a multiple of 32."""
    height: Annotated[int, WithJsonSchema(_SIDE_SCHEMA)] = 544
    """Pixels; a multiple of 32."""
    frames: Annotated[int, WithJsonSchema(_FRAMES_SCHEMA)] = limits.TRAINED_FRAMES_MIN
    """A length the video VAE can decode (17n + 5); others are rejected, never rounded."""
    steps: Annotated[int, Field(ge=1, le=limits.STEPS_MAX)] = 20
    """Model evaluations, as ComfyUI counts them; diffusers' num_inference_steps is one more."""
    seed: Annotated[int, Field(ge=0, le=limits.SEED_MAX)]
    """Always explicit: whoever builds the job draws one, so every result can be made again."""
    conventions: Lax[ConventionsName] = ConventionsName.COMFYUI
    sampler: Lax[Sampler] = Sampler.EULER
    schedule: Lax[Schedule] = Schedule.SIMPLE
    """Where it is left out, the preset of `conventions` supplies it."""
    shift_video: Annotated[float, Field(gt=0, le=limits.SHIFT_MAX)] = 12.0
    shift_audio: Annotated[float, Field(gt=0, le=limits.SHIFT_MAX)] = 3.0
    attention: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")] = "auto"
    """`auto`, or a backend that `GET /ready` lists; a named one that is missing is an error."""
    vae_dtype: Lax[VaeDtype] = VaeDtype.FLOAT16
    vae_tile_size: Annotated[
        int, Field(ge=limits.VAE_TILE_PIXELS_MIN, le=limits.VAE_TILE_PIXELS_MAX, multiple_of=16)
    ] = limits.VAE_TILE_PIXELS_DEFAULT
    """Pixels; any size but 256 is approximate, because the decoder's positions are normalised per tile."""
    loras: Annotated[Lax[tuple[JobLora, ...]], Field(max_length=limits.LORAS)] = ()
    """What is added to the transformer, in order; a node without one of them does not take the job."""
    checkpoint: Name
    """Name of the resident set that must serve this job."""

    @model_validator(mode="before")
    @classmethod
    def _preset_supplies_schedule(cls, data: Any) -> Any:
        named = data.get("conventions") if isinstance(data, Mapping) and "schedule" not in data else None
        if isinstance(named, str) and named in PRESET_SCHEDULE:  # anything else is refused further on
            return {**data, "schedule": PRESET_SCHEDULE[ConventionsName(named)]}
        return data

    @field_validator("prompt")
    @classmethod
    def _check_prompt(cls, prompt: str) -> str:
        if all(char.isspace() or unicodedata.category(char) == "Cf" for char in prompt):
            raise ValueError("the prompt is empty")
        if len(prompt) > limits.PROMPT_CHARACTERS:
            raise ValueError(f"{len(prompt):,} characters; at most {limits.PROMPT_CHARACTERS:,} are accepted")
        if "\0" in prompt:
            raise ValueError("the prompt holds a NUL character")
        return prompt

    @field_validator("width", "height")
    @classmethod
    def _check_side(cls, side: int) -> int:
        low, high, multiple = limits.SIDE_PIXELS_MIN, limits.SIDE_PIXELS_MAX, limits.SIDE_MULTIPLE
        if not low <= side <= high:
            raise ValueError(f"{side} pixels; a side has {low} to {high}")
        if side % multiple:
            below = side // multiple * multiple
            raise ValueError(
                f"{side} is not a multiple of {multiple}; the nearest are {below} and {below + multiple}"
            )
        return side

    @field_validator("frames")
    @classmethod
    def _check_frames(cls, frames: int) -> int:
        low, high = geometry.grid_neighbours(frames)
        if not limits.FRAMES_MIN <= frames <= limits.FRAMES_MAX:
            raise ValueError(f"{frames}; a film has {limits.FRAMES_MIN} to {limits.FRAMES_MAX} frames")
        if not geometry.on_grid(frames):
            raise ValueError(
                f"{frames} is no length the video VAE can decode (17n + 5); the nearest are {low} and {high}"
            )
        return frames

    @field_validator("loras")
    @classmethod
    def _check_loras(cls, loras: tuple[JobLora, ...]) -> tuple[JobLora, ...]:
        names = [lora.name for lora in loras]
        if len(set(names)) != len(names):
            raise ValueError(f"{', '.join(names)} names one twice; give each LoRA one strength")
        return loras

    @model_validator(mode="after")
    def _check_aspect(self) -> Self:
        long, short = max(self.width, self.height), min(self.width, self.height)
        if long > limits.ASPECT_RATIO_MAX * short:
            raise ValueError(
                f"{self.width}x{self.height} is longer than 4:1; bring the sides closer together"
            )
        return self

    @model_validator(mode="after")
    def _check_sampler(self) -> Self:
        if self.sampler is Sampler.RES_MULTISTEP and self.conventions is ConventionsName.DIFFUSERS:
            raise ValueError(
                "sampler res_multistep needs video and audio on one clock, which diffusers' conventions"
                " do not give; use euler, or conventions comfyui"
            )
        return self

    def canonical_json(self) -> str:
        """Return the text that is hashed: sorted keys, no spaces, fields at their default left out.

        Files count by their SHA-256, wherever they lie. Raises InvalidRequestError while one has none.
        """
        unread = next((medium for medium in self.media if medium.sha256 is None), None)
        if unread is not None:
            raise InvalidRequestError(
                f"{unread.place}: {shown_source(unread.source)} has no sha256 yet; upload it first"
            )
        return canonical_json(self)

    @property
    def job_id(self) -> str:
        """Identity of the result: 128 bits of SHA-256 over `canonical_json`, as hexadecimal."""
        return hashlib.sha256(self.canonical_json().encode()).hexdigest()[:32]

    @property
    def media(self) -> list[Medium]:
        """The files that it needs, in order."""
        return []

    def with_media(self, settle: Callable[[Medium], MediaSource]) -> Self:
        """Return the job with each file where `settle` says that it lies; equal hashes are the same job."""
        return self

    @property
    def latent_shape(self) -> geometry.LatentShape:
        return geometry.latent_shape(frames=self.frames, height=self.height, width=self.width)

    @property
    def notes(self) -> list[str]:
        """What a person should know before this costs anything; empty inside the trained range."""
        found = []
        if self.width * self.height > limits.TRAINED_PIXELS_MAX:
            found.append(
                f"untrained: {self.width}x{self.height} exceeds {limits.TRAINED_PIXELS_MAX:,} pixels"
            )
        if self.frames < limits.TRAINED_FRAMES_MIN:
            trained = f"{limits.TRAINED_FRAMES_MIN} to {limits.FRAMES_MAX}"
            found.append(f"untrained: {self.frames} frames; trained on {trained}")
        if self.vae_tile_size != limits.VAE_TILE_PIXELS_DEFAULT:
            found.append(f"approximate: vae_tile_size {self.vae_tile_size} decodes other pixels than 256")
        return found


class T2VAJob(JobFields):
    """Text in; video with soundtrack out."""

    workflow: Literal["t2va"] = "t2va"


class FL2VAJob(JobFields):
    """Text and a first frame, a last frame or both in; video with soundtrack out."""

    workflow: Literal["fl2va"] = "fl2va"
    first_frame: Keyframe | None = None
    last_frame: Keyframe | None = None

    @model_validator(mode="after")
    def _check_keyframes(self) -> Self:
        if self.first_frame is None and self.last_frame is None:
            raise ValueError("an fl2va job has a first_frame, a last_frame or both")
        return self

    @property
    def media(self) -> list[Medium]:
        return [
            Medium(place=place, kind="image", source=frame.source, sha256=frame.sha256)
            for place, frame in (("first_frame", self.first_frame), ("last_frame", self.last_frame))
            if frame is not None
        ]

    def with_media(self, settle: Callable[[Medium], MediaSource]) -> Self:
        return self.model_copy(update={medium.place: settle(medium) for medium in self.media})


class Ref2VAJob(JobFields):
    """Text and ordered pictures, clips and sounds in; video with soundtrack out."""

    workflow: Literal["ref2va"] = "ref2va"
    references: Lax[tuple[ReferenceItem, ...]] = ()

    @model_validator(mode="after")
    def _check_references(self) -> Self:
        check_references(self.references)
        if self.conventions is ConventionsName.DIFFUSERS:
            chosen = next((n for n, item in enumerate(self.references) if item.size != "match"), None)
            if chosen is not None:
                raise ValueError(
                    f"references[{chosen}].size: diffusers' conventions bring every picture to a short edge"
                    " of 2048; leave size out"
                )
        return self

    @property
    def media(self) -> list[Medium]:
        return media_of(self.references)

    def with_media(self, settle: Callable[[Medium], MediaSource]) -> Self:
        return self.model_copy(update={"references": replaced(self.references, settle)})


Job = Annotated[T2VAJob | FL2VAJob | Ref2VAJob, Field(discriminator="workflow")]
JOB_ADAPTER: TypeAdapter[T2VAJob | FL2VAJob | Ref2VAJob] = TypeAdapter(Job)
WORKFLOWS: dict[str, type[JobFields]] = {"t2va": T2VAJob, "fl2va": FL2VAJob, "ref2va": Ref2VAJob}


def draw_seed() -> int:
    """Draw a seed below 2^53, so that every JSON reader keeps it exact."""
    return secrets.randbelow(limits.DRAWN_SEED_MAX + 1)


def infer_workflow(fields: Mapping[str, Any]) -> str:
    """Return the workflow that `fields` ask for: references, then keyframes, else t2va.

    Raises InvalidRequestError when both kinds are given, or the named workflow is unknown.
    """
    named = fields.get("workflow")
    if named is not None:
        if not isinstance(named, str) or named not in WORKFLOWS:
            shown = shortened(repr(named), limits.NAME_CHARACTERS)
            raise InvalidRequestError(f"workflow: {shown} is none of {', '.join(WORKFLOWS)}")
        _check_media_fields(
            fields, named, fault=f"workflow {named} takes no {{}}; leave workflow out, or name another"
        )
        return named
    keyframes = any(fields.get(name) is not None for name in KEYFRAMES)
    if fields.get("references") and keyframes:
        raise InvalidRequestError("references and keyframes exclude each other; name one kind")
    if fields.get("references"):
        return "ref2va"
    workflow = "fl2va" if keyframes else "t2va"
    _check_media_fields(fields, workflow, fault="{} names no file; name one, or leave it out")
    return workflow


def _check_media_fields(fields: Mapping[str, Any], workflow: str, *, fault: str) -> None:
    """Refuse files of another workflow, and empty fields for them. Raises InvalidRequestError."""
    for name in MEDIA_FIELDS:
        if name in fields and name not in WORKFLOWS[workflow].model_fields:
            raise InvalidRequestError(fault.format(name))


def build_job(
    fields: Mapping[str, Any], *, checkpoint: str | None = None, loras: Iterable[MadeFor] = ()
) -> T2VAJob | FL2VAJob | Ref2VAJob:
    """Make a job from a person's fields: infer the workflow, draw a missing seed, fill a missing checkpoint.

    `loras` are those that are known where it will run; they supply the steps and shifts they were made for.
    Raises InvalidRequestError with one sentence for every fault found.
    """
    workflow = infer_workflow(fields)
    filled = {**with_made_for(fields, loras), "workflow": workflow}
    filled.setdefault("seed", draw_seed())
    if checkpoint is not None:
        filled.setdefault("checkpoint", checkpoint)
    try:
        return JOB_ADAPTER.validate_python(filled)
    except ValidationError as error:
        raise InvalidRequestError(explain(error, known_fields=WORKFLOWS[workflow].model_fields)) from None
