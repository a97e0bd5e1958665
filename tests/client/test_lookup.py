"""The start of an id is enough where it fits only one."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from client.client import H3Client
from client.errors import AmbiguousIdError, UnknownRunError

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
