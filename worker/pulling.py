"""One puller from its settings: what `h3-worker pull` runs."""

import gc
from pathlib import Path

from broker.connection import connect, queue_errors
from storage.links import DEFAULT_RULES, LinkRules
from storage.uri import open_known_store
from worker.engine_client import EngineAddress, EngineClient
from worker.leasing import LeaseTimes
from worker.offers import offers_of
from worker.puller import make_puller
from worker.settings import Settings
from worker.slot import SlotDoor
from worker.spool import Spool
from worker.spool_gate import SpoolGate
from worker.tasks import TaskContext
from worker.turns import decides_by_itself, fleet_store_id


def pull_until_signal(
    settings: Settings,
    *,
    engine_seconds: float,
    times: LeaseTimes | None = None,
    links: LinkRules = DEFAULT_RULES,
) -> None:
    """Take jobs from Redis, one at a time, to the engine on this machine; it is waited for so long at first.

    Raises QueueUnavailableError, EngineLostError, StorageError.
    """
    connection = connect(settings.redis_url)
    address = EngineAddress(settings.engine_url or f"http://127.0.0.1:{settings.port}", settings.api_token)
    with EngineClient(address) as engine:
        ready = engine.wait_ready(seconds=engine_seconds)
    store_id = fleet_store_id(settings.storage_url, connection, fleet=settings.fleet)
    context = TaskContext(
        engine=address,
        storage_url=settings.storage_url,
        store_id=store_id,
        fleet=settings.fleet,
        offers=offers_of(ready, node=ready.environment.node),
        takes_turns=not decides_by_itself(settings.storage_url, store_id=store_id),
        times=times or LeaseTimes(),
        links=links,
    )
    gc.collect()
    gc.freeze()  # job processes share these objects' memory as long as no collection writes into it
    with SlotDoor(address) as door, queue_errors(connection):
        store = open_known_store(settings.storage_url, identity=store_id)
        gate = SpoolGate(Spool(Path(ready.output_root)), probe=store.conditional_writes)
        name = ready.environment.node
        puller = make_puller(connection, context=context, name=name, door=door, may_claim=gate.is_open)
        puller.work(logging_level="WARNING")
