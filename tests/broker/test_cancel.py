"""Cancelling: at once for what waits, a lasting request for what runs, never against another sweep."""

import pytest
import redis

from broker import keys
from broker.cancel import CancelOutcome, cancel_runs, is_cancelled
from broker.claim import Claimant, Idle, claim
from broker.errors import QueueEntryError
from broker.lease import Lease, requeue, settle
from broker.states import read_states
from broker.submit import QueuedRun, submit_runs
from queue_schemas.events import JobStatus
from queue_schemas.runs import Submission

NODE = Claimant(fleet="h3", offers=(), worker="test", lease_seconds=60)


def submit(connection: redis.Redis, run_id: str = "ab", *, sweep_id: str | None = None) -> None:
    submission = Submission(sweep_id=sweep_id)
    submit_runs(connection, [QueuedRun(run_id=run_id, generation=1, job={}, submission=submission)])


def take(connection: redis.Redis) -> Lease:
    lease = claim(connection, NODE)
    assert isinstance(lease, Lease)
    return lease


def test_what_waits_is_taken_out(redis_connection: redis.Redis) -> None:
    submit(redis_connection)
    submit(redis_connection, "other")

    assert cancel_runs(redis_connection, ["ab-1"]) == [CancelOutcome.REMOVED]

    assert read_states(redis_connection, ["ab-1"])[0].status is JobStatus.CANCELLED
    assert take(redis_connection).entry == "other-1"
    assert isinstance(claim(redis_connection, NODE), Idle)
    assert cancel_runs(redis_connection, ["ab-1"]) == [CancelOutcome.ENDED]


def test_what_waits_for_its_next_attempt_is_taken_out(redis_connection: redis.Redis) -> None:
    submit(redis_connection)
    requeue(redis_connection, take(redis_connection), delay_seconds=60, counts=True, fleet="h3")

    assert cancel_runs(redis_connection, ["ab-1"]) == [CancelOutcome.REMOVED]
    assert redis_connection.zcard(keys.due_key("h3")) == 0


def test_what_runs_is_asked_to_stop_by_a_key_that_lasts(redis_connection: redis.Redis) -> None:
    submit(redis_connection)
    take(redis_connection)
    assert not is_cancelled(redis_connection, "ab-1", fleet="h3")

    assert cancel_runs(redis_connection, ["ab-1"]) == [CancelOutcome.SIGNALLED]

    assert is_cancelled(redis_connection, "ab-1", fleet="h3")
    assert redis_connection.ttl(keys.cancel_key("h3", "ab-1")) > 6 * 86_400
    assert read_states(redis_connection, ["ab-1"])[0].status is JobStatus.RUNNING
    assert cancel_runs(redis_connection, ["ab-1"]) == [CancelOutcome.SIGNALLED]


def test_ended_unknown_and_foreign_entries_are_told_apart(redis_connection: redis.Redis) -> None:
    submit(redis_connection)
    settle(redis_connection, take(redis_connection), status=JobStatus.SUCCEEDED, fleet="h3")
    submit_runs(redis_connection, [QueuedRun(run_id="night", generation=1, job={})], fleet="night")
    redis_connection.set(keys.entry_key("text-1"), "x")

    outcomes = cancel_runs(redis_connection, ["ab-1", "never-1", "night-1", "text-1"])

    unknown = CancelOutcome.UNKNOWN
    assert outcomes == [CancelOutcome.ENDED, unknown, unknown, unknown]
    assert redis_connection.llen(keys.queue_key("night")) == 1
    with pytest.raises(QueueEntryError):
        cancel_runs(redis_connection, ["a:b"])


def test_a_run_goes_on_until_the_last_sweep_that_wants_it_lets_go(redis_connection: redis.Redis) -> None:
    submit(redis_connection, sweep_id="one")
    submit(redis_connection, sweep_id="two")

    def cancel(sweep_id: str | None) -> CancelOutcome:
        return cancel_runs(redis_connection, ["ab-1"], sweep_id=sweep_id)[0]

    assert cancel(None) is CancelOutcome.KEPT_FOR_OTHERS
    assert cancel("one") is CancelOutcome.KEPT_FOR_OTHERS
    assert cancel("one") is CancelOutcome.KEPT_FOR_OTHERS
    assert cancel("two") is CancelOutcome.REMOVED


def test_force_cancels_whoever_wants_it(redis_connection: redis.Redis) -> None:
    submit(redis_connection, sweep_id="one")
    submit(redis_connection, sweep_id="two")

    assert cancel_runs(redis_connection, ["ab-1"], sweep_id="one", force=True) == [CancelOutcome.REMOVED]


def test_a_new_wish_for_a_run_that_is_being_cancelled_takes_the_request_back(
    redis_connection: redis.Redis,
) -> None:
    submit(redis_connection, sweep_id="one")
    take(redis_connection)
    cancel_runs(redis_connection, ["ab-1"], sweep_id="one")

    submit(redis_connection, sweep_id="two")

    assert not is_cancelled(redis_connection, "ab-1", fleet="h3")


def test_hundreds_are_cancelled_in_the_order_asked(redis_connection: redis.Redis) -> None:
    runs = [QueuedRun(run_id=f"run{number}", generation=1, job={}) for number in range(450)]
    submit_runs(redis_connection, runs)
    take(redis_connection)

    outcomes = cancel_runs(redis_connection, [run.entry_id for run in runs])

    assert outcomes == [CancelOutcome.SIGNALLED] + [CancelOutcome.REMOVED] * 449
    assert isinstance(claim(redis_connection, NODE), Idle)
