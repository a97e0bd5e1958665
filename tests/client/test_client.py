"""Submitting by `H3Client` against a real Redis, a real folder, and a node that ends what is queued."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from broker.errors import QueueAddressError, QueueEntryError, QueueUnavailableError
from broker.sweeps import sweeps_to_look_at
from client.client import H3Client
from client.errors import CheckpointChoiceError, DamagedArtifactError, SweepInputError
from client.handle import Outcome
from queue_schemas.errors import InvalidRequestError
from queue_schemas.events import JobStatus
from queue_schemas.jobs import build_job
from queue_schemas.results import Manifest
from queue_schemas.sweeps import Sweep
from storage.errors import StorageAddressError, StorageUnavailableError
from storage.layout import manifest_key, sweep_key
from storage.local import LocalStore

if TYPE_CHECKING:
    from small_node import FakeNode

MakeJob = Callable[..., dict[str, Any]]
EndRun = Callable[..., Manifest]


def nothing_written(storage: Path) -> bool:
    return not storage.exists()


def test_a_submitted_job_is_queued_as_the_only_run_of_a_sweep_in_storage(
    client: H3Client, node: "FakeNode", make_job: MakeJob
) -> None:
    node.announce("h3-tiny")

    handle = client.submit(make_job())

    assert (handle.outcome, handle.generation, handle.notes) == (
        Outcome.QUEUED,
        1,
        ("untrained: 5 frames; trained on 124 to 362",),
    )
    (queued,) = node.queued()
    assert queued == {
        "run_id": handle.run_id,
        "generation": 1,
        "job": make_job(),
        "run_key": {"repeat": 0, "node": None},
        "submission": {"sweep_id": handle.sweep_id, "priority": "normal", "labels": {}},
    }
    assert handle.sweep_id is not None
    stored = client.store.read_bytes(sweep_key(handle.sweep_id), limit_bytes=10_000)
    assert stored is not None
    (run,) = Sweep.model_validate_json(stored).runs
    assert (run.run_id, run.job) == (handle.run_id, make_job())


def test_a_run_too_large_for_the_queue_is_refused_before_its_sweep_is_written(
    client: H3Client, make_job: MakeJob, storage: Path
) -> None:
    with pytest.raises(QueueEntryError, match=r"bytes of JSON; at most 65,536 are accepted"):
        client.submit(make_job(), labels={"note": "x" * 70_000})

    assert not list(storage.rglob("sweep.json"))


def test_a_job_object_and_its_fields_are_the_same_run(client: H3Client, make_job: MakeJob) -> None:
    first = client.submit(build_job(make_job()))
    second = client.submit(make_job())

    assert first.run_id == second.run_id == build_job(make_job()).job_id
    assert (first.outcome, second.outcome) == (Outcome.QUEUED, Outcome.JOINED)


def test_a_run_that_succeeded_is_answered_from_its_manifest(
    client: H3Client, node: "FakeNode", make_job: MakeJob
) -> None:
    client.submit(make_job())
    node.run_all()
    node.connection.flushall()

    again = client.submit(make_job())

    assert (again.outcome, again.generation) == (Outcome.DONE, 1)
    assert node.queued() == []
    assert client.get(again.run_id).status is JobStatus.SUCCEEDED
    (result,) = client.results(again)
    assert result.video == client.store.locate(f"runs/{again.run_id}/1/attempts/1/video.mp4")
    assert again.sweep_id is not None
    assert sweeps_to_look_at(node.connection, fleet="h3", most=9) == [again.sweep_id]  # for its summary


def test_a_run_that_failed_is_queued_as_its_next_generation(
    client: H3Client, node: "FakeNode", make_job: MakeJob
) -> None:
    node.failing = {"a fox"}
    client.submit(make_job())
    node.run_all()

    second = client.submit(make_job())
    node.run_all()
    node.failing = set()
    third = client.submit(make_job())
    node.run_all()

    assert (second.outcome, second.generation) == (Outcome.QUEUED, 2)
    assert (third.outcome, third.generation) == (Outcome.QUEUED, 3)
    assert client.get(third.run_id).status is JobStatus.SUCCEEDED
    assert client.submit(make_job()).generation == 3


def test_a_missing_seed_is_drawn_and_told(client: H3Client, make_job: MakeJob) -> None:
    fields = make_job()
    del fields["seed"]

    first, second = client.submit(fields), client.submit(fields)

    assert first.job is not None
    assert second.job is not None
    assert first.job.seed != second.job.seed


def test_the_only_served_checkpoint_is_taken_when_none_is_named(
    client: H3Client, node: "FakeNode", make_job: MakeJob
) -> None:
    fields = make_job()
    del fields["checkpoint"]
    node.announce("h3-night")

    handle = client.submit(fields)

    assert handle.job is not None
    assert handle.job == build_job({**fields, "checkpoint": "h3-night"})


def test_no_checkpoint_is_guessed_where_none_or_several_are_served(
    client: H3Client, node: "FakeNode", make_job: MakeJob, storage: Path
) -> None:
    fields = make_job()
    del fields["checkpoint"]

    with pytest.raises(
        CheckpointChoiceError,
        match=r"start a node: h3-worker run --redis \S+ --storage \S+, or name one with --checkpoint",
    ):
        client.submit(fields)
    node.announce("h3-a", "h3-b")
    with pytest.raises(CheckpointChoiceError, match="live nodes serve h3-a, h3-b"):
        client.submit(fields)

    assert node.queued() == []
    assert nothing_written(storage)


def test_the_settings_checkpoint_and_defaults_fill_what_the_job_leaves_out(
    redis_url: str, storage: Path, make_job: MakeJob
) -> None:
    client = H3Client(
        redis_url=redis_url,
        storage_url=str(storage),
        checkpoint="h3-own",
        job_defaults={"vae_dtype": "float32", "vae_tile_size": 512},
    )

    handle = client.submit({"prompt": "a fox", "vae_tile_size": 256})

    assert handle.job is not None
    assert (handle.job.checkpoint, handle.job.vae_dtype, handle.job.vae_tile_size) == (
        "h3-own",
        "float32",
        256,
    )


def test_a_job_that_no_live_node_serves_is_queued_with_a_note(
    client: H3Client, node: "FakeNode", make_job: MakeJob
) -> None:
    node.announce("other")

    handle = client.submit(make_job())

    assert handle.outcome is Outcome.QUEUED
    assert "no live node serves checkpoint 'h3-tiny'" in handle.notes[-1]


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ({"step": 4}, r"unknown field 'step' \(did you mean 'steps'\?\)"),
        ({"frames": 100}, "the nearest are 90 and 107"),
        ({"width": 100}, "the nearest are 96 and 128"),
        ({"prompt": ""}, "the prompt is empty"),
        ({"prompt": "x" * 7_001}, "7,001 characters"),
        ({"steps": True}, "steps: Input should be a valid integer"),
        ({"steps": 8.0}, "steps: Input should be a valid integer"),
        ({"seed": "7"}, "seed: Input should be a valid integer"),
    ],
)
def test_a_faulty_job_is_refused_before_redis_is_touched(
    storage: Path, make_job: MakeJob, fault: dict[str, Any], sentence: str
) -> None:
    client = H3Client(redis_url="redis://127.0.0.1:1/0", storage_url=str(storage))

    with pytest.raises(InvalidRequestError, match=sentence):
        client.submit({**make_job(), **fault})

    assert nothing_written(storage)


def test_one_faulty_prompt_of_a_sweep_is_named_and_nothing_is_queued(
    client: H3Client, node: "FakeNode", storage: Path
) -> None:
    with pytest.raises(InvalidRequestError, match=r"prompt 2: x{23}…, seed 1: prompt: 7,001 characters"):
        client.sweep(["a", "x" * 7_001], [1], fields={"checkpoint": "h3"})

    assert node.queued() == []
    assert nothing_written(storage)


def test_an_unreachable_redis_is_named_with_a_remedy_and_nothing_is_written(
    storage: Path, make_job: MakeJob
) -> None:
    client = H3Client(redis_url="redis://127.0.0.1:1/0", storage_url=str(storage))

    with pytest.raises(QueueUnavailableError, match=r"127\.0\.0\.1:1 .*H3_REDIS_URL"):
        client.submit(make_job())

    assert nothing_written(storage)


def test_a_storage_that_cannot_be_written_leaves_nothing_queued(
    redis_url: str, node: "FakeNode", tmp_path: Path, make_job: MakeJob
) -> None:
    (tmp_path / "file").write_text("")
    client = H3Client(redis_url=redis_url, storage_url=str(tmp_path / "file"))

    with pytest.raises(StorageUnavailableError, match="is a file, not a folder"):
        client.submit(make_job())

    assert node.queued() == []


def test_an_address_that_cannot_be_one_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(QueueAddressError):
        H3Client(redis_url="http://queue")
    with pytest.raises(QueueEntryError):
        H3Client(fleet="a b")
    with pytest.raises(StorageAddressError, match="holds no credentials"):
        H3Client(storage_url="s3://key:secret@films")


def test_a_damaged_manifest_is_named_and_nothing_is_queued(
    client: H3Client, node: "FakeNode", make_job: MakeJob, end_run: EndRun
) -> None:
    job = make_job()
    key = manifest_key(build_job(job).job_id, 1)
    store = client.store
    assert isinstance(store, LocalStore)
    store.put_bytes(key, b"{")

    with pytest.raises(DamagedArtifactError, match=key):
        client.submit(job)
    end_run(store, make_job(seed=8))
    other = store.read_bytes(manifest_key(build_job(make_job(seed=8)).job_id, 1), limit_bytes=10_000)
    assert other is not None
    store.put_bytes(key, other)
    with pytest.raises(DamagedArtifactError, match="it speaks of run"):
        client.submit(job)

    assert node.queued() == []
    assert list(store.list("sweeps/")) == []


def test_a_sweep_of_a_thousand_runs_is_queued_in_order(client: H3Client, node: "FakeNode") -> None:
    handle = client.sweep([f"prompt {n}" for n in range(100)], list(range(10)), fields={"checkpoint": "h3"})

    assert [call["run_id"] for call in node.queued()] == [run.run_id for run in handle.runs]
    assert len(handle.runs) == 1_000
    assert {status.status for status in client.statuses(handle)} == {JobStatus.QUEUED}


def test_a_redis_that_goes_away_while_submitting_leaves_a_sweep_that_can_be_resumed(
    client: H3Client, make_job: MakeJob, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose_redis(*_: Any, **__: Any) -> None:
        raise QueueUnavailableError("127.0.0.1:1", "gone", remedy="wait")

    with monkeypatch.context() as patch:
        patch.setattr("client.client.submit_runs", lose_redis)
        with pytest.raises(QueueUnavailableError):
            client.submit(make_job())
    (key,) = client.store.list("sweeps/")

    sweep_id = key.split("/")[1]
    assert f"h3 sweep --resume {sweep_id}" in caplog.text
    assert [run.outcome for run in client.resume(sweep_id).runs] == [Outcome.QUEUED]


def test_a_sweep_that_could_not_be_read_again_is_refused_and_nothing_is_queued(
    client: H3Client, node: "FakeNode", storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queue_schemas.limits.SWEEP_BYTES", 10_000)

    with pytest.raises(SweepInputError, match="at most 10,000 are kept: split it"):
        client.sweep(["a fox"], list(range(100)), fields={"checkpoint": "h3"})

    assert node.queued() == []
    assert nothing_written(storage)


@pytest.mark.parametrize("labels", [{"shot": 12}, {"shot": "\udcff"}, {"\udcff": "a"}])
def test_labels_that_are_no_text_are_refused_and_nothing_is_queued(
    client: H3Client, node: "FakeNode", make_job: MakeJob, storage: Path, labels: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRequestError, match="labels"):
        client.submit(make_job(), labels=labels)

    assert node.queued() == []
    assert nothing_written(storage)
