"""How a bad request is told: every fault with its field, a bounded number of them, in bounded time."""

import json
import time
from typing import Any

import pytest
from pydantic import ValidationError

from queue_schemas import limits
from queue_schemas.errors import InvalidRequestError, explain, nearest_hint
from queue_schemas.jobs import build_job
from queue_schemas.requests import load_json_object, parse_request
from queue_schemas.resident import ResidentSet

COMPLETE = {"prompt": "a red fox", "seed": 7, "checkpoint": "h3-tiny"}


def refusal(fields: dict[str, Any]) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        parse_request(fields)
    return str(caught.value)


def test_as_many_misspelt_fields_as_a_body_holds_are_answered_at_once_and_briefly() -> None:
    names = [f"stps{number:05}" for number in range(62_000)]
    body = json.dumps({**COMPLETE, **dict.fromkeys(names, 1)}).encode()
    assert limits.BODY_BYTES * 0.9 < len(body) < limits.BODY_BYTES

    fields = load_json_object(body, limit_bytes=limits.BODY_BYTES)
    began = time.perf_counter()
    said = refusal(fields)

    assert time.perf_counter() - began < 2.0  # 0.2 s alone on one core; it was 3 to 7
    assert said.startswith("unknown field 'stps00000'; unknown field 'stps00001'; ")
    assert said.endswith(f"and {62_000 - limits.FAULTS_TOLD:,} more faults")
    assert len(said) < 1_000


@pytest.mark.parametrize(
    "fault",
    [
        {"steps" * 100_000: 1},
        {"workflow": "t2va" * 100_000},
        {"sampler": "euler" * 100_000},
        {"references": [{"kind": "image", "source": "a", "x" * 500_000: 1}]},
        {"first_frame": "a", "x" * 500_000: 1},
        {"output": "a" * 500_000},
        {"attention": "a" * 500_000},
    ],
)
def test_a_name_or_value_of_any_length_is_told_briefly(fault: dict[str, Any]) -> None:
    said = refusal({**COMPLETE, **fault})

    assert len(said) <= limits.FAULT_CHARACTERS + 100


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ('{"seed": ' + "1" * 5_000 + "}", "a number of 5,000 characters; at most 400 are read"),
        ("[" * 100_000, "JSON nested deeper than 16 levels"),
        ("null", "expected a JSON object, found null"),
        ("[1]", "expected a JSON object, found an array"),
        ("true", "expected a JSON object, found a boolean"),
        ('{"loras": {}}', "loras: expected a list"),
        ('{"loras": ["turbo"]}', "loras.0: expected an object with named fields"),
        ('{"references": ["fox.png"]}', "references.0: expected an object with named fields"),
    ],
)
def test_what_json_holds_is_told_in_words_of_json(body: str, says: str) -> None:
    with pytest.raises(InvalidRequestError, match=says) as caught:
        parse_request({**COMPLETE, **load_json_object(body.encode(), limit_bytes=limits.BODY_BYTES)})

    for python in ("sys.", "recursion", "tuple", "instance", "NoneType"):
        assert python not in str(caught.value)


def test_a_long_name_gets_no_hint_and_costs_nothing() -> None:
    began = time.perf_counter()

    assert nearest_hint("steps" * 2_000_000, ["steps"]) == ""
    assert time.perf_counter() - began < 0.1


@pytest.mark.parametrize("name", ["t2va", "fl2va", "ref2va"])
def test_a_field_that_is_named_as_a_workflow_keeps_its_name(name: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"unknown field '{name}'"):
        build_job({**COMPLETE, name: 1})
    with pytest.raises(ValidationError) as caught:
        ResidentSet.model_validate({"name": "a", "transformer": {"fl2va": 1}, "text_encoder": "t", name: 1})

    assert explain(caught.value).split("; ") == [
        "transformer.fl2va: Input should be a valid string",
        f"unknown field '{name}'",
    ]


def test_a_fault_of_the_whole_job_has_no_field() -> None:
    assert refusal({**COMPLETE, "width": 544, "height": 128}).startswith("544x128 is longer than 4:1")
