"""Keyframes and references in whole films of h3-tiny: what they change, what proves them, what is refused."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_prepared as small
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from media.prepared import PreparedMedia
from model.base import Generation
from model.errors import (
    EncoderMissingError,
    GenerationCancelledError,
    ReferenceUnusedError,
    TransformerTaskError,
)
from model.pipeline import H3Pipeline
from model.startup import load_pipeline
from queue_schemas.events import ProgressEvent, Stage
from queue_schemas.jobs import Job, build_job

pytestmark = pytest.mark.usefixtures("one_thread")

Film = Callable[..., Generation]
SHA = "ab" * 32


def job_of(media: Sequence[PreparedMedia], **fields: Any) -> Job:
    """The job whose media these are."""

    def stored(each: PreparedMedia) -> dict[str, Any]:
        return {"source": f"references/{each.sha256}.bin", "sha256": each.sha256}

    asked: dict[str, Any] = {"prompt": "a fox", "width": 64, "height": 32, "frames": 22, "steps": 1}
    if any(each.place.endswith("_frame") for each in media):
        asked |= {each.place: stored(each) for each in media}
    else:
        asked["references"] = [{"kind": each.kind, **stored(each)} for each in media]
    return build_job({**asked, "seed": 7, "checkpoint": "h3-tiny", **fields})


@pytest.fixture(scope="module")
def film(pipeline: H3Pipeline) -> Film:
    def make(*media: PreparedMedia, **fields: Any) -> Generation:
        return pipeline.generate(
            job_of(media, **fields), media, on_progress=lambda _: None, cancelled=lambda: False
        )

    return make


def mixed() -> list[PreparedMedia]:
    own = small.sound("references[1]", samples=2_500)
    return [
        small.sound("references[0]", samples=1_700),
        small.clip("references[1]", sound=own),
        small.picture("references[2]", width=32, height=96),
        small.clip("references[3]", frames=5, width=32),
    ]


@pytest.mark.parametrize(
    ("conventions", "order", "labels"),
    [
        ("comfyui", [2, 1, 3, 0], ["<Picture 1>", "<Video 1>", "<Video 2>", "<Audio 2>"]),
        ("diffusers", [0, 1, 2], ["<Audio 1>", "<Video 1>", "<Picture 1>"]),
    ],
)
def test_each_reference_has_a_receipt_in_packed_order(
    film: Film, conventions: str, order: list[int], labels: list[str]
) -> None:
    media = mixed()[: len(order)]  # diffusers takes no clip of 5 frames

    made = film(*media, conventions=conventions)

    receipts = made.references
    assert [receipt.place for receipt in receipts] == [f"references[{n}]" for n in order]
    assert [receipt.label for receipt in receipts] == labels
    assert [receipt.sha256 for receipt in receipts] == [media[n].sha256 for n in order]
    stops = [receipt.rows[1] for receipt in receipts]
    assert [receipt.rows[0] for receipt in receipts] == [made.tokens.text, *stops[:-1]]
    assert [receipt.rows[1] - receipt.rows[0] for receipt in receipts] == [r.tokens for r in receipts]
    assert made.tokens.conditions == stops[-1] - made.tokens.text
    assert made.prompt is not None
    assert made.prompt.tokens == made.tokens.text
    assert sum(receipt.text_tokens for receipt in receipts) == made.tokens.text - len("a fox")
    by_place = {receipt.place: receipt for receipt in receipts}
    clip, picture = by_place["references[1]"], by_place["references[2]"]
    sound_latents = {"comfyui": (3, 2), "diffusers": (4, 3)}[conventions]  # cut off, or filled up
    assert (clip.width, clip.height, clip.frames, clip.tokens) == (64, 32, 22, 7 * 2 + 2 * sound_latents[0])
    assert clip.sound is not None
    assert (clip.sound.tokens, clip.sound.sha256, clip.sound.samples) == (2 * sound_latents[0], None, 2_500)
    assert (picture.width, picture.height, picture.frames, picture.tokens) == (32, 96, 1, 3)
    assert (by_place["references[0]"].samples, by_place["references[0]"].tokens) == (
        1_700,
        2 * sound_latents[1],
    )
    hashes = {receipt.latent_sha256 for receipt in receipts} | {clip.sound.latent_sha256}
    assert len(hashes) == len(receipts) + 1


def test_every_reference_reaches_the_film_and_the_same_ones_give_the_same_bits(film: Film) -> None:
    media = mixed()
    base, again = film(*media, frames=5), film(*media, frames=5)

    assert np.array_equal(base.frames, again.frames)
    assert np.array_equal(base.waveform, again.waveform)
    assert base.references == again.references
    other_sound = replace(media[1], sound=small.sound("references[1]", samples=2_500, seed=9))
    for place, other in enumerate(
        [
            small.sound("references[0]", samples=1_700, seed=9),
            other_sound,
            small.picture("references[2]", width=32, height=96, seed=9),
            small.clip("references[3]", frames=5, width=32, seed=9),
        ]
    ):
        changed = film(*media[:place], other, *media[place + 1 :], frames=5)
        assert not np.array_equal(changed.frames, base.frames), place
        assert changed.prompt != base.prompt or place in (0, 1)  # sounds are not shown


def test_keyframes_have_receipts_and_each_end_is_another_film(film: Film) -> None:
    first, last = small.picture("first_frame"), small.picture("last_frame", seed=2)

    both, alone = film(first, last), film(replace(first, place="last_frame"))

    assert [(r.place, r.label, r.tokens) for r in both.references] == [
        ("first_frame", "<Picture 1>", 2),
        ("last_frame", "<Picture 2>", 2),
    ]
    started = film(first)
    assert alone.prompt == started.prompt
    assert not np.array_equal(alone.frames, started.frames)


def test_a_film_from_text_alone_has_a_receipt_of_its_prompt(pipeline: H3Pipeline) -> None:
    job = build_job(
        {"prompt": "a fox", "width": 64, "height": 32, "frames": 5, "steps": 1, "checkpoint": "h3-tiny"}
    )

    made = pipeline.generate(job, on_progress=lambda _: None, cancelled=lambda: False)

    assert made.references == []
    assert made.tokens.conditions == 0
    assert made.prompt is not None
    assert made.prompt.tokens == len("a fox")


def test_encoding_references_is_a_stage_that_counts_and_takes_time(pipeline: H3Pipeline) -> None:
    media, events = mixed(), []

    made = pipeline.generate(job_of(media), media, on_progress=events.append, cancelled=lambda: False)

    stages = list(dict.fromkeys(event.stage for event in events))
    assert stages[:3] == [Stage.TEXT_ENCODE, Stage.REFERENCE_ENCODE, Stage.DENOISE]
    counted = [(event.step, event.steps) for event in events if event.stage is Stage.REFERENCE_ENCODE]
    assert counted == [(n, 4) for n in range(5)]
    assert made.seconds.reference_encode


@pytest.mark.parametrize("asked_before", [1, 2, 3])
def test_a_cancel_stops_before_the_next_frames_are_encoded(pipeline: H3Pipeline, asked_before: int) -> None:
    media: list[PreparedMedia] = [small.clip("references[0]", frames=39)]
    events: list[ProgressEvent] = []
    asked = 0

    def cancelled() -> bool:
        nonlocal asked
        asked += 1
        return asked > asked_before  # 1: the text; 2: the clip; 3 and on: its pieces

    with pytest.raises(GenerationCancelledError, match="before step 1"):
        pipeline.generate(job_of(media, frames=39), media, on_progress=events.append, cancelled=cancelled)

    assert asked == asked_before + 1
    assert events[-1] == ProgressEvent(stage=Stage.REFERENCE_ENCODE, steps=1)


def test_a_reference_that_did_not_come_is_named(pipeline: H3Pipeline) -> None:
    media = mixed()

    with pytest.raises(ReferenceUnusedError, match=r"references\[2\] conditions nothing: it did not reach"):
        pipeline.generate(
            job_of(media), [*media[:2], media[3]], on_progress=lambda _: None, cancelled=lambda: False
        )


def silenced(module: nn.Module) -> nn.Module:
    """The same module with nothing but zeros, as a loader that reads nothing would leave it."""
    for parameter in module.parameters():
        parameter.data.zero_()
    return module


@pytest.mark.parametrize(
    ("dead", "place"),
    [
        ("video_encoder", r"references\[1\]"),
        ("audio_encoder", r"references\[0\]"),
        ("visual", r"references\[1\]"),
    ],
)
def test_a_reference_that_an_encoder_makes_nothing_of_ends_the_job(tiny: Path, dead: str, place: str) -> None:
    pipeline = load_pipeline(models_dir=tiny, device="cpu")
    models = pipeline.models
    silenced(models.text_encoder.model.visual if dead == "visual" else getattr(models, dead))
    media = [small.sound("references[0]"), small.picture("references[1]")]

    with pytest.raises(ReferenceUnusedError, match=rf"{place} conditions nothing: .*empty"):
        pipeline.generate(job_of(media), media, on_progress=lambda _: None, cancelled=lambda: False)


def test_a_black_picture_and_a_silent_sound_are_references_too(film: Film) -> None:
    black = small.picture("references[0]", pixels=np.zeros((32, 64, 3), np.uint8))
    silence = small.sound("references[1]", values=np.zeros((2, 4_000), np.float32))

    made = film(black, silence)

    assert [receipt.tokens for receipt in made.references] == [2, 10]


def test_a_file_without_an_encoder_is_told_before_anything_runs(pipeline: H3Pipeline) -> None:
    models = replace(pipeline.models, video_encoder=None, audio_encoder=None)
    poor = H3Pipeline(models, pipeline.files, device=torch.device("cpu"))

    deaf = H3Pipeline(
        replace(models, video_encoder=pipeline.models.video_encoder), pipeline.files, device=poor.device
    )

    with pytest.raises(EncoderMissingError, match="video VAE"):
        poor.check(job_of([small.picture("first_frame")]))
    with pytest.raises(EncoderMissingError, match="audio VAE"):
        deaf.check(job_of(mixed()))


def test_a_clip_whose_sound_has_no_encoder_is_told_before_anything_is_encoded(pipeline: H3Pipeline) -> None:
    deaf = H3Pipeline(
        replace(pipeline.models, audio_encoder=None), pipeline.files, device=torch.device("cpu")
    )
    media = [small.clip("references[0]", sound=small.sound("references[0]"))]
    heard: list[ProgressEvent] = []

    with pytest.raises(EncoderMissingError, match="audio VAE"):
        deaf.generate(job_of(media), media, on_progress=heard.append, cancelled=lambda: False)

    assert heard == []


@pytest.mark.parametrize(("task", "refused"), [("fl2va", "ref2va"), ("ref2va", "fl2va"), (None, None)])
def test_a_transformer_of_another_task_is_refused_and_t2va_runs_on_either(
    pipeline: H3Pipeline, task: Any, refused: str | None
) -> None:
    files = replace(pipeline.files, transformer_task=task)
    own = H3Pipeline(pipeline.models, files, device=torch.device("cpu"))
    jobs = {
        "t2va": build_job({"prompt": "a fox", "checkpoint": "h3-tiny"}),
        "fl2va": job_of([small.picture("first_frame")]),
        "ref2va": job_of([small.picture("references[0]")]),
    }

    for workflow, job in jobs.items():
        if workflow == refused:
            with pytest.raises(TransformerTaskError, match=f"'h3-tiny' has the transformer for {task}"):
                own.check(job)
        else:
            own.check(job)


def test_of_two_transformers_the_workflow_chooses(tiny: Path, tmp_path: Path) -> None:
    tensors = load_file(tiny / "diffusion_models" / "h3-tiny.safetensors")
    tensors["blocks.0.mlp.fc2.weight"] *= -1
    save_file(tensors, tmp_path / "refs.safetensors")
    names = {"fl2va": "h3-tiny", "ref2va": "refs.safetensors"}
    resident = {"name": "both", "transformer": names, "text_encoder": "h3-tiny-qwen3vl"}
    (tmp_path / "both.json").write_text(json.dumps(resident))
    both, own, other = (
        load_pipeline(models_dir=tiny, checkpoint=checkpoint, device="cpu")
        for checkpoint in (str(tmp_path / "both.json"), "h3-tiny", str(tmp_path / "refs.safetensors"))
    )

    def frames(pipeline: H3Pipeline, media: list[PreparedMedia]) -> Any:
        job = job_of(media, checkpoint=pipeline.files.name, frames=5)
        return pipeline.generate(job, media, on_progress=lambda _: None, cancelled=lambda: False).frames

    keyframe, picture = small.picture("first_frame"), small.picture("references[0]")
    assert np.array_equal(frames(both, [keyframe]), frames(own, [keyframe]))
    assert np.array_equal(frames(both, [picture]), frames(other, [picture]))
    assert not np.array_equal(frames(both, [picture]), frames(own, [picture]))
    checkpoint = both.card().checkpoint
    assert checkpoint.transformer_task is None
    assert [file.role for file in checkpoint.files if "transformer" in file.role] == [
        "transformer",
        "ref2va_transformer",
    ]


@pytest.mark.gpu
def test_on_a_gpu_references_give_the_same_film_and_the_same_receipts_twice(
    tiny: Path, pipeline: H3Pipeline
) -> None:
    own, media = load_pipeline(models_dir=tiny, device="cuda"), mixed()
    job = job_of(media, steps=3)

    first, second, on_cpu = (
        each.generate(job, media, on_progress=lambda _: None, cancelled=lambda: False)
        for each in (own, own, pipeline)
    )

    assert np.array_equal(first.frames, second.frames)
    assert first.references == second.references
    rows = [(r.place, r.rows, r.text_tokens) for r in first.references]
    assert rows == [(r.place, r.rows, r.text_tokens) for r in on_cpu.references]
