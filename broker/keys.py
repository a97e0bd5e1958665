"""Every key name in Redis. The only place that spells one.

Our own keys begin with the fleet's name; those of rq with rq's own prefix, which an operator may move
(`RQ_KEY_PREFIX`), so it is taken from rq and never written out.
"""

import re
from typing import Final

from rq.defaults import RQ_KEY_PREFIX

from broker.errors import QueueEntryError

QUEUES_KEY: Final = f"{RQ_KEY_PREFIX}:queues"
_FLEET = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
_ENTRY = re.compile(r"[A-Za-z0-9_-]{1,200}")


def check_fleet(fleet: str) -> str:
    """Return `fleet` if it can prefix keys; raise QueueEntryError otherwise."""
    if not _FLEET.fullmatch(fleet):
        raise QueueEntryError(f"{fleet!r} is no fleet name: letters, digits, '-' and '_', at most 40")
    return fleet


def entry_id(run_id: str, generation: int) -> str:
    """Return the id under which one generation of a run lies in the queue (rq calls it the job id)."""
    if not run_id or generation < 1:
        raise QueueEntryError(f"run {run_id!r}, generation {generation}: no queue entry can be named so")
    return check_entry_id(f"{run_id}-{generation}")


def check_entry_id(entry: str) -> str:
    """Return `entry` if it can be an id: rq splits what it stores at colons, so none may hold one."""
    if not _ENTRY.fullmatch(entry):
        raise QueueEntryError(f"{entry!r:.100} is no id of a queue entry")
    return entry


def queue_name(fleet: str) -> str:
    """Return rq's name of the fleet's only queue."""
    return check_fleet(fleet)


def queue_key(fleet: str) -> str:
    return f"{RQ_KEY_PREFIX}:queue:{queue_name(fleet)}"


def leases_key(fleet: str) -> str:
    """Return rq's set of running entries, `<entry>:<execution>`, scored by when their lease runs out."""
    return f"{RQ_KEY_PREFIX}:wip:{queue_name(fleet)}"


def registry_keys(fleet: str) -> list[str]:
    """Return rq's registries of entries that have ended: finished, failed, canceled."""
    return [f"{RQ_KEY_PREFIX}:{name}:{queue_name(fleet)}" for name in ("finished", "failed", "canceled")]


def parked_key(fleet: str) -> str:
    """Return the list where an entry lies between its claim and its start."""
    return f"{queue_key(fleet)}:intermediate"


def entry_key(entry: str) -> str:
    """Return rq's hash of one entry."""
    return f"{RQ_KEY_PREFIX}:job:{entry}"


def results_key(entry: str) -> str:
    """Return rq's result stream; re-used ids would answer with an old result, so a new submit deletes it."""
    return f"{RQ_KEY_PREFIX}:results:{entry}"


def progress_key(fleet: str, entry: str) -> str:
    return f"{check_fleet(fleet)}:progress:{entry}"


def attempts_key(fleet: str, entry: str) -> str:
    """Return the counter of attempts at one entry."""
    return f"{check_fleet(fleet)}:attempts:{entry}"


def poison_key(fleet: str) -> str:
    """Return the hash of entries that no worker could read: id to reason."""
    return f"{check_fleet(fleet)}:poison"


def nodes_key(fleet: str) -> str:
    """Return the set of node names that ever announced themselves and did not say goodbye."""
    return f"{check_fleet(fleet)}:nodes"


def node_key(fleet: str, node: str) -> str:
    return f"{check_fleet(fleet)}:node:{node}"


def store_key(fleet: str) -> str:
    """Return the record of the store that the fleet's first node used."""
    return f"{check_fleet(fleet)}:store"


def checkpoint_key(fleet: str, name: str) -> str:
    """Return the record of the files that a checkpoint's name means in this fleet."""
    return f"{check_fleet(fleet)}:checkpoint:{name}"
