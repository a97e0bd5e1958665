"""Every key name in Redis. The only place that spells one.

Our own keys begin with the fleet's name; those of rq with rq's own prefix, which an operator may move
(`RQ_KEY_PREFIX`), so it is taken from rq and never written out. Scripts get the beginnings of keys from here.
"""

import re
from collections.abc import Sequence
from typing import Final

from rq.defaults import RQ_KEY_PREFIX
from rq.worker_registration import REDIS_WORKER_KEYS, WORKERS_BY_QUEUE_KEY

from broker.errors import QueueEntryError
from queue_schemas.runs import Priority, needs_digest

QUEUES_KEY: Final = f"{RQ_KEY_PREFIX}:queues"
"""rq's set of every queue, for its own tools."""
WORKERS_KEY: Final = REDIS_WORKER_KEYS
"""rq's set of the keys of every worker, for its own tools."""
LIST_PREFIX: Final = f"{RQ_KEY_PREFIX}:queue:"
LEASES_PREFIX: Final = f"{RQ_KEY_PREFIX}:wip:"
ENTRY_PREFIX: Final = f"{RQ_KEY_PREFIX}:job:"
EXECUTION_PREFIX: Final = f"{RQ_KEY_PREFIX}:execution:"
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


def parse_entry_id(entry: str) -> tuple[str, int]:
    """Return (run_id, generation). Raises QueueEntryError."""
    run_id, _, generation = check_entry_id(entry).rpartition("-")
    if not run_id or not (generation.isascii() and generation.isdecimal()) or int(generation) < 1:
        raise QueueEntryError(f"{entry!r:.100} names no generation of a run")
    return run_id, int(generation)


def check_entry_id(entry: str) -> str:
    """Return `entry` if it can be an id: rq splits what it stores at colons, so none may hold one."""
    if not _ENTRY.fullmatch(entry):
        raise QueueEntryError(f"{entry!r:.100} is no id of a queue entry")
    return entry


def queue_name(fleet: str, priority: Priority = Priority.NORMAL, *, needs: Sequence[str] = ()) -> str:
    """Return rq's name of the queue for one priority and one set of needs."""
    return f"{check_fleet(fleet)}-{priority}-{needs_digest(list(needs))}"


def queue_key(fleet: str, priority: Priority = Priority.NORMAL, *, needs: Sequence[str] = ()) -> str:
    """Return the list of the entries that wait in that queue."""
    return list_key(queue_name(fleet, priority, needs=needs))


def list_key(queue: str) -> str:
    """Return the list of the entries that wait in a queue, given its name."""
    return LIST_PREFIX + queue


def leases_key(queue: str) -> str:
    """Return rq's set of a queue's running entries, `<entry>:<execution>`, scored by when the lease ends."""
    return LEASES_PREFIX + queue


def entry_key(entry: str) -> str:
    """Return rq's hash of one entry."""
    return ENTRY_PREFIX + entry


def execution_key(member: str) -> str:
    """Return rq's hash of one execution, `<entry>:<execution>`; its stop command reads it."""
    return EXECUTION_PREFIX + member


def registered_key(fleet: str) -> str:
    """Return the hash of the fleet's queues: name to JSON of priority and needs."""
    return f"{check_fleet(fleet)}:queues"


def wake_key(fleet: str) -> str:
    """Return the stream of one message that changes whenever something was listed."""
    return f"{check_fleet(fleet)}:wake"


def due_key(fleet: str) -> str:
    """Return the set of entries that wait for their next attempt, scored by when it is due."""
    return f"{check_fleet(fleet)}:due"


def dead_key(fleet: str) -> str:
    """Return the list of entries that failed at their last attempt, as JSON, newest last."""
    return f"{check_fleet(fleet)}:dead"


def poison_key(fleet: str) -> str:
    """Return the hash of parked entries, which no worker could read: id to reason."""
    return f"{check_fleet(fleet)}:poison"


def sweeps_key(fleet: str) -> str:
    """Return the set of sweeps without a summary, scored by when to look at them next."""
    return f"{check_fleet(fleet)}:sweeps"


def turn_key(fleet: str, artifact: str) -> str:
    """Return the lock of those who create one artifact in a store that does not decide by itself."""
    return f"{check_fleet(fleet)}:turn:{artifact}"


def round_key(fleet: str, what: str) -> str:
    """Return the mark that some rare act of the leading janitor was begun lately."""
    return f"{check_fleet(fleet)}:round:{what}"


def leader_key(fleet: str) -> str:
    """Return the lock of the leading janitor."""
    return f"{check_fleet(fleet)}:janitor"


def progress_key(fleet: str, entry: str) -> str:
    return f"{check_fleet(fleet)}:progress:{entry}"


def attempts_key(fleet: str, entry: str) -> str:
    """Return the counter that numbers the attempts at one entry; it outlives the entry's hash."""
    return f"{check_fleet(fleet)}:attempts:{entry}"


def cancel_key(fleet: str, entry: str) -> str:
    """Return the flag that asks a running entry to stop."""
    return f"{check_fleet(fleet)}:cancel:{entry}"


def wants_key(fleet: str, entry: str) -> str:
    """Return the set of sweeps that want an entry."""
    return f"{check_fleet(fleet)}:wants:{entry}"


def workers_key(fleet: str) -> str:
    """Return rq's set of the keys of the fleet's pullers, which name the fleet as their queue."""
    return str(WORKERS_BY_QUEUE_KEY % check_fleet(fleet))


def nodes_key(fleet: str) -> str:
    """Return the set of node names that ever announced themselves and did not say goodbye."""
    return f"{check_fleet(fleet)}:nodes"


def node_key(fleet: str, node: str) -> str:
    return f"{check_fleet(fleet)}:node:{node}"


def store_key(fleet: str) -> str:
    """Return the record of the store that the fleet's first node used."""
    return f"{check_fleet(fleet)}:store"


def name_key(fleet: str, kind: str, name: str) -> str:
    """Return the record of the files that the name of a checkpoint or LoRA means in this fleet."""
    return f"{check_fleet(fleet)}:{kind}:{name}"
