"""The engine's next slot: one holder, open when the running job is nearly done, never kept for long."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from clock import Clock
from fake_pipeline import FakePipeline

from queue_schemas.benchmark import BenchmarkRecord
from queue_schemas.events import ProgressEvent, Stage
from queue_schemas.requests import GenerateRequest
from worker import next_slot
from worker.attempt import Attempt, make_film, make_record, prepare
from worker.engine import Engine
from worker.engine_client import EngineAddress, EngineClient
from worker.errors import EngineAnswerError, EngineBusyError, ReservationLostError, SlotClosedError
from worker.next_slot import NextSlot
from worker.pace import Paces
from worker.slot import SlotDoor

MakeFields = Callable[..., dict[str, Any]]
MakeRequest = Callable[..., GenerateRequest]
Eventually = Callable[..., None]


@pytest.fixture
def slot(clock: Clock) -> NextSlot:
    return NextSlot(clock=clock)


def ignore(_: ProgressEvent) -> None:
    return


def never() -> bool:
    return False


def test_one_caller_holds_the_slot_and_an_unconfirmed_one_for_two_seconds(
    slot: NextSlot, clock: Clock
) -> None:
    first, seconds = slot.reserve(remaining_seconds=0.0)
    with pytest.raises(SlotClosedError, match="another puller"):
        slot.reserve(remaining_seconds=0.0)

    clock.now += seconds

    second, _ = slot.reserve(remaining_seconds=0.0)
    assert (seconds, first != second) == (2.0, True)
    with pytest.raises(ReservationLostError):
        slot.confirm(first, "run-1")


def test_the_slot_opens_when_less_is_left_than_a_preparation_takes(slot: NextSlot, clock: Clock) -> None:
    for too_early in (30.1, None):
        with pytest.raises(SlotClosedError, match="running job"):
            slot.reserve(remaining_seconds=too_early)
    token, _ = slot.reserve(remaining_seconds=29.9)
    slot.confirm(token, "run-1")
    clock.now += 4.0
    slot.present(token)

    assert slot.preparation_seconds == 4.0 + next_slot.MARGIN_SECONDS
    with pytest.raises(SlotClosedError):
        slot.reserve(remaining_seconds=29.9)
    assert slot.reserve(remaining_seconds=4.9)


def test_a_confirmed_slot_lives_by_renewal_and_120_seconds_at_most(slot: NextSlot, clock: Clock) -> None:
    token, _ = slot.reserve(remaining_seconds=0.0)
    slot.confirm(token, "run-1")

    lifetimes = []
    for _ in range(11):
        clock.now += 10.0
        lifetimes.append(slot.renew(token))
    clock.now += 10.0

    assert lifetimes == [*[15.0] * 10, 10.0]
    with pytest.raises(ReservationLostError):
        slot.renew(token)
    assert not slot.held


def test_a_confirmed_slot_whose_holder_died_is_free_after_one_missed_beat(
    slot: NextSlot, clock: Clock
) -> None:
    token, _ = slot.reserve(remaining_seconds=0.0)
    slot.confirm(token, "run-1")

    clock.now += next_slot.BEAT_SECONDS

    assert not slot.held
    assert slot.reserve(remaining_seconds=0.0)


def test_only_its_holder_can_give_a_slot_back(slot: NextSlot) -> None:
    token, _ = slot.reserve(remaining_seconds=0.0)

    slot.release("00" * 16)
    assert slot.held
    slot.release(token)

    assert not slot.held


def test_a_job_tells_what_is_left_by_its_steps_and_by_the_job_before(
    make_request: MakeRequest, clock: Clock
) -> None:
    paces = Paces(clock=clock)
    job = make_request(steps=4).job

    first = paces.start(job)
    assert first.remaining_seconds is None  # nobody has made such a film here
    clock.now += 1.0
    for step in (1, 2):
        clock.now += 2.0
        first.note(ProgressEvent(stage=Stage.DENOISE, step=step, steps=4, seconds=2.0))
    assert first.remaining_seconds == 4.0
    clock.now += 1.5
    assert first.remaining_seconds == 2.5
    clock.now += 2.5
    first.note(ProgressEvent(stage=Stage.DENOISE, step=4, steps=4, seconds=2.0))
    clock.now += 3.0
    paces.finish(first)

    second = paces.start(job)
    assert second.remaining_seconds == 1.0 + 4 * 2.0 + 3.0
    clock.now += 100.0
    assert second.remaining_seconds == 0.0


def test_a_kept_seat_is_nobody_elses(engine: Engine, make_request: MakeRequest) -> None:
    reservation = engine.reserve().reservation
    engine.take_seat()
    with pytest.raises(EngineBusyError):
        engine.take_seat()

    engine.take_seat(reservation)

    with pytest.raises(SlotClosedError, match="a job holds"):
        engine.reserve()


def test_two_jobs_at_once_wait_for_each_other_outside_every_other_figure(
    engine: Engine, pipeline: FakePipeline, make_request: MakeRequest, eventually: Eventually
) -> None:
    with ThreadPoolExecutor(2) as threads:
        calls = [
            threads.submit(
                engine.generate, make_request(prompt="hold", seed=s), on_event=ignore, cancelled=never
            )
            for s in (1, 2)
        ]
        eventually(lambda: engine._in_flight == 2, what="both are in the engine")
        eventually(pipeline.in_step.is_set, what="the first is in a step")
        threads_waited = not pipeline.release.wait(0.4)
        pipeline.release.set()
        first, second = sorted((call.result().seconds for call in calls), key=lambda s: s.engine_wait or 0.0)

    assert threads_waited
    assert first.engine_wait is not None
    assert first.engine_wait < 0.2
    assert second.engine_wait is not None
    assert second.engine_wait >= 0.4
    assert first.engine_total is not None
    assert first.engine_total >= 0.4
    assert second.engine_total is not None
    assert second.engine_total < second.engine_wait


def test_the_wait_behind_another_job_is_in_no_total_of_a_record(
    engine_url: str, pipeline: FakePipeline, make_fields: MakeFields, tmp_path: Path, eventually: Eventually
) -> None:

    def make(seed: int) -> BenchmarkRecord:
        fields = make_fields(prompt="hold", steps=1, seed=seed)
        attempt = Attempt(
            run_id=f"{seed:032x}", generation=1, number=1, fields=fields, queue_wait_seconds=None
        )
        with EngineClient(EngineAddress(engine_url)) as client:
            prepare(attempt, engine=client, on_event=ignore, engine_seconds=5)
            make_film(attempt, engine=client, on_event=ignore, engine_seconds=5)
        return make_record(attempt, error=None)

    with ThreadPoolExecutor(2) as threads:
        calls = [threads.submit(make, seed) for seed in (1, 2)]
        eventually(pipeline.in_step.is_set, what="the first is in a step")
        assert not pipeline.release.wait(0.5)
        pipeline.release.set()
        first, second = sorted((call.result().seconds for call in calls), key=lambda s: s.engine_wait or 0.0)

    assert second.engine_wait is not None
    assert second.engine_wait > 0.4
    assert first.total is not None
    assert first.total > 0.5
    assert second.total is not None
    assert second.total < first.total


def test_over_http_a_slot_is_reserved_confirmed_kept_and_presented(
    engine_url: str, make_fields: MakeFields
) -> None:
    address = EngineAddress(engine_url)
    with SlotDoor(address) as door, SlotDoor(address) as other, EngineClient(address) as engine:
        token = door.reserve()
        assert token is not None
        assert other.reserve() is None
        slot = door.confirm(token, run_id="ab12")
        assert slot.engine.output_root == engine.ready().output_root
        assert door.renew(slot)
        assert engine.renew(token).seconds > 2.0

        made = engine.generate(make_fields(), on_event=ignore, busy_seconds=0, reservation=token)

        assert made.evaluations == 3
        assert not door.renew(slot)
        again = other.reserve()
        assert again is not None
        other.release(again)
        assert door.reserve() is not None


def test_over_http_a_job_that_is_refused_keeps_no_slot(engine_url: str, make_fields: MakeFields) -> None:
    address = EngineAddress(engine_url)
    with SlotDoor(address) as door, EngineClient(address) as engine:
        token = door.reserve()
        assert token is not None
        door.confirm(token, run_id="a")
        gone = make_fields(workflow="fl2va", first_frame=f"references/{'ab' * 32}.png")

        with pytest.raises(EngineAnswerError, match="not known here"):
            engine.generate(gone, on_event=ignore, busy_seconds=0, reservation=token)

        assert door.reserve() is not None


def test_over_http_a_lost_reservation_is_told_from_a_busy_engine(
    engine_url: str, engine: Engine, make_fields: MakeFields
) -> None:
    with EngineClient(EngineAddress(engine_url)) as client:
        mine = client.reserve().reservation
        client.release(mine)
        for act in (
            lambda: client.renew(mine),
            lambda: client.confirm(mine, run_id="ab12"),
            lambda: client.generate(make_fields(), on_event=ignore, busy_seconds=0, reservation=mine),
        ):
            with pytest.raises(ReservationLostError, match="no longer keeps"):
                act()
        with pytest.raises(EngineAnswerError, match="reservation"):
            client.renew("no token")
        engine.take_seat()
        engine.take_seat()
        with pytest.raises(SlotClosedError):
            client.reserve()


def test_without_an_engine_there_is_no_slot(free_port: int) -> None:
    with SlotDoor(EngineAddress(f"http://127.0.0.1:{free_port}")) as door:
        assert door.reserve() is None
