"""The engine's HTTP, over real sockets."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from engine_server import served
from fake_pipeline import FakePipeline

from queue_schemas import limits
from worker.doors import Doors
from worker.engine import Engine
from worker.service import EngineSlot

MakeFields = Callable[..., dict[str, Any]]
TOKEN = "a-token-of-some-length"


@pytest.fixture
def http(engine_url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=engine_url, timeout=30, trust_env=False) as client:
        yield client


def test_ready_describes_the_engine(http: httpx.Client, tmp_path: Path) -> None:
    answer = http.get("/ready")

    assert answer.status_code == 200
    assert answer.json()["checkpoint"]["name"] == "h3-fake"
    assert answer.json()["output_root"] == str(tmp_path / "engine")


def test_ready_is_503_with_a_reason_while_the_engine_loads() -> None:
    with served(EngineSlot(message="loading the transformer"), Doors()) as url:
        answer = httpx.get(f"{url}/ready", trust_env=False)
        refused = httpx.post(f"{url}/generate", json={}, trust_env=False)

    assert (answer.status_code, answer.json()["message"]) == (503, "loading the transformer")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "busy")


def test_a_flat_body_without_workflow_seed_and_checkpoint_is_complete(
    http: httpx.Client, make_fields: MakeFields
) -> None:
    fields = make_fields()
    body = {name: fields[name] for name in ("prompt", "width", "height", "frames", "steps")}

    answer = http.post("/generate", json=body | {"output": "fox.mp4"})

    assert answer.status_code == 200
    assert answer.json()["output"] == "fox.mp4"
    assert answer.json()["job"]["checkpoint"] == "h3-fake"
    assert answer.json()["job"]["seed"] >= 0


def test_ndjson_tells_every_step_and_ends_with_the_result(
    http: httpx.Client, make_fields: MakeFields
) -> None:
    answer = http.post("/generate", json=make_fields(), headers={"Accept": "application/x-ndjson"})

    events = [json.loads(line) for line in answer.text.splitlines()]
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    assert [event.get("step") for event in events if event.get("stage") == "denoise"] == [1, 2, 3]
    assert events[-1]["event"] == "result"
    assert events[-1]["result"]["media"]["frames"] == 5


def test_a_failing_job_ends_its_stream_with_the_error(http: httpx.Client, make_fields: MakeFields) -> None:
    body = make_fields(prompt="poison")

    streamed = http.post("/generate", json=body, headers={"Accept": "application/x-ndjson"})
    plain = http.post("/generate", json=body)

    last = json.loads(streamed.text.splitlines()[-1])
    assert (last["event"], last["error"]["code"]) == ("error", "internal")
    assert (plain.status_code, plain.json()["error"]["code"]) == (500, "internal")


@pytest.mark.parametrize(
    ("changes", "status", "code", "says"),
    [
        ({"frames": 6}, 422, "invalid_request", "5 and 22"),
        ({"width": 33}, 422, "invalid_request", "32 and 64"),
        ({"prompt": " "}, 422, "invalid_request", "empty"),
        ({"framez": 5}, 422, "invalid_request", "did you mean 'frames'"),
        ({"output": "../fox.mp4"}, 422, "invalid_request", "output root"),
        ({"checkpoint": "other"}, 409, "checkpoint_mismatch", "h3-fake"),
        (
            {"workflow": "fl2va", "first_frame": "fox.png"},
            422,
            "reference_unreadable",
            "first_frame (fox.png)",
        ),
    ],
)
def test_bad_input_is_one_sentence_with_a_status_and_nothing_is_written(
    *,
    http: httpx.Client,
    make_fields: MakeFields,
    tmp_path: Path,
    changes: dict[str, Any],
    status: int,
    code: str,
    says: str,
) -> None:
    answer = http.post("/generate", json=make_fields(**changes))

    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert says in answer.json()["error"]["message"]
    assert not (tmp_path / "engine").exists()


@pytest.mark.parametrize("body", [b"[1]", b"{", b'{"a": NaN}', b'{"a":1,"a":2}', b"\xff", b"[" * 5000])
def test_a_body_that_is_no_plain_json_object_is_refused(http: httpx.Client, body: bytes) -> None:
    answer = http.post("/generate", content=body, headers={"Content-Type": "application/json"})

    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid_request")


def test_a_form_from_a_web_page_is_refused(http: httpx.Client, make_fields: MakeFields) -> None:
    text = json.dumps(make_fields())

    as_text = http.post("/generate", content=text, headers={"Content-Type": "text/plain"})
    foreign = http.post("/generate", json=make_fields(), headers={"Origin": "https://example.test"})
    rebound = http.post("/generate", json=make_fields(), headers={"Host": "example.test:8033"})

    assert (as_text.status_code, foreign.status_code, rebound.status_code) == (415, 403, 403)


@pytest.mark.parametrize(
    "origin",
    [
        "http://[",
        "null",
        "",
        "http://localhost.example.test",
        "file://localhost",
        "chrome-extension://localhost",
        "http://example.test@localhost",
        "http://localhost/example.test",
    ],
)
def test_an_origin_that_is_not_this_machine_is_refused_whatever_it_looks_like(
    http: httpx.Client, make_fields: MakeFields, origin: str
) -> None:
    assert http.post("/generate", json=make_fields(), headers={"Origin": origin}).status_code == 403
    assert http.get("/ready", headers={"Origin": "http://127.0.0.1:3000"}).status_code == 200


@pytest.mark.parametrize("path", ["/generate", "/generate/", "/nowhere"])
@pytest.mark.parametrize(
    "host", ["example.test@localhost", "localhost/example.test", "localhost:", "", "::1"]
)
def test_a_host_that_only_looks_like_this_machine_is_refused_everywhere(
    http: httpx.Client, path: str, host: str
) -> None:
    answer = http.post(path, json={}, headers={"Host": host})

    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "invalid_request")


def test_two_origins_are_refused_and_each_name_of_this_machine_is_not(http: httpx.Client) -> None:
    two = httpx.Headers([("Origin", "http://localhost"), ("Origin", "https://example.test")])

    assert http.get("/ready", headers=two).status_code == 403
    for host in ("localhost", "LOCALHOST:8033", "[::1]:8033", "127.0.0.1:1"):
        assert http.get("/ready", headers={"Host": host, "Origin": f"http://{host}"}).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"), [("POST", "/generate/", 404), ("GET", "/generate", 405), ("GET", "/x", 404)]
)
def test_what_is_not_served_is_a_json_error_too(
    http: httpx.Client, method: str, path: str, status: int
) -> None:
    answer = http.request(method, path)

    assert (answer.status_code, answer.json()["error"]["code"]) == (status, "invalid_request")
    assert answer.json()["error"]["message"].startswith(f"{method} {path}: ")


@pytest.mark.parametrize("path", ["/generate", "/reserve/confirm"])
def test_a_caller_that_leaves_in_the_middle_of_its_body_is_no_error_of_the_engine(
    http: httpx.Client, path: str, caplog: pytest.LogCaptureFixture, eventually: Callable[..., None]
) -> None:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection((http.base_url.host, http.base_url.port)) as caller:
        caller.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
        eventually(lambda: http.get("/ready").status_code == 200, what="the service has read the head")

    for _ in range(3):  # each takes a turn of the loop that also hears of the caller's end
        assert http.get("/ready").status_code == 200
    assert "ClientDisconnect" not in caplog.text


def test_an_oversized_body_is_refused_by_its_length_and_by_its_bytes(http: httpx.Client) -> None:
    headers = {"Content-Type": "application/json"}
    body = b'{"prompt": "' + b"x" * limits.BODY_BYTES + b'"}'

    announced = http.post("/generate", content=body, headers=headers)
    chunked = http.post("/generate", content=iter([body[:100], body[100:]]), headers=headers)

    assert announced.status_code == 413
    assert (chunked.status_code, chunked.json()["error"]["code"]) == (422, "invalid_request")


def test_beyond_loopback_every_request_needs_the_token(engine: Engine, make_fields: MakeFields) -> None:
    with served(EngineSlot(engine), Doors("0.0.0.0", TOKEN)) as url:
        without = httpx.get(f"{url}/ready", trust_env=False)
        wrong = httpx.get(f"{url}/ready", headers={"Authorization": "Bearer no"}, trust_env=False)
        right = httpx.get(f"{url}/ready", headers={"Authorization": f"Bearer {TOKEN}"}, trust_env=False)

    assert (without.status_code, wrong.status_code, right.status_code) == (401, 401, 200)


def test_a_caller_that_goes_away_cancels_its_job_at_the_next_step(
    http: httpx.Client,
    engine: Engine,
    pipeline: FakePipeline,
    make_fields: MakeFields,
    eventually: Callable[..., None],
) -> None:
    headers = {"Accept": "application/x-ndjson"}
    body = make_fields(prompt="hold", steps=100)

    with http.stream("POST", "/generate", json=body, headers=headers) as answer:
        lines = answer.iter_lines()  # kept: its end would close the connection before the step
        next(lines)
        eventually(pipeline.in_step.is_set, what="the job is in a step")

    eventually(pipeline.is_asked_to_stop, what="the service has noticed")
    assert engine.ready().busy  # the step goes on
    pipeline.release.set()
    eventually(lambda: pipeline.cancelled == 1, what="the job has stopped")
    assert pipeline.steps_run == 1
    eventually(lambda: not engine.ready().busy, what="the engine is free")


def test_a_caller_that_waits_for_plain_json_can_go_away_too(
    engine_url: str,
    pipeline: FakePipeline,
    make_fields: MakeFields,
    eventually: Callable[..., None],
) -> None:
    body = json.dumps(make_fields(prompt="hold", steps=100)).encode()
    head = (
        f"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", int(engine_url.rpartition(":")[2]))) as caller:
        caller.sendall(head.encode() + body)
        eventually(pipeline.in_step.is_set, what="the job is in a step")

    eventually(pipeline.is_asked_to_stop, what="the service has noticed")
    pipeline.release.set()
    eventually(lambda: pipeline.cancelled == 1, what="the job has stopped")
    assert pipeline.steps_run == 1


def test_a_third_job_is_told_that_the_engine_is_busy_and_ready_still_answers(
    http: httpx.Client,
    engine: Engine,
    pipeline: FakePipeline,
    make_fields: MakeFields,
    eventually: Callable[..., None],
) -> None:
    calls = [
        threading.Thread(
            target=http.post, args=("/generate",), kwargs={"json": make_fields(prompt="hold", seed=s)}
        )
        for s in (1, 2)
    ]
    for call in calls:
        call.start()
    eventually(pipeline.in_step.is_set, what="the first job is in a step")
    eventually(lambda: engine._in_flight == 2, what="the second job waits")

    third = http.post("/generate", json=make_fields(seed=3))

    assert (third.status_code, third.json()["error"]["code"]) == (503, "busy")
    assert third.json()["error"]["retryable"]
    assert http.get("/ready").json()["busy"]
    pipeline.release.set()
    for call in calls:
        call.join(20)
