"""References on their way to the store: hashed, checked, uploaded once; nothing is queued if one is bad."""

import asyncio
import hashlib
import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import small_media
from h3_command import SMALL, RunH3, line, on_terminal, sentence
from own_links import LinkServer, whole

from client.async_client import AsyncH3Client
from client.client import H3Client
from client.errors import NodeRequiredError, UploadError
from client.heartbeat import TransferNotes
from client.transfers import AT_ONCE, Move, Progress, ignore, move_all
from queue_schemas.errors import InvalidRequestError
from storage.errors import StorageUnavailableError
from storage.layout import sweep_key
from storage.links import LinkRules

if TYPE_CHECKING:
    from small_node import FakeNode

FIELDS: dict[str, Any] = {
    "prompt": "a fox",
    "seed": 7,
    "checkpoint": "h3-tiny",
    "width": 64,
    "height": 64,
    "frames": 5,
    "steps": 2,
}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a picture, a clip and a sound; the working one."""
    folder = tmp_path / "files"
    folder.mkdir()
    monkeypatch.chdir(folder)
    small_media.picture(folder / "fox.png")
    small_media.clip(folder / "run.mp4")
    small_media.sound(folder / "voice.wav")
    return folder


def stored(client: H3Client) -> list[str]:
    return list(client.store.list("references/"))


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_files_lie_in_the_store_before_the_job_that_names_them_is_queued(
    client: H3Client, node: "FakeNode", files: Path
) -> None:
    (files / "same.PNG").write_bytes((files / "fox.png").read_bytes())
    references = [
        files / "fox.png",
        str(files / "same.PNG"),
        {"source": files / "run.mp4", "audio": str(files / "voice.wav")},
    ]

    run = client.submit({**FIELDS, "references": references})

    job = node.queued()[0]["job"]
    assert job["workflow"] == "ref2va"
    keys = {
        name: f"references/{sha256(files / name)}.{name[-3:]}" for name in ("fox.png", "run.mp4", "voice.wav")
    }
    assert [item["source"] for item in job["references"]] == [
        keys["fox.png"],
        keys["fox.png"],
        keys["run.mp4"],
    ]
    assert job["references"][2]["audio"] == {
        "source": keys["voice.wav"],
        "sha256": sha256(files / "voice.wav"),
    }
    assert stored(client) == sorted(keys.values())
    assert str(files) not in str(run.job)


def test_two_hundred_runs_upload_a_picture_once(client: H3Client, node: "FakeNode", files: Path) -> None:
    fields = {**FIELDS, "first_frame": str(files / "fox.png")}

    sweep = client.sweep(["a fox", "a wave"], range(100), fields=fields)
    again = client.sweep(["a fox"], [1], fields={**fields, "first_frame": stored(client)[0]})

    assert len(stored(client)) == 1
    assert again.runs[0].run_id in {run.run_id for run in sweep.runs}
    assert {run.job.workflow for run in sweep.runs if run.job} == {"fl2va"}


@pytest.mark.parametrize(
    ("references", "said"),
    [
        (["none.png"], r"references\[0\] \(none.png\) is not there"),
        (["fox.png", "."], r"references\[1\] \(\.\) does not end in one of"),
        (["fox.png", {"source": "files", "kind": "image"}], r"references\[1\] \(files\) is no file"),
        (["x" * 300 + ".png"], r"references\[0\] \(x+.png\) cannot be read: File name too long"),
        (["~no-such-user/fox.png"], r"references\[0\] \(~no-such-user/fox.png\) is not there"),
        (["fox.png", "empty.wav"], r"references\[1\] \(empty.wav\): it is empty"),
        (
            ["big.png"],
            r"\[0\] \(big.png\) has 31,457,281 bytes; a reference of kind image has 1 to 31,457,280: make",
        ),
        (["fox.png"] * 10, "10 references of kind image; at most 9 are accepted"),
        (["voice.wav"], "sounds alone are no reference"),
        (
            [f"references/{'0' * 64}.png"],
            r"references\[0\] \(references/0+.png\) is not in .*name the file itself",
        ),
        ([{"source": f"references/{'0' * 64}.mp4", "kind": "image"}], "is of kind video, not image"),
        (
            ["https://127.0.0.1/a.png?key=secret"],
            r"references\[0\] \(https://127.0.0.1/a.png\): leads to an address",
        ),
        (["https://me:pw@x.example/a.png"], r"references\[0\] \(https://x.example/a.png\): holds a user"),
        ([{"source": "fox.png", "kind": "image", "weight": 2}], r"unknown field 'references.0.weight'"),
    ],
)
def test_what_is_no_reference_is_refused_by_place_and_name_and_nothing_is_stored(
    client: H3Client,
    node: "FakeNode",
    files: Path,
    references: list[Any],
    said: str,
) -> None:
    (files / "files").mkdir()
    (files / "empty.wav").touch()
    small_media.picture(files / "big.png")
    with (files / "big.png").open("r+b") as sparse:
        sparse.truncate(30 * 1024 * 1024 + 1)

    with pytest.raises((UploadError, InvalidRequestError), match=said) as caught:
        client.submit({**FIELDS, "references": references})

    assert "secret" not in str(caught.value)
    assert (node.queued(), list(client.store.list(""))) == ([], [])


def test_a_run_that_is_not_queued_uploads_nothing(client: H3Client, files: Path) -> None:
    with pytest.raises(NodeRequiredError):
        client.submit({**FIELDS, "references": [files / "fox.png"]}, require_node=True)

    assert stored(client) == []


def test_a_link_is_read_at_submit_and_only_its_content_is_kept(
    client: H3Client, node: "FakeNode", files: Path, link_server: LinkServer, link_rules: LinkRules
) -> None:
    client.link_rules = link_rules
    content = (files / "fox.png").read_bytes()
    link_server.answers["/a/fox.png"] = whole(content)
    link = link_server.link("/a/fox.png?signature=secret")

    client.submit_many([{**FIELDS, "seed": seed, "references": [link]} for seed in (1, 2)])

    assert [call["job"]["references"][0]["source"] for call in node.queued()] == stored(client) * 2
    assert stored(client) == [f"references/{hashlib.sha256(content).hexdigest()}.png"]
    assert len(link_server.heads) == 1
    (kept,) = (client.store.read_bytes(key, limit_bytes=9_999) for key in client.store.list("sweeps/"))
    assert b"https:" not in (kept or b"https:")
    with pytest.raises(UploadError, match=r"is a link, and --no-fetch follows none; name the file itself"):
        client.submit({**FIELDS, "references": [link]}, fetch=False)
    with pytest.raises(
        UploadError, match=r"references\[0\] \(https://localhost:\d+/b.png\): answered HTTP 404"
    ):
        client.submit({**FIELDS, "references": [link_server.link("/b.png?signature=secret")]})


def test_a_resumed_sweep_finds_its_references_in_the_store_or_says_which_is_gone(
    client: H3Client, node: "FakeNode", files: Path, storage: Path
) -> None:
    run = client.submit({**FIELDS, "references": [files / "fox.png"]})
    assert run.sweep_id is not None
    node.connection.flushall()

    resumed = client.resume(run.sweep_id)
    assert [r.run_id for r in resumed.runs] == [run.run_id]
    node.connection.flushall()
    (storage / stored(client)[0]).unlink()

    with pytest.raises(UploadError, match=r"references\[0\] \(references/\w+.png\) is not in"):
        client.resume(run.sweep_id)
    assert node.queued() == []


def test_a_store_that_is_away_is_told_for_each_file_and_nothing_is_queued(
    client: H3Client, node: "FakeNode", files: Path, storage: Path
) -> None:
    storage.mkdir()
    client.submit(FIELDS)
    (storage / "references").write_bytes(b"in the way")

    with pytest.raises(StorageUnavailableError, match=r"references\[0\] \(.*fox.png\)"):
        client.submit({**FIELDS, "references": [files / "fox.png"]})

    assert len(node.queued()) == 1
    assert len(list(client.store.list("sweeps/"))) == 1


def test_the_command_line_takes_references_in_order_with_options(
    h3: RunH3, redis_url: str, storage: Path, node: "FakeNode", files: Path
) -> None:
    where = ["--redis", redis_url, "--storage", str(storage), "--no-follow", *SMALL]
    fox, run, voice = (str(files / name) for name in ("fox.png", "run.mp4", "voice.wav"))

    named = ["--reference", f"{fox},size=max", "--reference", f"{run},audio={voice}", "--reference", voice]
    done = h3("submit", "a fox", *named, *where)
    frames = h3("submit", "a fox", "--first-frame", fox, "--last-frame", fox, "--workflow", "fl2va", *where)
    both = h3("submit", "a fox", *named, "--first-frame", fox, *where)
    link = h3("submit", "a fox", "--reference", "https://x.example/a.png", "--no-fetch", *where)

    assert (done.returncode, frames.returncode) == (0, 0), done.stderr
    first, second = (call["job"] for call in node.queued())
    assert [(item["kind"], item["size"]) for item in first["references"]] == [
        ("image", "max"),
        ("video", "match"),
        ("audio", "match"),
    ]
    assert first["references"][1]["audio"]["sha256"] == sha256(Path(voice))
    assert (second["workflow"], second["first_frame"]) == ("fl2va", second["last_frame"])
    assert (both.returncode, link.returncode) == (2, 2)
    assert "exclude each other" in sentence(both)
    assert "--no-fetch" in line(link)["error"]["message"]


def test_an_async_client_takes_paths_too(client: H3Client, node: "FakeNode", files: Path) -> None:
    run = asyncio.run(AsyncH3Client(client).submit({**FIELDS, "first_frame": files / "fox.png"}))

    assert node.queued()[0]["run_id"] == run.run_id
    assert len(stored(client)) == 1


def test_few_files_move_at_once_and_a_failure_names_its_file() -> None:
    running, together = list[int](), threading.Barrier(AT_ONCE, timeout=5)

    def act() -> int:
        running.append(1)
        together.wait()
        found = len(running)
        together.wait()
        return found

    def fail() -> int:
        raise UploadError("it changed")

    moves = [Move(name=f"references[{n}]: a.png", size_bytes=1, act=act) for n in range(2 * AT_ONCE)]
    failing = Move(name="references[9]: b.png", size_bytes=1, act=fail)
    heard: list[Progress] = []

    found = move_all(moves, verb="uploading", watch=heard.append)
    with pytest.raises(UploadError, match=r"^references\[9\]: b.png: it changed$"):
        move_all([failing], verb="uploading", watch=ignore)

    assert sorted(found) == [AT_ONCE] * AT_ONCE + [2 * AT_ONCE] * AT_ONCE
    assert (heard[-1].files_done, heard[-1].bytes_done, heard[-1].name) == (2 * AT_ONCE, 2 * AT_ONCE, "")


def test_uploads_are_spoken_of_once_they_take_over_two_seconds() -> None:
    now, said = [0.0], list[str]()
    notes = TransferNotes(said.append, clock=lambda: now[0])
    progress = Progress(
        verb="uploading", files_done=1, files=3, bytes_done=2**20, bytes=2**22, name="references[1]: b.mp4"
    )

    for now[0] in (0.0, 1.9, 2.1, 3.0, 11.0, 12.2):
        notes(progress)

    assert said == ["uploading references: 1 of 3 files, 1.0 of 4.0 MiB; now references[1]: b.mp4"] * 2


def test_a_file_that_changes_while_it_is_uploaded_never_lies_under_its_old_hash(
    client: H3Client, node: "FakeNode", files: Path
) -> None:
    from client.media_files import MediaFiles
    from queue_schemas.jobs import build_job

    job = build_job({**FIELDS, "first_frame": str(files / "fox.png")})
    with MediaFiles(client.store) as media:
        (settled,) = media.settled([job])
        small_media.picture(files / "fox.png", shade=1)
        with pytest.raises(UploadError, match=r"first_frame \(.*fox.png\): it changed while it was uploaded"):
            media.upload(client.store, [settled])

    assert stored(client) == []
    assert json.loads(settled.model_dump_json())["first_frame"]["source"].startswith("references/")
    assert client.store.read_bytes(sweep_key("none"), limit_bytes=10) is None


def test_a_film_tells_what_its_references_became(
    h3: RunH3, redis_url: str, storage: Path, working_node: "FakeNode", files: Path
) -> None:
    where = ["--redis", redis_url, "--storage", str(storage)]
    told = "<Picture 1> 64x64, 16 rows"

    done = line(h3("submit", "a fox", "--reference", files / "fox.png", *SMALL, "--seed", "1", *where))
    (run,) = done["runs"]
    _, shown = on_terminal("follow", run["run_id"], *where)
    _, fetched = on_terminal("fetch", done["sweep"], "--to", files / "films", *where)

    assert run["references"] == [
        {
            "place": "references[0]",
            "label": "<Picture 1>",
            "sha256": sha256(files / "fox.png"),
            "text_tokens": 12,
            "tokens": 4,
        }
    ]
    assert told in shown
    assert told in fetched
