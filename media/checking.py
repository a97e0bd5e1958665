"""`check_request`: what a job would cost and what becomes of its files, without a model, a GPU or a queue.

Files are decoded and scaled exactly as the engine does. Without references nothing but arithmetic is needed,
so pictures' and clips' libraries are imported only where there are some. Knows no store and no records.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from media.step_cost import activation_bytes, saved_share
from queue_schemas import geometry, limits, reference_geometry
from queue_schemas.checks import (
    CheckedReference,
    CheckedTokens,
    CheckReport,
    ExpectedMemory,
)
from queue_schemas.conventions import PRESETS
from queue_schemas.jobs import FL2VAJob, Job
from queue_schemas.published import published_files

CountTokens = Callable[[str], int]
BYTES_PER_TOKEN: Final = 3.4
"""Of prompts in any script, by samples of eleven with the released vocabulary: 2.3 to 3.9."""
_NAMED: Final = re.compile(r"<(Picture|Video|Audio) ([0-9]+)>")
_SAME_SHAPE: Final = 0.03
"""Shapes whose ratios' logarithms differ by no more are equal but for rounding to 32 pixels."""


def check_request(
    job: Job, files: Mapping[str, Path], *, count_tokens: CountTokens | None = None
) -> CheckReport:
    """Return what `job` would cost; `files` maps its media's places to local files, as the engine has them.

    `count_tokens` is the tokenizer's, for exact numbers; without it the prompt's are estimated.
    Raises ReferenceUnreadableError, which names place and file.
    """
    found, order = _counted(job, files, count_tokens) if job.media else ([], [])
    tokens = _tokens(job, found, count_tokens=count_tokens)
    return CheckReport(
        job=job.model_dump(mode="json"),
        job_id=job.job_id,
        references=[_with_share(reference, tokens.total) for reference in found],
        tokens=tokens,
        step_share=_share(sum(r.text_tokens + r.tokens for r in found), tokens.total),
        memory=_memory(job.checkpoint, rows=tokens.total),
        notes=[
            *job.notes,
            *_keyframe_notes(job, found, files),
            *_order_notes(job, order),
            *_prompt_notes(job, found),
            *_sound_notes(job, found),
            *_checkpoint_notes(job),
        ],
    )


def _counted(
    job: Job, files: Mapping[str, Path], count_tokens: CountTokens | None
) -> tuple[list[CheckedReference], list[int]]:
    """Return every medium's rows in packed order, and that order."""
    # A job without files needs neither libav nor numpy.
    from media.counting import Counting  # noqa: PLC0415
    from media.references import prepare_references  # noqa: PLC0415

    conventions = PRESETS[job.conventions]
    prepared = prepare_references(job, files)
    order = reference_geometry.packed_order([medium.kind for medium in prepared], conventions=conventions)
    counting = Counting(film_frames=job.frames, conventions=conventions, count_tokens=count_tokens)
    return [counting.add(prepared[place]) for place in order], order


def estimated_tokens(prompt: str) -> int:
    """Return about how many tokens the released vocabulary makes of a prompt."""
    return max(1, round(len(prompt.encode()) / BYTES_PER_TOKEN))


def _tokens(
    job: Job, found: Sequence[CheckedReference], *, count_tokens: CountTokens | None
) -> CheckedTokens:
    prompt = count_tokens(job.prompt) if count_tokens else estimated_tokens(job.prompt)
    text = prompt + sum(reference.text_tokens for reference in found)
    conditions = sum(reference.tokens for reference in found)
    shape = job.latent_shape
    return CheckedTokens(
        prompt=prompt,
        prompt_is_estimate=count_tokens is None,
        text=text,
        conditions=conditions,
        audio=shape.audio_tokens,
        video=shape.video_tokens,
        total=text + conditions + shape.audio_tokens + shape.video_tokens,
    )


def _share(rows: int, total: int) -> float:
    return round(saved_share(total, without=rows), 6)


def _with_share(reference: CheckedReference, total: int) -> CheckedReference:
    share = _share(reference.text_tokens + reference.tokens, total)
    return reference.model_copy(update={"step_share": share})


