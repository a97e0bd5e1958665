"""The body of POST /generate, and the JSON that may carry it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queue_schemas import limits
from queue_schemas.errors import InvalidRequestError
from queue_schemas.requests import check_output_name, load_json_object, parse_request

BODY = {"prompt": "a red fox", "seed": 7, "checkpoint": "h3-tiny"}


def load(text: str | bytes, *, limit_bytes: int = limits.BODY_BYTES) -> dict[str, Any]:
    return load_json_object(
        text.encode(errors="surrogatepass") if isinstance(text, str) else text, limit_bytes=limit_bytes
    )


def refusal(text: str | bytes, *, limit_bytes: int = limits.BODY_BYTES) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        load(text, limit_bytes=limit_bytes)
    return str(caught.value)


def test_a_flat_body_is_split_into_job_and_delivery() -> None:
    request = parse_request({**BODY, "steps": 4, "output": "fox/take1.mp4", "dry_run": True})

    assert request.job.steps == 4
    assert (request.output, request.delivery.dry_run) == ("fox/take1.mp4", True)
    assert request.job.job_id == parse_request({**BODY, "steps": 4}).job.job_id


def test_the_output_is_named_after_the_job_when_left_out() -> None:
    request = parse_request(BODY)

    assert request.output == f"{request.job.job_id}.mp4"


def test_an_unknown_field_of_a_body_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(InvalidRequestError, match=r"unknown field 'heigth' \(did you mean 'height'\?\)"):
        parse_request({**BODY, "heigth": 64})


@pytest.mark.parametrize("name", ["a.mp4", "a/b.mp4", "Füchse im Schnee.mp4", "a..b.mp4", "x" * 196 + ".mp4"])
def test_a_relative_mp4_name_is_accepted(name: str) -> None:
    assert parse_request({**BODY, "output": name}).output == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/etc/passwd.mp4",
        "../a.mp4",
        "a/../../b.mp4",
        "..",
        "a\\..\\b.mp4",
        "C:a.mp4",
        "a\0.mp4",
        "a\n.mp4",
        "a.avi",
        "a",
        ".mp4",
        "x" * 197 + ".mp4",
        "a\ud800.mp4",
    ],
)
def test_an_output_that_leaves_the_root_or_is_no_mp4_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError, match="output: "):
        parse_request({**BODY, "output": name})


@given(st.text(st.sampled_from("./\\:ab~\0 "), max_size=12).map(lambda text: text + ".mp4"))
def test_an_accepted_output_name_stays_below_the_root(name: str) -> None:
    try:
        accepted = check_output_name(name)
    except ValueError:
        return

    parts = accepted.split("/")
    assert not accepted.startswith("/")
    assert ".." not in parts
    assert "\\" not in accepted


def test_json_that_is_too_long_is_refused_with_both_sizes() -> None:
    assert refusal('{"a": "' + "x" * 100 + '"}', limit_bytes=50) == (
        "109 bytes of JSON; at most 50 are accepted"
    )
    assert load('{"a":1}', limit_bytes=7) == {"a": 1}


def test_the_limit_counts_bytes_not_characters() -> None:
    assert "bytes of JSON" in refusal('{"a":"' + "狐" * 20 + '"}', limit_bytes=50)


def test_the_same_key_twice_is_refused() -> None:
    assert refusal('{"steps": 4, "steps": 8}') == "not valid JSON: the same key twice in one object"
    assert "twice" in refusal('{"a": {"b": 1, "b": 1}}')


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_a_number_that_json_does_not_have_is_refused(number: str) -> None:
    assert refusal(f'{{"seed": {number}}}') == f"not valid JSON: {number} is no JSON number"


@pytest.mark.parametrize("text", ["", "[1]", '"x"', "null", "{", "{'a': 1}", b"\xff\xfe", '{"a": 1} {}'])
def test_what_is_no_json_object_is_refused(text: str | bytes) -> None:
    assert refusal(text)


def test_json_nested_too_deep_is_refused() -> None:
    assert "nested deeper than 16" in refusal('{"a":' * 17 + "1" + "}" * 17)
    assert refusal('{"a":' * 100_000 + "1" + "}" * 100_000)
    assert refusal('{"a":' + "[" * 100_000 + "]" * 100_000 + "}")
    assert load('{"a":' * 16 + "1" + "}" * 16, limit_bytes=200)


def test_a_number_of_absurd_length_is_refused() -> None:
    assert refusal('{"seed": ' + "9" * 10_000 + "}")


@given(st.binary(max_size=60) | st.text(max_size=60))
def test_whatever_text_comes_is_an_object_or_one_sentence(text: str | bytes) -> None:
    try:
        value = load(text, limit_bytes=1_000)
    except InvalidRequestError:
        return

    assert isinstance(value, dict)


@given(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5) | st.none(), max_size=5))
def test_an_object_comes_back_as_it_was(value: dict[str, Any]) -> None:
    assert load(json.dumps(value), limit_bytes=10_000) == value
