"""A node of a few lines: it takes entries from a real queue and writes real manifests.

Imports no pytest: the demo's tests start it as a process of its own.
"""

import json
import time
import zlib
from pathlib import Path
from typing import Any

import redis

from broker import keys
from broker.nodes import announce
from broker.overview import registered_queues
from broker.progress import write_progress
from queue_schemas.benchmark import BenchmarkRecord, Seconds
from queue_schemas.errors import ErrorCode
from queue_schemas.events import JobError, JobStatus, ProgressEvent, Stage
from queue_schemas.jobs import build_job
from queue_schemas.nodes import NodeCard
from queue_schemas.receipts import ReferenceReceipt
from queue_schemas.references import Medium
from queue_schemas.results import Manifest
from storage.base import ArtifactStore
from storage.layout import attempt_prefix, manifest_key
from storage.local import LocalStore


class FakeNode:
    """Ends queued runs on request, as a worker would: record, then manifest, then the queue's own status."""

    def __init__(self, redis_url: str, storage: ArtifactStore | Path) -> None:
        self.connection = redis.Redis.from_url(redis_url)
        self.store: Any = LocalStore(storage) if isinstance(storage, Path) else storage
        self.failing: set[str] = set()
        """Prompts whose runs fail."""

    def announce(self, *checkpoints: str, **fields: Any) -> None:
        for name in checkpoints:
            card = {
                "node": f"node-{name}",
                "checkpoint": name,
                "weights": "real",
                "device": "cpu",
                "attention_backends": ["sdpa"],
                "started_at": "2026-01-01T00:00:00Z",
                **fields,
            }
            announce(self.connection, NodeCard.model_validate(card), ttl_seconds=60)

    def queued(self) -> list[dict[str, Any]]:
        """The calls that lie in the queues, most urgent first, then oldest."""
        lists = [keys.list_key(queue.name) for queue in registered_queues(self.connection, fleet="h3")]
        entries = [entry for name in lists for entry in self.connection.lrange(name, 0, -1)]
        return [self._call(entry.decode()) for entry in entries]

    def begin(self) -> dict[str, Any] | None:
        """Take the oldest entry and call it running, in the second of four steps."""
        queues = registered_queues(self.connection, fleet="h3")
        taken = ((queue.name, self.connection.lpop(keys.list_key(queue.name))) for queue in queues)
        queue, raw = next(((name, raw) for name, raw in taken if raw is not None), ("", None))
        if raw is None:
            return None
        entry = raw.decode()
        lease = f"{entry}:1"
        self.connection.hset(keys.entry_key(entry), mapping={"status": "started", "lease": lease})
        self.connection.zadd(keys.leases_key(queue), {lease: time.time() + 60})
        event = ProgressEvent(stage=Stage.DENOISE, step=2, steps=4, seconds=1.5)
        write_progress(self.connection, entry, event=event)
        return self._call(entry)

    def end(self, call: dict[str, Any]) -> Manifest:
        failed = call["job"]["prompt"] in self.failing
        named = {"run_id": call["run_id"], "generation": call["generation"]}
        manifest = end_run(self.store, call["job"], **named, failed=failed)
        entry = keys.entry_id(call["run_id"], call["generation"])
        origin = self.connection.hget(keys.entry_key(entry), "origin")
        if origin is not None:
            self.connection.zrem(keys.leases_key(origin.decode()), f"{entry}:1")
        self.connection.hset(keys.entry_key(entry), "status", "failed" if failed else "finished")
        return manifest

    def run_all(self) -> None:
        while (call := self.begin()) is not None:
            self.end(call)

    def _call(self, entry: str) -> dict[str, Any]:
        data = self.connection.hget(keys.entry_key(entry), "data")
        assert isinstance(data, bytes)
        call: dict[str, Any] = json.loads(zlib.decompress(data))[3]
        return call


def end_run(
    store: ArtifactStore,
    job: dict[str, Any],
    *,
    run_id: str | None = None,
    generation: int = 1,
    failed: bool = False,
) -> Manifest:
    """Write what a worker leaves of one run: film, record, manifest."""
    built = build_job(job)
    job_id = built.job_id
    run_id = run_id or job_id
    error = JobError(code=ErrorCode.STALLED, message="no step ended", retryable=True) if failed else None
    status = JobStatus.FAILED if failed else JobStatus.SUCCEEDED
    prefix = attempt_prefix(run_id, generation, 1)
    record = BenchmarkRecord(
        run_id=run_id,
        job_id=job_id,
        generation=generation,
        attempt=1,
        status=status,
        error=error,
        request=job,
        seconds=Seconds(total=2.5, denoise_steps=[0.5, 0.25]),
        started_at="2026-01-01T00:00:00Z",
        finished_at="2026-01-01T00:00:03Z",
    )
    data = record.model_dump_json().encode()
    files = {"benchmark": store.put_bytes(f"{prefix}/benchmark.json", data)}
    if failed:
        files["log"] = store.put_bytes(f"{prefix}/log.txt", b"no step ended\n")
    else:
        files["video"] = store.put_bytes(f"{prefix}/video.mp4", b"film")
    manifest = Manifest(
        run_id=run_id,
        job_id=job_id,
        generation=generation,
        attempt=1,
        status=status,
        error=error,
        files=files,
        references=[] if failed else [receipt_of(medium, n) for n, medium in enumerate(built.media)],
        finished_at="2026-01-01T00:00:03Z",
    )
    assert store.put_if_absent(manifest_key(run_id, generation), manifest.model_dump_json().encode())
    return manifest


def receipt_of(medium: Medium, number: int) -> ReferenceReceipt:
    """Return the receipt of a picture of 64 x 64 pixels."""
    return ReferenceReceipt(
        place=medium.place,
        label=f"<Picture {number + 1}>",
        kind=medium.kind,
        sha256=medium.sha256 or "",
        width=64,
        height=64,
        frames=1,
        text_tokens=12,
        tokens=4,
        rows=(16 + 4 * number, 20 + 4 * number),
        latent_sha256="0" * 64,
    )


def make_job(**fields: Any) -> dict[str, Any]:
    """A complete small job, as JSON values."""
    complete = {"prompt": "a fox", "seed": 7, "checkpoint": "h3-tiny", "width": 64, "height": 64}
    return build_job({**complete, "frames": 5, "steps": 2, **fields}).model_dump(mode="json")