def _memory(checkpoint: str, *, rows: int) -> ExpectedMemory:
    """Estimate by published sizes; the file that is named says nothing of the text encoder beside it."""
    named = published_files().named(f"{checkpoint}.safetensors")
    activations = activation_bytes(rows)
    if named is None or named.family != "transformer" or named.size_bytes is None:
        return ExpectedMemory(activations_bytes=activations)
    sizes: dict[str, list[int]] = {}
    for file in published_files().files:
        sizes.setdefault(file.family, []).append(file.size_bytes or 0)
    rest = named.size_bytes + sum(max(sizes[family]) for family in ("video_vae", "audio_vae"))
    return ExpectedMemory(
        weights_min_bytes=rest + min(sizes["text_encoder"]),
        weights_max_bytes=rest + max(sizes["text_encoder"]),
        activations_bytes=activations,
    )


def _order_notes(job: Job, order: Sequence[int]) -> list[str]:
    if list(order) == sorted(order):
        return []
    places = ", ".join(f"references[{place}]" for place in order)
    return [
        f"reordered: conventions {job.conventions} take pictures, then clips, then sounds: {places}; labels"
        " follow that order"
    ]


def _prompt_notes(job: Job, found: Sequence[CheckedReference]) -> list[str]:
    labels = {reference.label for reference in found}
    labels |= {reference.sound.label for reference in found if reference.sound}
    named = dict.fromkeys(match[0] for match in _NAMED.finditer(job.prompt))
    missing = [name for name in named if name not in labels]
    there = f"there are {', '.join(sorted(labels))}" if labels else "the job has no references"
    return [f"the prompt names {', '.join(missing)}; {there}"] if missing else []


def _sound_notes(job: Job, found: Sequence[CheckedReference]) -> list[str]:
    film = job.frames / geometry.FPS
    notes = []
    for reference in found:
        if reference.samples is not None and reference.samples / geometry.SAMPLE_RATE_HZ < film:
            seconds = reference.samples / geometry.SAMPLE_RATE_HZ
            short = f"{seconds:.1f} s of sound for a film of {film:.1f} s"
            notes.append(f"{reference.place}: {short}, which is legal: a sound is heard as an example")
    return notes


def _checkpoint_notes(job: Job) -> list[str]:
    named = published_files().named(f"{job.checkpoint}.safetensors")
    if not job.media or named is None or named.task in (None, job.workflow):
        return []
    return [f"{job.checkpoint} was trained for {named.task}; a node refuses {job.workflow} on it"]


def _keyframe_notes(job: Job, found: Sequence[CheckedReference], files: Mapping[str, Path]) -> list[str]:
    """Say of each keyframe whose shape is not the film's what that does to it, and how to avoid it."""
    if not isinstance(job, FL2VAJob):
        return []
    from media.facts import probe_reference  # noqa: PLC0415 - as above

    notes = []
    for reference in found:
        facts = probe_reference(files[reference.place], kind="image")
        assert facts.width is not None  # a picture's
        assert facts.height is not None
        width, height = facts.width, facts.height
        if abs(math.log(width / height * job.height / job.width)) <= _SAME_SHAPE:
            continue
        is_cut = any(change.startswith("Cropped") for change in reference.changes)
        what = "its edges are cut off" if is_cut else "it is distorted"
        wide, high = _canvas_of(width, height, pixels=job.width * job.height)
        remedy = (
            f"; --width {wide} --height {high} keeps it" if (wide, high) != (job.width, job.height) else ""
        )
        notes.append(f"{reference.place}: {width}x{height} is not the film's shape, so {what}{remedy}")
    return notes


def _canvas_of(width: int, height: int, *, pixels: int) -> tuple[int, int]:
    """Return the canvas of a picture's shape with about so many pixels, its sides on the grid."""
    scale = math.sqrt(pixels / (width * height))
    return _side(width * scale), _side(height * scale)


def _side(length: float) -> int:
    on_grid = round(length / limits.SIDE_MULTIPLE) * limits.SIDE_MULTIPLE
    return min(max(on_grid, limits.SIDE_PIXELS_MIN), limits.SIDE_PIXELS_MAX)
