"""LoRAs of a job: part of its identity and its needs, and what it takes over from what they were made for."""

from typing import Any

import pytest

from queue_schemas.errors import InvalidRequestError
from queue_schemas.jobs import JOB_ADAPTER, JobFields, build_job
from queue_schemas.loras import AppliedLora, LoraCard, applied_loras, lora_notes, parse_lora
from queue_schemas.runs import RunKey, needs_of

TURBO = LoraCard(
    name="turbo", file="turbo.safetensors", header_sha256="ab" * 32, matched_modules=208,
    matched_tensors=624, num_tensors=624, steps=4, shift_video=6.0, shift_audio=3.0,
)  # fmt: skip
STYLE = TURBO.model_copy(update={"name": "style", "steps": None, "shift_video": None, "shift_audio": None})


def job(*, cards: tuple[LoraCard, ...] = (TURBO, STYLE), **fields: Any) -> JobFields:
    return build_job({"prompt": "a red fox", "seed": 7, **fields}, checkpoint="night", loras=cards)


def test_a_job_without_loras_keeps_the_id_it_had_before_there_were_any() -> None:
    assert "loras" not in job().canonical_json()
    assert job().job_id == job(cards=()).job_id == "9c2864e68fa2388aba687f8afa8b5ca1"


def test_names_strengths_and_order_are_part_of_the_identity() -> None:
    turbo, style = {"name": "turbo"}, {"name": "style", "strength": 0.5}
    known = {"steps": 4, "shift_video": 6.0}

    ids = {
        job(**known, loras=asked).job_id
        for asked in ([], [turbo], [{"name": "turbo", "strength": 0.5}], [turbo, style], [style, turbo])
    }

    assert len(ids) == 5
    assert job(loras=[turbo]).job_id == job(loras=[{"name": "turbo", "strength": 1}]).job_id
    zero, minus_zero = ([{"name": "turbo", "strength": strength}] for strength in (0.0, -0.0))
    assert job(loras=zero).job_id == job(loras=minus_zero).job_id


def test_a_job_travels_as_json_and_comes_back_the_same() -> None:
    asked = job(loras=[{"name": "turbo", "strength": 0.8}])

    assert JOB_ADAPTER.validate_python(asked.model_dump(mode="json")) == asked


def test_a_known_lora_supplies_steps_and_shifts_where_the_caller_gave_none() -> None:
    asked = job(loras=[{"name": "style"}, {"name": "turbo"}], shift_video=12.0)

    assert (asked.steps, asked.shift_video, asked.shift_audio) == (4, 12.0, 3.0)
    assert lora_notes(asked, [TURBO]) == ["LoRA turbo was made for shift_video 6; this job has 12"]
    assert (job(loras=[{"name": "style"}]).steps, lora_notes(job(), [TURBO])) == (20, [])


def test_a_lora_at_strength_0_warns_of_nothing() -> None:
    assert lora_notes(job(loras=[{"name": "turbo", "strength": 0}], steps=20), [TURBO]) == []


def test_a_job_needs_nodes_that_have_its_loras() -> None:
    asked = job(loras=[{"name": "turbo"}, {"name": "style"}])

    assert needs_of(asked, RunKey()) == ["checkpoint:night", "lora:style", "lora:turbo"]


def test_the_record_says_which_file_at_which_strength() -> None:
    asked = job(loras=[{"name": "turbo", "strength": 0.8}])

    (applied,) = applied_loras(asked, [STYLE, TURBO])

    assert isinstance(applied, AppliedLora)
    assert (applied.name, applied.strength, applied.matched_tensors) == ("turbo", 0.8, 624)
    assert applied.header_sha256 == "ab" * 32


@pytest.mark.parametrize(
    ("loras", "says"),
    [
        ([{"name": "a"}, {"name": "a", "strength": 0.5}], "names one twice"),
        ([{"name": "a", "strength": 11}], "loras.0.strength"),
        ([{"name": "a", "strength": "1"}], "loras.0.strength"),
        ([{"name": "../a"}], "loras.0.name"),
        ([{"name": "a", "weight": 1}], "loras.0.weight"),
        ("turbo", "loras"),
        ([{"name": f"l{n}"} for n in range(9)], "at most 8"),
    ],
)
def test_loras_that_cannot_be_meant_are_refused(loras: Any, says: str) -> None:
    with pytest.raises(InvalidRequestError, match=says):
        job(loras=loras)


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("turbo", {"name": "turbo"}),
        ("turbo:0.8", {"name": "turbo", "strength": 0.8}),
        ("v1.0_768p:-1", {"name": "v1.0_768p", "strength": -1.0}),
    ],
)
def test_a_lora_is_written_as_a_name_with_or_without_a_strength(text: str, fields: dict[str, Any]) -> None:
    assert parse_lora(text) == fields


def test_a_strength_that_is_no_number_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"turbo:0\.8"):
        parse_lora("turbo:much")
