"""`POST /generate` with references: keys, links and local paths; refused early, prepared early, and told."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import small_media
from engine_server import served
from fake_pipeline import FakePipeline
from own_links import LinkServer, whole

from queue_schemas.checks import CheckReport
from queue_schemas.results import GenerateResult
from storage.links import LinkRules
from worker.doors import Doors
from worker.engine import Engine
from worker.service import EngineSlot

MakeFields = Callable[..., dict[str, Any]]
MEDIA = {"Content-Type": "application/octet-stream"}


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    """A folder with a picture, a clip and a sound."""
    folder = tmp_path / "inputs"
    folder.mkdir()
    small_media.picture(folder / "fox.png", width=200, height=100)
    small_media.clip(folder / "walk.mp4")
    small_media.sound(folder / "voice.wav")
    return folder


@contextmanager
def serving(pipeline: FakePipeline, root: Path, **options: Any) -> Iterator[httpx.Client]:
    engine = Engine(pipeline, output_root=root, node="test-node", **options)
    with (
        served(EngineSlot(engine), Doors()) as url,
        httpx.Client(base_url=url, timeout=30, trust_env=False) as client,
    ):
        yield client
        pipeline.release.set()
    engine.close()


@pytest.fixture
def http(pipeline: FakePipeline, tmp_path: Path) -> Iterator[httpx.Client]:
    with serving(pipeline, tmp_path / "engine") as client:
        yield client


def upload(http: httpx.Client, path: Path) -> str:
    return str(http.post("/references", content=path.read_bytes(), headers=MEDIA).json()["key"])


def test_uploaded_files_become_a_film_whose_receipts_name_them(
    http: httpx.Client, make_fields: MakeFields, inputs: Path
) -> None:
    keys = {name: upload(http, inputs / name) for name in ("fox.png", "walk.mp4", "voice.wav")}
    references = [
        {"kind": "image", "source": keys["fox.png"]},
        {"kind": "video", "source": keys["walk.mp4"], "audio": keys["voice.wav"]},
    ]
    body = make_fields(workflow="ref2va", references=references, frames=22, output="fox.mp4")

    result = GenerateResult.model_validate_json(http.post("/generate", json=body).content)

    assert [item.place for item in result.references] == ["references[0]", "references[1]"]
    assert [item.sha256 for item in result.references] == [
        keys[name].removeprefix("references/").partition(".")[0] for name in ("fox.png", "walk.mp4")
    ]
    assert result.prompt is not None
    assert result.seconds.reference_prepare is not None
    assert result.seconds.engine_wait is not None
    assert http.get("/outputs/fox.mp4").status_code == 200


def test_a_first_frame_by_link_is_fetched_and_no_query_is_kept(
    *,
    pipeline: FakePipeline,
    make_fields: MakeFields,
    inputs: Path,
    tmp_path: Path,
    link_server: LinkServer,
    link_rules: LinkRules,
) -> None:
    link_server.answers["/fox.png"] = whole((inputs / "fox.png").read_bytes())
    link = link_server.link("/fox.png?signature=secret")
    body = make_fields(workflow="fl2va", first_frame=link)

    with serving(pipeline, tmp_path / "engine", links=link_rules) as http:
        answer = http.post("/generate", json=body)
        again = http.post(
            "/generate", json=make_fields(workflow="fl2va", first_frame=answer.json()["job"]["first_frame"])
        )

    assert (answer.status_code, again.status_code) == (200, 200)
    assert answer.json()["job"]["first_frame"]["source"].endswith(".png")
    assert answer.json()["job_id"] == again.json()["job_id"]
    assert "secret" not in answer.text
    assert len(link_server.heads) == 1


def test_callers_with_slow_links_keep_nobody_and_nothing_is_fetched_for_one_who_left(
    *,
    pipeline: FakePipeline,
    make_fields: MakeFields,
    inputs: Path,
    tmp_path: Path,
    link_server: LinkServer,
    link_rules: LinkRules,
) -> None:
    left = threading.Event()

    def drip(caller: Any) -> None:
        caller.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        try:
            while not left.wait(0.02):
                caller.sendall(b"y")
        except OSError:
            left.set()

    link_server.answers |= {"/slow.png": drip, "/fox.png": whole((inputs / "fox.png").read_bytes())}
    slow, quick = (make_fields(first_frame=link_server.link(f"/{name}.png")) for name in ("slow", "fox"))
    for body in (slow, quick):
        del body["workflow"]
    with serving(pipeline, tmp_path / "engine", links=link_rules) as http:
        key = upload(http, inputs / "fox.png")

        def leave() -> None:
            with pytest.raises(httpx.ReadTimeout):
                http.post("/generate", json=slow, timeout=1.0)

        callers = [threading.Thread(target=leave) for _ in range(3)]
        for caller in callers:
            caller.start()
        stored = http.post("/generate", json={**quick, "first_frame": key}, timeout=5)
        kept = any(caller.is_alive() for caller in callers)
        for caller in callers:
            caller.join(10)
        linked = http.post("/generate", json=quick, timeout=10)

    assert (stored.status_code, linked.status_code, kept) == (200, 200, True)
    assert left.wait(10)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("fox.png", "references[0] (fox.png): it is a local path, and this engine reads none"),
        (f"references/{'ab' * 32}.png", "it is not known here; send the file to POST /references first"),
        (
            "https://localhost/fox.png?x=secret",
            "references[0] (https://localhost/fox.png): it leads to an address",
        ),
    ],
)
def test_a_file_that_is_not_to_be_had_is_told_by_place_before_the_gpu_is_touched(
    http: httpx.Client, pipeline: FakePipeline, make_fields: MakeFields, source: str, says: str
) -> None:
    body = make_fields(workflow="ref2va", references=[{"kind": "image", "source": source}])

    answer = http.post("/generate", json=body)

    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "reference_unreadable")
    assert says in answer.json()["error"]["message"]
    assert "secret" not in answer.text
    assert pipeline.steps_run == 0


def test_local_paths_are_read_below_the_input_root_only_and_a_wrong_one_is_called_by_its_name(
    pipeline: FakePipeline, make_fields: MakeFields, inputs: Path, tmp_path: Path
) -> None:
    (inputs / "torn.png").write_bytes((inputs / "fox.png").read_bytes()[:100])

    def asking(source: str) -> dict[str, Any]:
        return make_fields(workflow="ref2va", references=[{"kind": "image", "source": source}])

    with serving(pipeline, tmp_path / "engine", input_root=inputs) as http:
        good = http.post("/generate", json=asking("fox.png"))
        out = http.post("/generate", json=asking("../inputs.png"))
        torn = http.post("/generate", json=asking("torn.png"))
        streamed = http.post("/generate", json=asking("torn.png"), headers={"Accept": "application/x-ndjson"})

        assert not http.get("/ready").json()["busy"]  # what is refused gives its seat back
    assert good.json()["references"][0]["place"] == "references[0]"
    assert (out.status_code, "--input-root" in out.json()["error"]["message"]) == (422, True)
    assert (torn.status_code, torn.json()["error"]["code"]) == (422, "reference_unreadable")
    assert torn.json()["error"]["message"].startswith("references[0] (torn.png): ")
    assert '"code":"reference_unreadable"' in streamed.text
    assert pipeline.steps_run == 3


def test_a_wrong_checkpoint_is_told_before_any_file_is_asked_for(
    pipeline: FakePipeline,
    make_fields: MakeFields,
    tmp_path: Path,
    link_server: LinkServer,
    link_rules: LinkRules,
) -> None:
    body = make_fields(workflow="fl2va", last_frame=link_server.link("/fox.png"), checkpoint="other")

    with serving(pipeline, tmp_path / "engine", links=link_rules) as http:
        answer = http.post("/generate", json=body)

    assert (answer.status_code, link_server.heads) == (409, [])


def test_a_dry_run_tells_what_a_job_would_cost_and_makes_nothing(
    http: httpx.Client, pipeline: FakePipeline, make_fields: MakeFields, inputs: Path, tmp_path: Path
) -> None:
    key = upload(http, inputs / "fox.png")
    body = make_fields(workflow="ref2va", references=[{"kind": "image", "source": key}], dry_run=True)

    report = CheckReport.model_validate_json(http.post("/generate", json=body).content)
    plain = http.post("/generate", json=make_fields(dry_run=True))

    assert (report.references[0].label, report.references[0].kind) == ("<Picture 1>", "image")
    assert report.references[0].tokens > 0
    assert (plain.status_code, plain.json()["references"]) == (200, [])
    assert pipeline.steps_run == 0
    assert [path.name for path in (tmp_path / "engine").iterdir()] == ["references"]


def test_dry_runs_wait_for_each_other_and_too_many_are_refused(
    engine: Engine, make_fields: MakeFields, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once, most, hold = [0], [0], threading.Event()
    describe = Engine.describe

    def slow(self: Engine, gathered: Any) -> CheckReport:
        at_once[0] += 1
        most[0] = max(most[0], at_once[0])
        hold.wait(20)
        at_once[0] -= 1
        return describe(self, gathered)

    monkeypatch.setattr(Engine, "describe", slow)
    statuses: list[int] = []
    with served(EngineSlot(engine), Doors()) as url:

        def ask() -> None:
            body = make_fields(dry_run=True)
            statuses.append(httpx.post(f"{url}/generate", json=body, timeout=30, trust_env=False).status_code)

        callers = [threading.Thread(target=ask) for _ in range(12)]
        for caller in callers:
            caller.start()
        while len(statuses) < 4:  # those that were refused at once
            callers[0].join(0.01)
        assert httpx.get(f"{url}/ready", trust_env=False).status_code == 200
        hold.set()
        for caller in callers:
            caller.join(20)

    assert (sorted(statuses), most) == ([200] * 8 + [503] * 4, [1])
