"""`AsyncH3Client`: the same answers, without holding up the event loop."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker.cancel import CancelOutcome
from client import AsyncH3Client
from client.client import H3Client
from queue_schemas.events import JobStatus

if TYPE_CHECKING:
    from small_node import FakeNode


def test_a_sweep_is_submitted_followed_and_read(client: H3Client, working_node: "FakeNode") -> None:
    async def use() -> tuple[list[JobStatus], list[str | None]]:
        h3 = AsyncH3Client(client)
        handle = await h3.sweep(["a fox", "a wave"], [1], fields={"checkpoint": "h3"})
        last = {status.run_id: status.status async for status in h3.follow(handle, poll_seconds=0.01)}
        assert await h3.statuses(handle) == [await h3.get(run.run_id) for run in handle.runs]
        assert await h3.find(handle.sweep_id) is not None
        return list(last.values()), [result.video for result in await h3.results(handle)]

    ends, videos = asyncio.run(use())

    assert ends == [JobStatus.SUCCEEDED] * 2
    assert all(video is not None and Path(video).read_bytes() == b"film" for video in videos)


def test_the_loop_runs_on_while_following_and_leaving_ends_the_thread(
    client: H3Client, node: "FakeNode", make_job: Callable[..., dict[str, Any]]
) -> None:
    async def use() -> int:
        h3 = AsyncH3Client(client)
        run = await h3.submit(make_job())

        async def follow() -> None:
            async for _ in h3.follow(run, poll_seconds=60):
                pass

        following, ticks = asyncio.create_task(follow()), 0
        while ticks < 20:
            await asyncio.sleep(0.005)
            ticks += 1
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        assert (await h3.cancel(run))[run.run_id] is CancelOutcome.REMOVED
        return ticks

    before = threading.active_count()
    assert asyncio.run(asyncio.wait_for(use(), timeout=20)) == 20
    assert threading.active_count() == before


def test_it_is_made_of_what_a_client_is_made_of(redis_url: str, storage: Path, node: "FakeNode") -> None:
    node.announce("h3")
    h3 = AsyncH3Client(redis_url=redis_url, storage_url=str(storage))

    (card,) = asyncio.run(h3.nodes())

    assert card.checkpoint == "h3"
