"""A job's files, from store, link or local path into the node's folder: right content and place, bounded."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fleet import small_fields
from own_links import LinkServer, whole
from own_s3 import OwnS3

from media.errors import ReferenceUnreadableError
from queue_schemas import limits
from queue_schemas.jobs import JOB_ADAPTER, Job
from storage.errors import StorageUnavailableError
from storage.identity import store_identity
from storage.known import KnownStore
from storage.layout import reference_key
from storage.links import LinkRules
from storage.local import LocalStore
from storage.uri import open_store
from worker.errors import ReferenceUnreachableError, job_error
from worker.gathering import Sources, gather, without_queries
from worker.reference_folder import ReferenceFolder, ReferenceFolderError

CAT, DOG = b"a cat", b"a dog"


def sha256_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def key_of(data: bytes, ending: str = "png") -> str:
    return reference_key(sha256_of(data), ending)


def referring(*references: dict[str, Any]) -> Job:
    return JOB_ADAPTER.validate_python(small_fields(workflow="ref2va", references=list(references)))


def picture(source: str, **fields: Any) -> Job:
    return referring({"kind": "image", "source": source, **fields})


@pytest.fixture
def folder(tmp_path: Path) -> ReferenceFolder:
    return ReferenceFolder(tmp_path / "engine")


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


def test_every_file_of_a_job_is_here_by_place_and_the_job_names_keys_only(
    folder: ReferenceFolder, store: LocalStore, link_server: LinkServer, link_rules: LinkRules, tmp_path: Path
) -> None:
    store.put_bytes(key_of(CAT), CAT)
    link_server.answers |= {"/walk.MP4": whole(b"a clip"), "/sound": whole(b"a sound")}
    (tmp_path / "inputs").mkdir()
    (tmp_path / "inputs" / "dog.jpeg").write_bytes(DOG)
    job = referring(
        {"kind": "image", "source": key_of(CAT)},
        {
            "kind": "video",
            "source": link_server.link("/walk.MP4?signature=secret"),
            "audio": link_server.link("/sound"),
        },
        {"kind": "image", "source": "dog.jpeg"},
    )
    sources = Sources(folder=folder, store=store, links=link_rules, input_root=tmp_path / "inputs")

    with gather(job, sources) as gathered:
        contents = {place: path.read_bytes() for place, path in gathered.files.items()}

    assert contents == {
        "references[0]": CAT,
        "references[1]": b"a clip",
        "references[1].audio": b"a sound",
        "references[2]": DOG,
    }
    assert [medium.source for medium in gathered.job.media] == [
        key_of(CAT),
        key_of(b"a clip", "mp4"),
        key_of(b"a sound", "bin"),
        key_of(DOG, "jpeg"),
    ]
    assert gathered.job.job_id  # every hash is known
    assert "secret" not in gathered.job.model_dump_json()


def test_what_is_here_already_is_not_asked_for_again(
    folder: ReferenceFolder, store: LocalStore, link_server: LinkServer, link_rules: LinkRules
) -> None:
    store.put_bytes(key_of(CAT), CAT)
    gather(picture(key_of(CAT)), Sources(folder=folder, store=store)).close()

    by_link = picture(link_server.link("/cat.png"), sha256=sha256_of(CAT))
    with gather(by_link, Sources(folder=folder, links=link_rules)) as gathered:
        assert gathered.files["references[0]"].read_bytes() == CAT

    assert link_server.heads == []


def test_keyframes_are_gathered_too(folder: ReferenceFolder, store: LocalStore) -> None:
    store.put_bytes(key_of(CAT), CAT)
    job = JOB_ADAPTER.validate_python(small_fields(workflow="fl2va", last_frame=key_of(CAT)))

    with gather(job, Sources(folder=folder, store=store)) as gathered:
        assert list(gathered.files) == ["last_frame"]
        assert gathered.job == job


def test_a_store_by_http_is_read_too(own_s3: OwnS3, folder: ReferenceFolder) -> None:
    store = open_store(own_s3.url)
    store.put_bytes(key_of(CAT), CAT)

    with gather(picture(key_of(CAT)), Sources(folder=folder, store=store)) as gathered:
        assert gathered.files["references[0]"].read_bytes() == CAT
    with pytest.raises(ReferenceUnreadableError, match="it is not in s3://films/h3"):
        gather(picture(key_of(DOG)), Sources(folder=folder, store=store))
    own_s3.kill()
    with pytest.raises(StorageUnavailableError):
        gather(picture(key_of(DOG)), Sources(folder=folder, store=store))


def lies(store: LocalStore, data: bytes) -> str:
    """Store something under the name of the cat."""
    store.put_bytes(key_of(CAT), data)
    return key_of(CAT)


@pytest.mark.parametrize(
    ("prepare", "says"),
    [
        (lambda store: key_of(CAT), r"references\[0\] \(references/.*png\): it is not in file:"),
        (lambda store: lies(store, DOG), "does not hold what its sha256 says"),
        (lambda store: lies(store, bytes(limits.IMAGE_BYTES + 1)), "image has at most 31,457,280 bytes"),
        (lambda store: "cat.png", r"references\[0\] \(cat.png\): it is a local path"),
        (lambda store: "https://127.0.0.1/cat.png?x=secret", "it leads to an address that is not public"),
        (lambda store: "https://me:secret@example.com/", "it holds a user or password"),
    ],
)
def test_what_will_never_do_is_refused_by_place_and_file_and_nothing_is_kept(
    folder: ReferenceFolder,
    store: LocalStore,
    prepare: Callable[[LocalStore], str],
    says: str,
    tmp_path: Path,
) -> None:
    store.put_bytes(key_of(DOG), DOG)
    job = picture(prepare(store), sha256=sha256_of(CAT))

    with pytest.raises(ReferenceUnreadableError, match=says) as caught:
        gather(job, Sources(folder=folder, store=store))

    told = job_error(caught.value)
    assert (told.code, told.retryable) == ("reference_unreadable", False)
    assert "secret" not in told.message
    assert list((tmp_path / "engine").glob("references/*")) == []


def test_a_file_that_is_here_is_still_bounded_by_its_kind(folder: ReferenceFolder, store: LocalStore) -> None:
    large = bytes(limits.AUDIO_BYTES + 1)
    store.put_bytes(key_of(large, "mp4"), large)
    sources = Sources(folder=folder, store=store)
    clip = {"kind": "video", "source": key_of(large, "mp4")}
    gather(referring(clip), sources).close()

    with pytest.raises(ReferenceUnreadableError, match=r"references\[0\]\.audio .* at most 15,728,640"):
        gather(referring({**clip, "audio": key_of(large, "mp4")}), sources)


def test_a_link_or_store_that_is_away_may_do_later(
    folder: ReferenceFolder, store: LocalStore, link_server: LinkServer, link_rules: LinkRules
) -> None:
    link_server.answers["/cat.png"] = whole(b"", status="503 Later")
    with pytest.raises(
        ReferenceUnreachableError, match=r"references\[0\] .*cat.png\): it answered"
    ) as caught:
        gather(picture(link_server.link("/cat.png?x=secret")), Sources(folder=folder, links=link_rules))
    told = job_error(caught.value)
    assert (told.code, told.retryable, "secret" in told.message) == ("reference_unreadable", True, False)

    known = KnownStore(store, store_identity(store))
    store.root.rename(store.root.with_name("elsewhere"))
    with pytest.raises(StorageUnavailableError, match="mount it again"):
        gather(picture(key_of(CAT)), Sources(folder=folder, store=known))


def test_a_disk_that_takes_nothing_may_do_later(tmp_path: Path, store: LocalStore) -> None:
    store.put_bytes(key_of(CAT), CAT)
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "references").write_bytes(b"in the way")

    with pytest.raises(ReferenceFolderError) as caught:
        gather(picture(key_of(CAT)), Sources(folder=ReferenceFolder(tmp_path / "engine"), store=store))

    assert job_error(caught.value).retryable


@pytest.mark.parametrize(
    "source",
    ["../secret", "/etc/hostname", "out", "out/secret", "gone", ".", "pipe", "loop", "{root}/../secret"],
)
def test_no_local_path_leads_out_of_the_input_root(
    folder: ReferenceFolder, tmp_path: Path, source: str
) -> None:
    root = tmp_path / "inputs"
    root.mkdir()
    (tmp_path / "secret").write_bytes(b"a secret")
    (root / "out").symlink_to(tmp_path / "secret" if source == "out" else tmp_path)
    (root / "loop").symlink_to(root / "loop")
    os.mkfifo(root / "pipe")

    with pytest.raises(ReferenceUnreadableError, match="no such file below the engine's --input-root"):
        gather(picture(source.format(root=root)), Sources(folder=folder, input_root=root))


def test_local_paths_below_the_input_root_are_read_however_they_are_written(
    folder: ReferenceFolder, tmp_path: Path
) -> None:
    root = tmp_path / "inputs"
    (root / "cats").mkdir(parents=True)
    (root / "cats" / "tom.png").write_bytes(CAT)
    (root / "tom.png").symlink_to("cats/tom.png")
    (tmp_path / "link").symlink_to(root)

    for source in ("cats/tom.png", "tom.png", "cats/../cats/tom.png", str(root / "cats" / "tom.png")):
        with gather(picture(source), Sources(folder=folder, input_root=tmp_path / "link")) as gathered:
            assert gathered.job.media[0].source == key_of(CAT)


def test_a_job_is_kept_without_the_queries_of_its_links() -> None:
    job = picture("https://example.com/cat.png?signature=secret", sha256=sha256_of(CAT))

    assert without_queries(job).media[0].source == "https://example.com/cat.png"
    assert without_queries(job).job_id == job.job_id
