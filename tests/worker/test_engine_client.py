"""The job process's side of the engine: patience with one that starts or is busy, and errors with a code."""

import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest
import redis
from engine_server import served
from fake_pipeline import FakePipeline

from broker.states import read_states
from queue_schemas.errors import ErrorCode
from queue_schemas.events import ProgressEvent, Stage
from queue_schemas.results import EngineReady
from worker.attempt import Attempt, make_film, prepare
from worker.doors import Doors
from worker.engine import Engine
from worker.engine_client import EngineAddress, EngineClient
from worker.errors import EngineAnswerError, EngineBusyError, EngineLostError, EngineNotReadyError
from worker.relay import ProgressRelay
from worker.service import EngineSlot

MakeFields = Callable[..., dict[str, Any]]
Eventually = Callable[..., None]


def ignore(_: ProgressEvent) -> None:
    return


def test_an_engine_that_is_still_loading_is_waited_for(engine: Engine) -> None:
    slot = EngineSlot(message="loading the transformer")
    with served(slot, Doors()) as url, EngineClient(EngineAddress(url)) as client:
        with pytest.raises(EngineLostError, match="loading the transformer"):
            client.wait_ready(seconds=0)

        slot.engine = engine

        assert client.wait_ready(seconds=5).checkpoint.name == "h3-fake"


def test_an_absent_engine_is_engine_lost_with_its_address(free_port: int) -> None:
    url = f"http://127.0.0.1:{free_port}"
    with EngineClient(EngineAddress(url)) as client, pytest.raises(EngineLostError, match=url):
        client.ready()


def test_a_busy_engine_is_asked_again_until_it_is_free(
    engine_url: str,
    engine: Engine,
    pipeline: FakePipeline,
    make_fields: MakeFields,
    eventually: Eventually,
) -> None:
    engine.take_seat()
    engine.take_seat()  # one running, one waiting
    with EngineClient(EngineAddress(engine_url)) as client:
        with pytest.raises(EngineBusyError):
            client.generate(make_fields(), on_event=ignore, busy_seconds=0)

        free = threading.Timer(0.1, engine._leave_gpu, (None,))
        free.start()

        assert client.generate(make_fields(), on_event=ignore, busy_seconds=20).evaluations == 3
    free.join()


def test_the_engines_own_error_arrives_word_for_word(engine_url: str, make_fields: MakeFields) -> None:
    with EngineClient(EngineAddress(engine_url)) as client:
        for body in (make_fields(frames=6), make_fields(prompt="poison")):
            with pytest.raises(EngineAnswerError) as caught:
                client.generate(body, on_event=ignore, busy_seconds=0)
            assert caught.value.error.code in (ErrorCode.INVALID_REQUEST, ErrorCode.INTERNAL)
            assert caught.value.error.message


class FarClient(EngineClient):
    """As if the engine wrote into a folder of another machine."""

    def wait_ready(self, *, seconds: float) -> EngineReady:
        ready = super().wait_ready(seconds=seconds)
        return ready.model_copy(update={"output_root": f"{ready.output_root}-elsewhere"})


def test_an_engine_on_another_machine_is_told_as_such(engine_url: str, make_fields: MakeFields) -> None:
    attempt = Attempt(run_id="ab" * 16, generation=1, number=1, fields=make_fields(), queue_wait_seconds=None)

    with FarClient(EngineAddress(engine_url)) as far:
        prepare(attempt, engine=far, on_event=ignore, engine_seconds=5)
        with pytest.raises(EngineLostError, match="on this machine"):
            make_film(attempt, engine=far, on_event=ignore, engine_seconds=5)

    assert "video" not in attempt.files


def test_steps_are_relayed_at_most_every_quarter_second_but_stages_at_once(
    redis_connection: redis.Redis,
) -> None:
    relay = ProgressRelay(redis_connection, "ab-1", fleet="h3")

    def shown() -> ProgressEvent | None:
        return read_states(redis_connection, ["ab-1"])[0].progress

    for step in (1, 2):
        relay(ProgressEvent(stage=Stage.DENOISE, step=step, steps=3))
    assert shown() == ProgressEvent(stage=Stage.DENOISE, step=1, steps=3)

    relay(ProgressEvent(stage=Stage.DENOISE, step=3, steps=3))
    assert shown() == ProgressEvent(stage=Stage.DENOISE, step=3, steps=3)

    relay(ProgressEvent(stage=Stage.MUX))
    assert shown() == ProgressEvent(stage=Stage.MUX)


def test_progress_that_cannot_be_written_does_not_end_the_job(free_port: int) -> None:
    with redis.Redis(port=free_port, retry=None) as nobody:
        ProgressRelay(nobody, "ab-1", fleet="h3")(ProgressEvent(stage=Stage.MUX))


def test_an_engine_that_accepts_and_says_nothing_is_not_ready_yet() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = EngineAddress(f"http://127.0.0.1:{silent.getsockname()[1]}")

        with EngineClient(address) as engine, pytest.raises(EngineNotReadyError) as caught:
            engine.ready(seconds=0.2)

    assert caught.value.reason.startswith("no answer in")
