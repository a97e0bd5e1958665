"""Dead letters: bounded when they are written, and what is none does not hide the others."""

import redis

from broker import keys
from broker.lease import Lease, settle
from broker.letters import DeadLetter, dead_letters
from queue_schemas import limits
from queue_schemas.events import JobStatus


def end(connection: redis.Redis, entry: str, *, reason: str = "internal: broken", log: str = "") -> None:
    """End an entry at its second attempt, as whoever holds its lease does."""
    lease = Lease(queue="h3-normal", entry=entry, execution="x", number=2, used=2)
    connection.zadd(keys.leases_key(lease.queue), {lease.member: 1})
    letter = DeadLetter(entry=entry, attempt=2, reason=reason, log=log)
    assert settle(connection, lease, status=JobStatus.FAILED, fleet="h3", dead_letter=letter)


def test_the_newest_letters_come_first_with_the_end_of_their_logs(redis_connection: redis.Redis) -> None:
    for number in range(4):
        end(redis_connection, f"run{number}-1", log=f"step 1\nbroke at {number}")

    newest, other = dead_letters(redis_connection, most=2)

    assert newest == DeadLetter(
        entry="run3-1", attempt=2, reason="internal: broken", log="step 1\nbroke at 3"
    )
    assert other.entry == "run2-1"


def test_a_letter_is_bounded_and_one_that_cannot_be_read_is_left_out(redis_connection: redis.Redis) -> None:
    end(redis_connection, "long-1", reason="r" * 10_000, log="a" * 10_000 + "the end")
    redis_connection.rpush(keys.dead_key("h3"), b"\xff", '{"entry": "old-1", "reason": "no attempt"}', "[]")

    (letter,) = dead_letters(redis_connection, most=9)

    assert len(letter.reason) == 500
    assert len(letter.log) == limits.LOG_TAIL_CHARACTERS
    assert letter.log.endswith("the end")
