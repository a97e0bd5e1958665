"""How runs are asked for: priority, node, repeats, files; and what live nodes mean for them."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import small_media

from broker import keys
from broker.agreements import StoreAgreement, agree_on_store
from client.client import H3Client
from client.errors import NodeRequiredError, UploadError
from client.fleet import node_for
from client.handle import Outcome
from queue_schemas.errors import ErrorCode, InvalidRequestError
from queue_schemas.events import JobStatus
from queue_schemas.results import Manifest
from queue_schemas.runs import Priority
from storage.errors import StorageUnavailableError
from storage.identity import store_identity
from storage.layout import sweep_key

if TYPE_CHECKING:
    from small_node import FakeNode

MakeJob = Callable[..., dict[str, Any]]
EndRun = Callable[..., Manifest]


def test_an_urgent_run_lies_before_older_ones_and_labels_travel(
    client: H3Client, node: "FakeNode", make_job: MakeJob
) -> None:
    client.submit(make_job(seed=1))
    urgent = client.submit(make_job(seed=2), priority=Priority.HIGH, labels={"shot": "12"})

    first, second = node.queued()

    assert (first["run_id"], second["job"]["seed"]) == (urgent.run_id, 1)
    assert first["submission"] == {
        "sweep_id": urgent.sweep_id,
        "priority": "high",
        "labels": {"shot": "12"},
    }


def test_a_pinned_run_is_another_run_that_needs_its_node(
    client: H3Client, node: "FakeNode", make_job: MakeJob
) -> None:
    plain = client.submit(make_job())
    pinned = client.submit(make_job(), node="spark-1")

    assert pinned.run_id.startswith(f"{plain.run_id}-n")
    assert "node 'spark-1'" in pinned.notes[-1]
    assert {call["run_key"]["node"] for call in node.queued()} == {None, "spark-1"}
    with pytest.raises(InvalidRequestError, match="node"):
        client.submit(make_job(), node="no such/name")


def test_force_takes_the_lowest_repeat_that_nobody_used(
    client: H3Client, node: "FakeNode", make_job: MakeJob
) -> None:
    fresh = client.submit(make_job(seed=9), force=True)
    plain = client.submit(make_job())
    node.run_all()

    forced = [client.submit(make_job(), force=True) for _ in range(2)]
    third = client.submit(make_job(), repeat=3)
    fourth, other = client.submit_many([make_job(), make_job(seed=8)], force=True).runs

    assert fresh.key.repeat == 0
    assert [run.run_id for run in forced] == [f"{plain.run_id}-r1", f"{plain.run_id}-r2"]
    assert {run.outcome for run in forced} == {Outcome.QUEUED}
    assert third.run_id == f"{plain.run_id}-r3"
    assert (fourth.run_id, other.key.repeat) == (f"{plain.run_id}-r4", 0)
    node.run_all()
    assert client.get(forced[1].run_id).status is JobStatus.SUCCEEDED


def test_many_jobs_are_one_sweep_and_a_double_is_one_run(
    client: H3Client, node: "FakeNode", make_job: MakeJob
) -> None:
    handle = client.submit_many([make_job(seed=1), make_job(seed=2), make_job(seed=1)])

    assert [run.label for run in handle.runs] == ["a fox, seed 1", "a fox, seed 2"]
    assert [call["run_id"] for call in node.queued()] == [run.run_id for run in handle.runs]


def test_a_note_says_what_is_served_when_nothing_fits(
    client: H3Client, node: "FakeNode", make_job: MakeJob, redis_url: str, storage: Path
) -> None:
    start = f"h3-worker run --redis {redis_url} --storage {storage} --checkpoint h3-tiny"
    lonely = client.submit(make_job(seed=1))
    node.announce("h3-tiny")

    handle = client.submit(make_job(attention="sage2"))
    fits = client.submit(make_job(attention="sdpa"))

    assert lonely.notes[-1] == (
        f"no live node serves checkpoint 'h3-tiny'; the job waits until one does. Start a node: {start}"
    )
    assert handle.notes[-1] == (
        "no live node serves checkpoint 'h3-tiny' with attention 'sage2'; the job waits until one does:"
        f" {start}. Served now: h3-tiny (attention sdpa)"
    )
    assert not any("no live node" in note for note in fits.notes)


@pytest.mark.parametrize(
    ("needs", "flags"),
    [
        (["checkpoint:h3-tiny"], "--checkpoint h3-tiny"),
        (["attention:sage2", "checkpoint:x"], "--models-dir DIR --checkpoint x"),
        (
            ["lora:ink", "lora:turbo", "checkpoint:x"],
            "--models-dir DIR --checkpoint x --lora ink=FILE --lora turbo=FILE",
        ),
        (["node:bar", "checkpoint:h3-tiny"], "--checkpoint h3-tiny --node bar"),
    ],
)
def test_the_hint_for_a_missing_node_is_a_command_that_starts_it(needs: list[str], flags: str) -> None:
    assert node_for(needs, start="h3-worker run") == f"h3-worker run {flags}"


def test_a_required_node_that_does_not_live_is_an_error_and_nothing_is_queued(
    client: H3Client, node: "FakeNode", make_job: MakeJob, storage: Path
) -> None:
    with pytest.raises(NodeRequiredError, match="h3-tiny") as caught:
        client.submit(make_job(), require_node=True)

    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert node.queued() == []
    assert not storage.exists()
    node.announce("h3-tiny")
    assert client.submit(make_job(), require_node=True).outcome is Outcome.QUEUED


def test_random_weights_are_told_and_real_ones_are_not(
    client: H3Client, node: "FakeNode", make_job: MakeJob
) -> None:
    node.announce("h3-tiny", weights="random")
    random = client.submit(make_job())
    node.announce("h3-tiny", weights="real")
    real = client.submit(make_job(seed=8))

    assert random.notes[-1] == "h3-tiny has random weights: the films show nothing"
    assert not any("random" in note for note in real.notes)


def test_a_node_that_writes_to_another_store_is_told_at_submission_and_at_the_end(
    client: H3Client, node: "FakeNode", make_job: MakeJob
) -> None:
    node.announce("h3-tiny", store_id="0" * 32, storage_url="file:///films")
    handle = client.submit(make_job())
    node.begin()
    node.connection.hset(keys.entry_key(f"{handle.run_id}-1"), "status", "finished")

    (status,) = client.follow(handle)

    said = (
        f"this client looks in {client.store.url}, node node-h3-tiny writes to file:///films: set --storage"
    )
    assert said in handle.notes
    assert status.error is not None
    assert said in status.error.message
    assert "resubmit" not in status.error.message


def test_one_store_under_two_addresses_is_the_same_store(
    client: H3Client, node: "FakeNode", make_job: MakeJob
) -> None:
    known = store_identity(client.store)
    node.announce("h3-tiny", store_id=known, storage_url="file:///in/the/container")

    assert not any("looks in" in note for note in client.submit(make_job()).notes)


def test_a_run_whose_node_is_gone_says_so(
    client: H3Client, node: "FakeNode", make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = client.submit(make_job())
    node.begin()
    fresh = client.get(handle.run_id)
    node.connection.pexpire(f"h3:progress:{handle.run_id}-1", 86_400_000 - 61_000)

    gone = client.get(handle.run_id)
    node.announce("other")
    still_gone = client.statuses(handle)[0]
    node.announce("h3-tiny")
    served = client.get(handle.run_id)

    assert (fresh.note, served.note) == (None, None)
    assert gone.note is not None
    assert "its node is gone" in gone.note
    assert still_gone.note == gone.note
    assert gone.status is JobStatus.RUNNING


def test_a_reference_is_stored_once_under_the_hash_of_its_content(client: H3Client, tmp_path: Path) -> None:
    content = small_media.picture(tmp_path / "fox.png").read_bytes()
    (tmp_path / "same.JPEG").write_bytes(content)

    first, second = client.upload(tmp_path / "fox.png"), client.upload(tmp_path / "same.JPEG")

    assert first.key == second.key == f"references/{first.sha256}.png"
    assert (first.kind, first.size_bytes, first.is_new, second.is_new) == ("image", len(content), True, False)
    assert client.store.read_bytes(first.key, limit_bytes=9_999) == content


@pytest.mark.parametrize(
    ("name", "size", "said"),
    [
        ("a.txt", 1, "it is no medium that is read, but text"),
        ("a.wav", 0, "it is empty"),
        ("none.png", None, "is not there"),
    ],
)
def test_what_is_no_reference_is_refused(
    client: H3Client, tmp_path: Path, name: str, size: int | None, said: str
) -> None:
    if size is not None:
        (tmp_path / name).write_bytes(b"x" * size)

    with pytest.raises(UploadError, match=said):
        client.upload(tmp_path / name)


def test_a_sweep_is_resumed_from_storage_alone(
    redis_url: str, storage: Path, client: H3Client, node: "FakeNode"
) -> None:
    node.failing = {"a wave"}
    handle = client.sweep(
        ["a fox", "a wave", "a stone"], [1], fields={"checkpoint": "h3"}, priority=Priority.LOW
    )
    for _ in range(2):
        node.end(node.begin() or {})
    node.connection.flushall()
    elsewhere = H3Client(redis_url=redis_url, storage_url=str(storage))

    resumed = elsewhere.resume(handle.sweep_id)

    assert [run.outcome for run in resumed.runs] == [Outcome.DONE, Outcome.ENDED, Outcome.QUEUED]
    assert [run.run_id for run in resumed.runs] == [run.run_id for run in handle.runs]
    (call,) = node.queued()
    assert (call["job"]["prompt"], call["submission"]["priority"]) == ("a stone", "low")
    assert call["submission"]["sweep_id"] == handle.sweep_id


def test_what_failed_is_retried_when_asked_and_its_generation_is_not_lost(
    client: H3Client, node: "FakeNode"
) -> None:
    node.failing = {"a wave"}
    handle = client.sweep(["a fox", "a wave"], [1], fields={"checkpoint": "h3"})
    node.run_all()

    retried = client.resume(handle.sweep_id[:20], retry_failed=True)
    node.connection.flushall()  # the queued second generation is lost
    again = client.resume(handle.sweep_id)

    assert [run.outcome for run in retried.runs] == [Outcome.DONE, Outcome.QUEUED]
    assert [(run.outcome, run.generation) for run in again.runs] == [(Outcome.DONE, 1), (Outcome.QUEUED, 2)]
    node.failing = set()
    node.run_all()
    assert [s.status for s in client.statuses(client.find(handle.sweep_id))] == [JobStatus.SUCCEEDED] * 2
    assert [run.outcome for run in client.resume(handle.sweep_id).runs] == [Outcome.DONE] * 2


def test_submitted_again_after_a_failure_the_new_sweep_waits_for_its_own_generation(
    client: H3Client, node: "FakeNode", make_job: MakeJob
) -> None:
    node.failing = {"a fox"}
    client.submit(make_job())
    node.run_all()
    second = client.submit(make_job())
    node.connection.flushall()
    assert second.sweep_id is not None

    resumed = client.resume(second.sweep_id)

    assert [(run.outcome, run.generation) for run in resumed.runs] == [(Outcome.QUEUED, 2)]
    assert client.store.read_bytes(sweep_key(second.sweep_id), limit_bytes=10_000) is not None


@pytest.mark.parametrize("leave", [lambda place: None, Path.mkdir])
def test_nothing_is_written_where_the_fleets_store_has_disappeared(
    client: H3Client, node: "FakeNode", make_job: MakeJob, storage: Path, leave: Callable[[Path], object]
) -> None:
    known = store_identity(client.store)
    agree_on_store(node.connection, StoreAgreement(node="a", store_id=known, url=client.store.url))
    waiting = client.submit(make_job())
    reference = storage.with_name("fox.png")
    small_media.picture(reference)
    storage.rename(storage.with_name("away"))
    leave(storage)

    acts: list[Callable[[], object]] = [
        lambda: client.submit(make_job(seed=8)),
        lambda: client.upload(reference),
        lambda: client.cancel(waiting),
    ]

    for act in acts:
        with pytest.raises(StorageUnavailableError, match="is not there: mount it again or bring it back"):
            act()
    assert not storage.exists() or not list(storage.iterdir())
