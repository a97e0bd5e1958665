"""What an id means now; its start is enough where it fits only one."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from client.client import H3Client
from client.errors import AmbiguousIdError, UnknownRunError
from queue_schemas.events import JobStatus

if TYPE_CHECKING:
    from small_node import FakeNode

MakeJob = Callable[..., dict[str, Any]]


def test_eight_characters_find_a_run_that_waits_or_has_ended_and_a_sweep(
    client: H3Client, node: "FakeNode", make_job: MakeJob, storage: Path
) -> None:
    handle = client.submit(make_job())
    assert handle.sweep_id is not None

    waiting = client.find(handle.run_id[:8])
    node.run_all()
    node.connection.flushall()
    ended = client.find(handle.run_id[:8])
    alone = H3Client(redis_url="redis://127.0.0.1:1/0", storage_url=str(storage))

    assert waiting.runs[0].run_id == ended.runs[0].run_id == handle.run_id
    assert client.find(handle.sweep_id[:-2]).runs[0].label == "a fox, seed 7"
    assert alone.find(handle.run_id[:8]).runs[0].run_id == handle.run_id
    with pytest.raises(UnknownRunError):
        client.find(handle.run_id[:7])


def test_a_start_that_fits_several_is_refused_with_some_of_them(client: H3Client, make_job: MakeJob) -> None:
    first, second = client.submit(make_job()), client.submit(make_job(), repeat=1)

    with pytest.raises(AmbiguousIdError, match=f"{first.run_id}, {second.run_id}; give more"):
        client.find(first.run_id[:10])
    assert client.find(first.run_id).runs[0].run_id == first.run_id  # a whole id is never ambiguous


def test_a_start_that_fits_very_many_is_answered_after_a_few(client: H3Client) -> None:
    for number in range(30):
        client.store.put_bytes(f"sweeps/sweep-2026-{number:02}/sweep.json", b"{}")

    with pytest.raises(
        AmbiguousIdError, match="sweep-2026-00, sweep-2026-01, sweep-2026-02 and more"
    ) as caught:
        client.find("sweep-20")
    assert len(caught.value.found) == 4
    with pytest.raises(UnknownRunError):
        client.find("x" * 300)


@pytest.mark.parametrize("name", ["sweep-2*", "********", "runs/abcdefgh", "..........", "sweep-[0-9]"])
def test_patterns_are_no_ids(client: H3Client, make_job: MakeJob, name: str) -> None:
    client.submit(make_job())

    with pytest.raises(UnknownRunError):
        client.find(name)


def test_a_sweep_and_a_run_are_found_again_by_their_ids(
    redis_url: str, storage: Path, client: H3Client, node: "FakeNode"
) -> None:
    handle = client.sweep(["a fox", "a wave"], [1], fields={"checkpoint": "h3"})
    call = node.begin()
    assert call is not None
    node.failing = {"a fox"}
    node.end(call)
    again = client.submit(call["job"])
    other = H3Client(redis_url=redis_url, storage_url=f"file://{storage}")

    found = other.find(handle.sweep_id)

    assert [(run.run_id, run.generation) for run in found.runs] == [
        (again.run_id, 2),
        (handle.runs[1].run_id, 1),
    ]
    assert [run.label for run in found.runs] == ["prompt 1: a fox, seed 1", "prompt 2: a wave, seed 1"]
    assert other.get(again.run_id).status is JobStatus.QUEUED
    assert other.get(again.run_id).generation == 2


@pytest.mark.parametrize("name", ["0" * 32, "sweep-20260101-000000-abcdef", "../x", "a b", "", "é", "a.b"])
def test_what_nobody_knows_is_an_error_that_says_where_was_looked(client: H3Client, name: str) -> None:
    with pytest.raises(UnknownRunError, match="check the id, --storage and --fleet"):
        client.find(name)
