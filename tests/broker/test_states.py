"""States, progress and node cards as others read them."""

import pytest
import redis
import rq.job

from broker import keys
from broker.errors import QueueEntryError
from broker.nodes import announce, live_nodes, withdraw
from broker.progress import PROGRESS_TTL_SECONDS, write_progress
from broker.states import STATUS_OF_RQ, RunState, find_entries, read_states
from broker.submit import QueuedRun, submit_runs
from queue_schemas.events import JobStatus, ProgressEvent, Stage
from queue_schemas.nodes import NodeCard


def test_every_state_that_rq_knows_is_mapped() -> None:
    assert set(STATUS_OF_RQ) == set(rq.job.JobStatus)


def test_states_come_back_in_the_order_asked_with_their_progress(redis_connection: redis.Redis) -> None:
    submit_runs(
        redis_connection, [QueuedRun(run_id=name, generation=1, job={"prompt": "x"}) for name in ("a", "b")]
    )
    redis_connection.hset(keys.entry_key("b-1"), "status", "started")
    event = ProgressEvent(stage=Stage.DENOISE, step=3, steps=20, seconds=0.5)
    write_progress(redis_connection, "b-1", event=event)

    states = read_states(redis_connection, ["b-1", "nowhere-1", "a-1"])

    assert states == [
        RunState(entry_id="b-1", status=JobStatus.RUNNING, progress=event),
        RunState(entry_id="nowhere-1", status=None, progress=None),
        RunState(entry_id="a-1", status=JobStatus.QUEUED, progress=None),
    ]


def test_foreign_keys_and_bad_values_do_not_hide_other_entries(redis_connection: redis.Redis) -> None:
    submit_runs(redis_connection, [QueuedRun(run_id="a", generation=1, job={"prompt": "x"})])
    redis_connection.set(keys.entry_key("bad-1"), "not a hash")
    redis_connection.hset(keys.entry_key("odd-1"), mapping={"status": b"\xff\xfe"})
    redis_connection.hset(keys.progress_key("h3", "odd-1"), mapping={"stage": "nonsense"})

    states = read_states(redis_connection, ["bad-1", "odd-1", "a-1"])

    assert [state.status for state in states] == [None, None, JobStatus.QUEUED]
    assert [state.progress for state in states] == [None, None, None]


def test_progress_expires_by_itself(redis_connection: redis.Redis) -> None:
    write_progress(redis_connection, "a-1", event=ProgressEvent(stage=Stage.MUX), ttl_seconds=60)

    assert 0 < redis_connection.ttl(keys.progress_key("h3", "a-1")) <= 60


@pytest.fixture
def card() -> NodeCard:
    return NodeCard(
        node="spark-1",
        checkpoint="h3-tiny",
        weights="random",
        device="cpu",
        attention_backends=["sdpa"],
        started_at="2026-01-01T00:00:00Z",
    )


def test_an_announced_node_is_live_until_its_card_ends(redis_connection: redis.Redis, card: NodeCard) -> None:
    announce(redis_connection, card, ttl_seconds=60)
    redis_connection.sadd(keys.nodes_key("h3"), "long-dead")

    assert live_nodes(redis_connection) == [card]
    assert 0 < redis_connection.ttl(keys.node_key("h3", "spark-1")) <= 60

    withdraw(redis_connection, "spark-1")

    assert live_nodes(redis_connection) == []


def test_fleets_do_not_see_each_other(redis_connection: redis.Redis, card: NodeCard) -> None:
    announce(redis_connection, card, ttl_seconds=60, fleet="night")

    assert live_nodes(redis_connection, fleet="day") == []
    assert live_nodes(redis_connection, fleet="night") == [card]


def test_the_age_of_progress_is_told(redis_connection: redis.Redis) -> None:
    write_progress(redis_connection, "a-1", event=ProgressEvent(stage=Stage.MUX))
    redis_connection.pexpire("h3:progress:a-1", (PROGRESS_TTL_SECONDS - 90) * 1_000)

    old, none = read_states(redis_connection, ["a-1", "b-1"])

    assert old.progress_age_seconds == pytest.approx(90, abs=5)
    assert none.progress_age_seconds is None


def test_entries_are_found_by_the_start_of_their_id(redis_connection: redis.Redis) -> None:
    for entry in ("abc-1", "abd-1", "xabc-1"):
        redis_connection.hset(f"rq:job:{entry}", "status", "queued")

    assert find_entries(redis_connection, "ab") == ["abc-1", "abd-1"]
    with pytest.raises(QueueEntryError):
        find_entries(redis_connection, "a*")
