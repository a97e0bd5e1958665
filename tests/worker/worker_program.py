"""A puller or a janitor as a program of its own, with times that a test can wait for.

Arguments: `pull` or `janitor`, and JSON that replaces fields of LeaseTimes. Everything else is in the
environment, as for `h3-worker`.
"""

import json
import logging
import sys

from broker.connection import connect
from worker.engine_client import EngineAddress, EngineClient
from worker.janitor import run_janitor
from worker.leasing import LeaseTimes
from worker.offers import offers_of
from worker.puller import make_puller
from worker.settings import read_settings
from worker.slot import SlotDoor
from worker.tasks import TaskContext

SHORT = LeaseTimes(
    lease_seconds=1.5,
    beat_seconds=0.3,
    patience_seconds=20.0,
    cancel_poll_seconds=0.05,
    backoff_seconds=0.05,
    tick_seconds=0.3,
    due_seconds=0.05,
)


def main() -> None:
    """Run until a signal."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    settings, _ = read_settings()
    fields = {name: getattr(SHORT, name) for name in SHORT.__slots__}
    times = LeaseTimes(**{**fields, **json.loads(sys.argv[2] if len(sys.argv) > 2 else "{}")})
    connection = connect(settings.redis_url)
    if sys.argv[1] == "janitor":
        run_janitor(connection, storage_url=settings.storage_url, fleet=settings.fleet, times=times)
        return
    assert settings.engine_url is not None
    address = EngineAddress(settings.engine_url)
    with EngineClient(address) as engine:
        ready = engine.wait_ready(seconds=20)
    context = TaskContext(
        engine=address,
        storage_url=settings.storage_url,
        fleet=settings.fleet,
        offers=offers_of(ready, node=ready.environment.node),
        times=times,
    )
    with SlotDoor(address) as door:
        make_puller(connection, context=context, name="test", door=door).work(logging_level="WARNING")


if __name__ == "__main__":
    main()
