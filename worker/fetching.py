"""A puller's part of gathering: the references of an attempt, before the engine hears of it."""

import time

from storage.base import ArtifactStore
from storage.links import LinkRules
from worker.attempt import Attempt
from worker.engine_client import EngineAddress
from worker.gathering import Gathered, Sources, gather
from worker.reference_folder import ReferenceFolder
from worker.storing import until_stored


def fetch_references(
    attempt: Attempt, *, store: ArtifactStore, links: LinkRules, engine: EngineAddress, seconds: float
) -> Gathered:
    """Have a prepared attempt's files on this node; the result holds them there.

    A store that is away is waited for, so long and without the engine's slot. Raises what `gather` raises.
    """
    job = attempt.job
    assert job is not None, "prepare comes first"
    sources = Sources(folder=ReferenceFolder(attempt.output_root), store=store, links=links)

    def act() -> Gathered:
        started = time.monotonic()
        try:
            return gather(job, sources)
        finally:
            if job.media:
                attempt.fetch_seconds = time.monotonic() - started

    gathered = until_stored(
        act,
        seconds=seconds,
        what=f"job {attempt.run_id}",
        on_wait=lambda: attempt.release_slot(engine),
    )
    attempt.job = gathered.job
    return gathered
