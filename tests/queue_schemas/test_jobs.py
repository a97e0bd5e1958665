"""The job: what is refused with which sentence, and what its identity depends on."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queue_schemas import limits
from queue_schemas.errors import InvalidRequestError
from queue_schemas.geometry import on_grid
from queue_schemas.jobs import (
    JOB_ADAPTER,
    ConventionsName,
    FL2VAJob,
    Ref2VAJob,
    Schedule,
    T2VAJob,
    build_job,
    draw_seed,
)

COMPLETE = {"prompt": "a red fox", "seed": 7, "checkpoint": "h3-tiny"}

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def build(**fields: Any) -> T2VAJob:
    job = build_job({**COMPLETE, **fields})
    assert isinstance(job, T2VAJob)
    return job


def refusal(**fields: Any) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        build(**fields)
    return str(caught.value)


def test_a_prompt_a_seed_and_a_checkpoint_are_a_job() -> None:
    job = build()

    assert (job.width, job.height, job.frames, job.steps) == (960, 544, 124, 20)
    assert (job.conventions, job.schedule) == (ConventionsName.COMFYUI, Schedule.SIMPLE)


def test_an_unknown_field_is_refused_with_the_nearest_name() -> None:
    assert refusal(step=8) == "unknown field 'step' (did you mean 'steps'?)"
    assert refusal(vae_tilesize=256) == "unknown field 'vae_tilesize' (did you mean 'vae_tile_size'?)"
    assert refusal(zzz=1) == "unknown field 'zzz'"


def test_every_fault_is_named_at_once() -> None:
    said = refusal(width=100, frames=100, step=8)

    assert "width: 100 is not a multiple of 32; the nearest are 96 and 128" in said
    assert "frames: 100 is no length the video VAE can decode (17n + 5); the nearest are 90 and 107" in said
    assert "unknown field 'step'" in said


@given(st.integers(limits.FRAMES_MIN, limits.FRAMES_MAX))
def test_a_length_off_the_grid_is_refused_naming_both_neighbours(frames: int) -> None:
    if on_grid(frames):
        assert build(frames=frames).frames == frames
        return

    said = refusal(frames=frames)

    low, high = (int(word) for word in said.rpartition("nearest are ")[2].split(" and "))
    assert low < frames < high
    assert on_grid(low)
    assert high - low == 17


@pytest.mark.parametrize("frames", [-1, 0, 4, 363, 379, 10**30])
def test_a_length_out_of_range_is_refused_naming_the_range(frames: int) -> None:
    assert refusal(frames=frames) == f"frames: {frames}; a film has 5 to 362 frames"


@pytest.mark.parametrize("field", ["width", "height"])
def test_a_side_that_is_no_multiple_of_32_is_refused_naming_both_neighbours(field: str) -> None:
    assert refusal(**{field: 545}) == f"{field}: 545 is not a multiple of 32; the nearest are 544 and 576"


@pytest.mark.parametrize("side", [-32, 0, 31, 2049, 2080])
def test_a_side_out_of_range_is_refused_naming_the_range(side: int) -> None:
    assert refusal(width=side) == f"width: {side} pixels; a side has 32 to 2048"


def test_a_canvas_longer_than_four_to_one_is_refused() -> None:
    assert build(width=512, height=128).width == 512
    assert "544x128 is longer than 4:1" in refusal(width=544, height=128)
    assert "128x544 is longer than 4:1" in refusal(width=128, height=544)


def test_a_sampler_without_meaning_under_the_conventions_is_refused_with_both_ways_out() -> None:
    said = refusal(sampler="res_multistep", conventions="diffusers")

    assert said.startswith("sampler res_multistep needs video and audio on one clock")
    assert said.endswith("use euler, or conventions comfyui")


@pytest.mark.parametrize(
    "prompt", ["", " ", "\n\t\u3000", "\u200b", " \u3000\u200b\n", "\u2060\ufeff\u00ad\u202e"]
)
def test_an_empty_prompt_is_refused(prompt: str) -> None:
    assert refusal(prompt=prompt) == "prompt: the prompt is empty"


def test_an_over_long_prompt_is_refused_with_its_count() -> None:
    assert build(prompt="🦊" * 7_000).prompt == "🦊" * 7_000
    assert refusal(prompt="x" * 7_001) == "prompt: 7,001 characters; at most 7,000 are accepted"


def test_a_prompt_that_no_encoding_carries_is_refused() -> None:
    assert refusal(prompt="a\0b") == "prompt: the prompt holds a NUL character"
    assert "lone surrogate" in refusal(prompt="a\ud800b")


@pytest.mark.parametrize(
    "prompt",
    [
        "Füchse im Schnee",
        "狐狸在雪中",
        "ثعلب",
        "👩‍👩‍👧 zero width joiner",
        "  spaced  ",
        "\u200b\ufefffox\u200b\n",
    ],
)
def test_a_prompt_of_any_script_is_kept_to_the_last_character(prompt: str) -> None:
    job = build(prompt=prompt)

    assert job.prompt == prompt
    assert JOB_ADAPTER.validate_json(job.model_dump_json()) == job


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("steps", 0),
        ("steps", 101),
        ("seed", -1),
        ("seed", 2**63),
        ("shift_video", 0),
        ("shift_video", float("nan")),
        ("shift_audio", float("inf")),
        ("sampler", "ddim"),
        ("conventions", "other"),
        ("conventions", []),
        ("vae_dtype", "bfloat16"),
        ("vae_tile_size", 100),
        ("vae_tile_size", 80),
        ("attention", "Sage 2"),
        ("checkpoint", "../weights"),
        ("checkpoint", ""),
        ("schema_version", 2),
        ("workflow", "i2v"),
        ("workflow", []),
        ("prompt", 7),
    ],
)
def test_a_value_outside_its_range_is_refused_naming_the_field(field: str, value: Any) -> None:
    assert refusal(**{field: value}).startswith(f"{field}: ")


@given(st.dictionaries(st.sampled_from([*T2VAJob.model_fields, "x", "references", "first_frame"]), anything))
def test_whatever_comes_in_is_a_job_or_one_sentence(fields: dict[str, Any]) -> None:
    try:
        job = build_job(fields, checkpoint="h3")
    except InvalidRequestError:
        return

    assert JOB_ADAPTER.validate_json(job.model_dump_json()).job_id == job.job_id


def test_a_job_never_changes() -> None:
    with pytest.raises(ValueError, match="frozen"):
        build().steps = 3


def test_golden_identities() -> None:
    full = {
        "prompt": "ein Fuchs 🦊",
        "seed": 2**63 - 1,
        "checkpoint": "h3",
        "width": 1344,
        "height": 768,
        "frames": 362,
        "steps": 8,
        "shift_video": 6,
        "vae_dtype": "float32",
    }

    # A change here makes every stored result unreachable: it is a new schema_version.
    assert build().canonical_json() == (
        '{"checkpoint":"h3-tiny","prompt":"a red fox","seed":7,"workflow":"t2va"}'
    )
    assert build().job_id == "d57416c289bd78c10941d1ff5455d7ee"
    assert build(**full, conventions="diffusers").job_id == "e6c8fb5bf44dd9927e142eb71a3047b2"
    assert build(**full, sampler="res_multistep").job_id == "8e50bf87cf32f34e3cbfb291bd2cf503"


def test_a_default_left_out_and_a_default_given_are_the_same_job() -> None:
    given = {
        "workflow": "t2va",
        "schema_version": 1,
        "width": 960,
        "height": 544,
        "frames": 124,
        "steps": 20,
        "conventions": "comfyui",
        "sampler": "euler",
        "schedule": "simple",
        "shift_video": 12,
        "shift_audio": 3.0,
        "attention": "auto",
        "vae_dtype": "float16",
        "vae_tile_size": 256,
        "loras": [],
    }

    assert set(given) | set(COMPLETE) == set(T2VAJob.model_fields)
    assert build(**given).job_id == build().job_id


def test_the_preset_supplies_the_schedule_and_an_explicit_one_wins() -> None:
    preset = build(conventions="diffusers")
    same = build(conventions="diffusers", schedule="linear")
    other = build(conventions="diffusers", schedule="simple")

    assert preset.schedule is Schedule.LINEAR
    assert preset.job_id == same.job_id
    assert other.schedule is Schedule.SIMPLE
    assert other.job_id != preset.job_id


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt", "a red fox "),
        ("seed", 8),
        ("checkpoint", "h3"),
        ("width", 928),
        ("height", 512),
        ("frames", 141),
        ("steps", 21),
        ("conventions", "diffusers"),
        ("sampler", "res_multistep"),
        ("schedule", "linear"),
        ("shift_video", 12.5),
        ("shift_audio", 12),
        ("attention", "sdpa"),
        ("vae_dtype", "float32"),
        ("vae_tile_size", 512),
    ],
)
def test_every_field_changes_the_identity(field: str, value: Any) -> None:
    assert build(**{field: value}).job_id != build().job_id


@given(st.permutations(sorted({**COMPLETE, "steps": 4, "width": 640}.items())))
def test_the_order_of_fields_does_not_change_the_identity(items: list[tuple[str, Any]]) -> None:
    assert build_job(dict(items)).job_id == build(steps=4, width=640).job_id


def test_the_identity_survives_the_queue() -> None:
    job = build(conventions="diffusers", prompt="狐狸")

    back = JOB_ADAPTER.validate_python(json.loads(json.dumps(job.model_dump(mode="json"))))

    assert back == job
    assert back.job_id == job.job_id


def test_the_workflow_is_inferred_from_the_inputs() -> None:
    keyframes = build_job({**COMPLETE, "first_frame": "a.png"})
    references = build_job({**COMPLETE, "references": [{"kind": "image", "source": "a.png"}]})

    assert isinstance(keyframes, FL2VAJob)
    assert isinstance(references, Ref2VAJob)
    with pytest.raises(InvalidRequestError, match="exclude each other"):
        build_job({**COMPLETE, "first_frame": "a.png", "references": [{"kind": "image", "source": "b"}]})


def test_a_missing_seed_is_drawn_below_two_to_the_53() -> None:
    seeds = {build_job({"prompt": "x", "checkpoint": "h3"}).seed for _ in range(20)}

    assert len(seeds) == 20
    assert max(seeds) < 2**53
    assert 0 <= draw_seed() <= limits.DRAWN_SEED_MAX


def test_a_missing_checkpoint_is_filled_or_refused() -> None:
    assert build_job({"prompt": "x"}, checkpoint="h3").checkpoint == "h3"
    assert build_job({"prompt": "x", "checkpoint": "own"}, checkpoint="h3").checkpoint == "own"
    with pytest.raises(InvalidRequestError, match="field 'checkpoint' is missing"):
        build_job({"prompt": "x"})


def test_what_leaves_the_trained_range_is_accepted_and_said() -> None:
    assert build().notes == []
    assert build(width=1344, height=768).notes == []
    assert build(width=1376, height=768).notes == ["untrained: 1376x768 exceeds 1,032,192 pixels"]
    assert build(frames=107).notes == ["untrained: 107 frames; trained on 124 to 362"]
    assert "approximate" in build(vae_tile_size=512).notes[0]
