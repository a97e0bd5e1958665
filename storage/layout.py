"""Where things lie in a store. The only place that spells a key."""

import re

from storage.errors import StorageAddressError

_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*")

_MANIFEST = re.compile(r"runs/(?P<run_id>[^/]+)/(?P<generation>[1-9][0-9]{0,8})/manifest\.json")

STORE_KEY = "store.json"
"""The store's identity; created once."""
PROBE_KEY = "probe.txt"
"""Written and written again to learn whether the store refuses the second time."""


def is_key(name: str) -> bool:
    """Say whether `name` is a plain relative name; a listing leaves out whatever is not."""
    return len(name) <= 512 and _KEY.fullmatch(name) is not None and max(map(len, name.split("/"))) <= 255


def shortest_odd(name: str) -> str | None:
    """Return the shortest beginning of `name`, in whole parts, that is no key; None where all are."""
    parts = name.split("/")
    beginnings = ("/".join(parts[:end]) for end in range(1, len(parts) + 1))
    return next((beginning for beginning in beginnings if not is_key(beginning)), None)


def check_key(key: str) -> str:
    """Return `key` if it is a plain relative name; raise StorageAddressError otherwise."""
    if not is_key(key):
        raise StorageAddressError(f"{key!r} is no storage key")
    return key


def check_prefix(prefix: str) -> str:
    """Return `prefix` if keys can start with it; raise StorageAddressError otherwise."""
    if prefix:
        check_key(prefix.removesuffix("/"))
    return prefix


FILM, LOG, REQUEST, RECORD = "video.mp4", "log.txt", "request.json", "benchmark.json"
"""An attempt's files."""
ATTEMPT_FOLDER = re.compile(r"runs/[0-9a-f]{32}(-[^/]+)?/[0-9]+/attempts/[0-9]+")


def attempt_prefix(run_id: str, generation: int, attempt: int) -> str:
    """Folder of one attempt's files."""
    return f"runs/{run_id}/{generation}/attempts/{attempt}"


def manifest_key(run_id: str, generation: int) -> str:
    """The terminal record of a run; created once."""
    return f"runs/{run_id}/{generation}/manifest.json"


def parse_manifest_key(key: str) -> tuple[str, int] | None:
    """Return (run_id, generation) when `key` is a manifest's, else None."""
    match = _MANIFEST.fullmatch(key)
    return (match["run_id"], int(match["generation"])) if match else None


def sweep_key(sweep_id: str) -> str:
    return f"sweeps/{sweep_id}/sweep.json"


def summary_key(sweep_id: str) -> str:
    """How a sweep ended; written when its last run has."""
    return f"sweeps/{sweep_id}/summary.json"


def reference_key(sha256: str, extension: str) -> str:
    """A reference, under the hash of its content."""
    return f"references/{sha256}.{extension}"


def conditioning_key(key: str) -> str:
    """Text features that nodes share, under the hash of what they follow from."""
    return f"{CONDITIONING_PREFIX}{key}.safetensors"


CONDITIONING_PREFIX = "conditioning/"
RUNS_PREFIX = "runs/"
SWEEPS_PREFIX = "sweeps/"
PREFIXES = (RUNS_PREFIX, SWEEPS_PREFIX, "references/", CONDITIONING_PREFIX)
"""All that this project writes to, but for single files at the top; others may keep things beside them."""
