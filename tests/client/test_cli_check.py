"""`h3 check`: a job, a sweep or files, counted without queue or store."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import small_media
from h3_command import RunH3, line, on_terminal, sentence

from client.expected import Records
from client.media_kinds import has_media
from media.step_cost import step_work
from queue_schemas.benchmark import BenchmarkRecord
from queue_schemas.checks import CheckReport
from queue_schemas.json_schemas import json_schemas
from queue_schemas.results import Manifest
from storage.local import LocalStore

MakeJob = Callable[..., dict[str, Any]]
EndRun = Callable[..., Manifest]


@pytest.fixture
def files(h3: RunH3, tmp_path: Path) -> Path:
    """The working folder, with a picture, a clip and a sound."""
    small_media.picture(tmp_path / "fox.png", width=640, height=384)
    small_media.clip(tmp_path / "run.mp4")
    small_media.sound(tmp_path / "voice.wav")
    return tmp_path


def test_files_are_the_references_of_a_default_job(h3: RunH3, files: Path) -> None:
    done = h3("check", "voice.wav", "fox.png,size=max", "run.mp4,audio=off", "--seconds", "10", "--json")

    report = line(done)
    assert (done.returncode, done.stderr) == (0, "")
    assert [(r["place"], r["label"]) for r in report["references"]] == [
        ("references[1]", "<Picture 1>"),
        ("references[2]", "<Video 1>"),
        ("references[0]", "<Audio 1>"),
    ]
    assert (report["job"]["frames"], report["references"][0]["width"]) == (243, 640)
    assert report["tokens"]["prompt_is_estimate"] is True
    assert not [path for path in files.iterdir() if path.is_dir()]
    jsonschema.validate(report, json.loads(json_schemas()["check-report.schema.json"]))


def test_a_job_file_is_checked_as_the_node_would_get_it(h3: RunH3, files: Path) -> None:
    folder = files / "jobs"
    folder.mkdir()
    body = {"prompt": "a fox", "first_frame": "../fox.png", "seed": 3, "output": "fox.mp4", "checkpoint": "c"}
    (folder / "job.json").write_text(json.dumps(body))

    report = line(h3("check", folder / "job.json", "--width", "320", "--height", "192"))

    assert (report["job"]["workflow"], report["job"]["seed"]) == ("fl2va", 3)
    assert report["references"][0].items() >= {"place": "first_frame", "width": 320, "height": 192}.items()
    assert report["job"]["first_frame"]["source"].startswith("references/")


def test_a_sweep_is_checked_once_for_each_cost(h3: RunH3, files: Path) -> None:
    (files / "sweep.yaml").write_text(
        "prompts: [a fox, a much longer prompt]\nseeds: 3\nwidth: 320\nheight: 192\n"
        "axes: {references: [fox.png, [fox.png, voice.wav]]}\n"
    )

    told = line(h3("check", "sweep.yaml"))

    assert told["runs"] == 12
    assert [(c["runs"], len(c["references"]), c["job"]["prompt"]) for c in told["checks"]] == [
        (6, 1, "a much longer prompt"),
        (6, 2, "a much longer prompt"),
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "nothing to check"),
        (["none.png"], r"references[0] (none.png) is not there; name the file itself"),
        (["voice.wav"], "sounds alone are no reference"),
        (["short.mp4"], "references[0] (short.mp4): it lasts 1.000 s; a clip has at least 2 s"),
        (
            ["long.mp4", "long.mp4"],
            "references[1] (long.mp4): with it the clips last 8.000 + 8.000 = 16.000 s",
        ),
        (["thin.png"], "references[0] (thin.png): it has 320x64 pixels, a ratio of 5.00:1"),
        (["fox.png", "job.json"], "job.json is a job or a sweep; check it by itself"),
        (["job.json"], "job.json: unknown field 'promt' (did you mean 'prompt'?)"),
        (["fox.png", "--width", "100"], "width: 100 is not a multiple of 32"),
        ([f"references/{'0' * 64}.png"], "lies in a store; name it by --storage"),
        (["https://x.example/a.png?secret", "--no-fetch"], "--no-fetch follows none"),
    ],
)
def test_what_is_wrong_is_refused_with_code_2(
    h3: RunH3, files: Path, arguments: list[str], said: str
) -> None:
    small_media.clip(files / "short.mp4", seconds=1)
    small_media.clip(files / "long.mp4", seconds=8, width=16, height=16)
    small_media.picture(files / "thin.png", width=320, height=64)
    (files / "job.json").write_text('{"prompt": "a", "promt": "b"}')

    done = h3("check", *arguments)

    assert done.returncode == 2
    assert said in sentence(done)
    assert "secret" not in done.stderr + done.stdout


def test_a_terminal_shows_a_table_and_what_was_changed(files: Path) -> None:
    (files / "fox.png").rename(files / "fox.jpg")

    code, shown = on_terminal(
        "check",
        files / "fox.jpg",
        f"{files}/run.mp4,audio={files}/voice.wav",
        "--width",
        "320",
        "--height",
        "192",
    )

    assert code == 0
    assert "ref2va, 320x192, 124 frames, 20 steps" in shown
    assert "fox.jpg: The name ends in .jpg, but the file is a PNG picture" in shown
    assert "voice.wav: Resampled from 8,000 to 32,000 Hz." in shown
    assert "note: no checkpoint is named" in shown


def film_record(run_id: str, **request: Any) -> BenchmarkRecord:
    """A record of a film of 960x544, 124 frames and three steps, 10 s of it not denoising."""
    return BenchmarkRecord.model_validate(
        {
            **{"run_id": run_id, "job_id": run_id, "generation": 1, "attempt": 1, "status": "succeeded"},
            "request": {"width": 960, "height": 544, "frames": 124, "checkpoint": "h3", **request},
            "environment": {"node": "n", "device": "A", "platform": "p", "python": "3", "versions": {}},
            "tokens": {"text": 256, "video": 18_870, "audio": 414},
            "seconds": {"denoise_steps": [3.0, 2.0, 2.0], "total": 17.0},
            **{"started_at": "2026-01-01T00:00:00Z", "finished_at": "2026-01-01T00:00:17Z"},
        },
        strict=False,
    )


def test_times_follow_from_the_records_in_a_store(
    h3: RunH3, storage: Path, files: Path, make_job: MakeJob, end_run: EndRun
) -> None:
    store = LocalStore(storage)
    manifest = end_run(store, make_job())
    record = film_record(manifest.run_id)
    store.put_bytes(manifest.files["benchmark"].name, record.model_dump_json().encode())

    told = line(h3("check", "fox.png", "--steps", "3", "--storage", storage))

    (seconds,) = told["seconds"]
    assert (seconds["device"], seconds["records"]) == ("A", 1)
    assert seconds["step"] == pytest.approx(
        2.0 * step_work(told["tokens"]["total"]) / step_work(19_540), abs=1e-3
    )
    assert seconds["total"] == pytest.approx(3 * seconds["step"] + 10.0, abs=1e-3)


def test_films_of_the_jobs_own_checkpoint_tell_alone_where_there_are_any() -> None:
    records = Records([film_record("a"), film_record("b", checkpoint="other", frames=62)])

    (own,), (any_other,) = (records.expect(_report(checkpoint=name)) for name in ("h3", "third"))

    assert (own.records, own.step, own.total) == (1, 2.0, 4 * 2.0 + 10.0)
    assert (any_other.records, any_other.total) == (2, 4 * 2.0 + 15.0)  # the same rest for half the pixels


def _report(**fields: Any) -> CheckReport:
    tokens = {"prompt": 1, "prompt_is_estimate": True, "text": 1, "conditions": 0, "audio": 1, "video": 1}
    return CheckReport.model_validate(
        {
            "job": {"width": 960, "height": 544, "frames": 124, "steps": 4, **fields},
            "job_id": "j",
            "tokens": {**tokens, "total": 19_540},
            "memory": {"activations_bytes": 1},
        }
    )


def test_without_the_extra_names_tell_kinds_and_a_check_says_what_to_install(
    h3: RunH3, files: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_media.cache_clear()
    monkeypatch.setitem(sys.modules, "av", None)
    try:
        refused, plain = h3("check", "fox.png"), h3("check", "--width", "320")
        queued = h3(
            "submit",
            "a fox",
            "--reference",
            "fox.png",
            "--checkpoint",
            "c",
            "--no-follow",
            H3_REDIS_URL=redis_url,
        )
    finally:
        has_media.cache_clear()

    assert refused.returncode == 2
    assert "pip install 'h3-blackwell-runtime[media]'" in sentence(refused)
    assert (plain.returncode, line(plain)["references"]) == (0, [])
    assert queued.returncode == 0
