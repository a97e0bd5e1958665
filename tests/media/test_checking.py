"""What a check says of a job: rows, labels, shares and notes, without a model."""

from pathlib import Path
from typing import Any

import pytest
import small_media

from media.checking import check_request, estimated_tokens
from media.step_cost import PAIR_ROWS, saved_share, step_work
from queue_schemas.checks import CheckReport
from queue_schemas.jobs import build_job

HASH = "ab" * 32


def check(folder: Path, **fields: Any) -> CheckReport:
    """Check a job whose sources lie in `folder`."""
    complete = {"prompt": "a fox", "seed": 7, "checkpoint": "h3", "width": 320, "height": 192, "frames": 39}
    job = build_job({**complete, **fields})
    return check_request(job, {medium.place: folder / medium.source for medium in job.media})


def picture(folder: Path, name: str, **size: int) -> dict[str, Any]:
    small_media.picture(folder / name, **size)
    return {"kind": "image", "source": name, "sha256": HASH}


def test_a_job_without_files_costs_what_its_film_does(tmp_path: Path) -> None:
    job = build_job({"prompt": "a fox", "seed": 7, "checkpoint": "h3"})

    report = check_request(job, {}, count_tokens=lambda text: 256)

    assert (report.tokens.total, report.tokens.prompt_is_estimate) == (19_540, False)
    assert (report.references, report.step_share, report.job_id) == ([], 0.0, job.job_id)
    # 753 + 547 TFLOP: linears and attention of one evaluation.
    assert step_work(19_540) * 2 * 19.268e9 == pytest.approx(1_300e12, rel=1e-3)
    assert saved_share(round(2 * PAIR_ROWS), without=round(PAIR_ROWS)) == pytest.approx(2 / 3, abs=1e-4)


def test_pictures_clips_and_sounds_are_counted_under_their_labels(tmp_path: Path) -> None:
    small_media.clip(tmp_path / "run.mp4", seconds=2.0)
    small_media.sound(tmp_path / "voice.wav", seconds=2.0)
    clip = {"kind": "video", "source": "run.mp4", "sha256": HASH}
    references = [
        {**clip, "audio": {"source": "voice.wav", "sha256": HASH}},
        {"kind": "audio", "source": "voice.wav", "sha256": HASH},
        picture(tmp_path, "fox.png", width=640, height=384),
    ]

    report = check(tmp_path, references=references, prompt="<Picture 1> as in <Video 1>, <Audio 2>")

    fox, run, voice = report.references
    assert [reference.place for reference in report.references] == [
        "references[2]",
        "references[0]",
        "references[1]",
    ]
    assert (fox.label, fox.width, fox.height) == ("<Picture 1>", 320, 192)
    assert (fox.tokens, fox.text_tokens) == (10 * 6, 6 + 10 * 6 + 2)
    assert run.sound is not None
    assert (run.label, run.sound.label, voice.label) == ("<Video 1>", "<Audio 1>", "<Audio 2>")
    assert (run.frames, run.width, run.height, run.sound.samples) == (39, 64, 64, 64_000)
    # 12 latent frames of 2 × 2 rows, and 80 latents a channel; frames 0, 12, 24 and 36 are seen as two pairs.
    assert run.tokens == 12 * 2 * 2 + 2 * 80
    assert run.text_tokens == 5 + 6 + 2 * (6 + 2 * 2 + 2)
    assert (voice.tokens, voice.text_tokens) == (160, 5)
    tokens = report.tokens
    assert tokens.text == estimated_tokens(report.job["prompt"]) + 68 + run.text_tokens + 5
    assert tokens.conditions == 60 + run.tokens + 160
    assert tokens.total == tokens.text + tokens.conditions + tokens.audio + tokens.video
    assert 0 < fox.step_share < report.step_share < 1
    assert [note.partition(":")[0] for note in report.notes] == ["untrained", "reordered"]
    assert "references[2], references[0], references[1]" in report.notes[1]
    in_order = check(tmp_path, references=references, conventions="diffusers")
    assert [reference.place for reference in in_order.references] == [f"references[{n}]" for n in range(3)]


def test_labels_and_times_count_as_the_released_vocabulary_has_them() -> None:
    from media.counting import _LABEL_TOKENS
    from model.text_encoder.tokenizer import Tokenizer

    encode = Tokenizer.built_in().encode

    assert {name: len(encode(f"<{name} 3>: ")) for name in _LABEL_TOKENS} == _LABEL_TOKENS
    assert [len(encode(f"<{time} seconds>")) for time in ("0.2", "14.8")] == [3 + 3, 4 + 3]
    prompts = [
        "A red fox trots through fresh snow; snow crunches.",
        "雪の中を赤い狐が駆ける。",
        "Рыжая лиса бежит",
    ]
    for prompt in prompts:
        assert estimated_tokens(prompt) == pytest.approx(len(encode(prompt)), rel=0.25)


@pytest.mark.parametrize(
    ("frames", "told"),
    [
        ({"first_frame": "tall.png"}, "it is distorted"),
        ({"last_frame": "tall.png", "first_frame": "wide.png"}, "its edges are cut off"),
        ({"last_frame": "wide.png"}, None),
    ],
)
def test_a_keyframe_of_another_shape_is_told_with_the_canvas_that_keeps_it(
    tmp_path: Path, frames: dict[str, str], told: str | None
) -> None:
    picture(tmp_path, "tall.png", width=192, height=320)
    picture(tmp_path, "wide.png", width=641, height=384)
    fields = {place: {"source": name, "sha256": HASH} for place, name in frames.items()}

    report = check(tmp_path, frames=124, **fields)

    tall = next((place for place, name in frames.items() if name == "tall.png"), None)
    what = f"{tall}: 192x320 is not the film's shape, so {told}; --width 192 --height 320 keeps it"
    assert report.notes == ([what] if told else [])
    assert [(reference.place, reference.label) for reference in report.references] == [
        (place, f"<Picture {number}>") for number, place in enumerate(sorted(frames), start=1)
    ]
    assert {reference.tokens for reference in report.references} == {10 * 6}


def test_notes_name_what_the_prompt_lacks_a_short_sound_and_an_unfit_checkpoint(tmp_path: Path) -> None:
    small_media.sound(tmp_path / "voice.wav", seconds=2.0)
    references = [
        picture(tmp_path, "fox.png", width=582, height=1200),
        {"kind": "audio", "source": "voice.wav", "sha256": HASH},
    ]

    report = check(
        tmp_path,
        references=references,
        prompt="<Picture 2> speaks like <Audio 1>",
        frames=124,
        checkpoint="minimax_h3_fl2va_pruned_bf16",
    )

    assert report.notes == [
        "the prompt names <Picture 2>; there are <Audio 1>, <Picture 1>",
        "references[1]: 2.0 s of sound for a film of 5.2 s, which is legal: a sound is heard as an example",
        "minimax_h3_fl2va_pruned_bf16 was trained for fl2va; a node refuses ref2va on it",
    ]
    assert report.memory.weights_min_bytes == 40_225_724_176 + 14_952_506_624 + 5_207_808_496 + 605_254_808
    assert report.references[0].changes == ["Scaled from 582x1200 to 160x352 pixels."]
