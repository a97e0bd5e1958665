"""References end to end on h3-tiny: real files, a real engine, and films that differ by them."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
import small_media
from engine_server import served
from fleet import Fleet
from own_s3 import OwnS3

from model.startup import load_pipeline
from model.synthetic.h3_tiny import write_h3_tiny
from queue_schemas.benchmark import BenchmarkRecord
from queue_schemas.checks import CheckedReference, CheckReport
from queue_schemas.events import JobStatus
from queue_schemas.receipts import ReferenceReceipt
from queue_schemas.results import GenerateResult, Manifest
from storage.layout import manifest_key, reference_key
from storage.uri import open_store
from worker.doors import Doors
from worker.engine import Engine
from worker.service import EngineSlot
from worker.settings import Settings

SMALL = {"prompt": "a red fox", "width": 64, "height": 32, "frames": 22, "steps": 2, "seed": 7}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("node")
    write_h3_tiny(folder / "models")
    pipeline = load_pipeline(models_dir=folder / "models", device="cpu")
    engine = Engine(pipeline, output_root=folder / "engine", node="test-node")
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def url(engine: Engine) -> Iterator[str]:
    with served(EngineSlot(engine), Doors()) as url:
        yield url


@pytest.fixture
def http(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=120, trust_env=False) as client:
        yield client


def upload(http: httpx.Client, path: Path) -> str:
    answer = http.post("/references", content=path.read_bytes(), headers={"Content-Type": "image/png"})
    return str(answer.json()["key"])


def generate(http: httpx.Client, **fields: Any) -> GenerateResult:
    answer = http.post("/generate", json={**SMALL, **fields})
    assert answer.status_code == 200, answer.text
    return GenerateResult.model_validate_json(answer.content)


def test_a_dry_run_counts_what_the_film_then_has(http: httpx.Client, tmp_path: Path) -> None:
    picture = upload(http, small_media.picture(tmp_path / "fox.png"))
    clip = upload(http, small_media.clip(tmp_path / "walk.mp4"))
    references = [{"kind": "video", "source": clip}, {"kind": "image", "source": picture}]
    job = {"references": references, "prompt": r"\(a fox\) as in <Picture 1>, embedding:none"}

    told = CheckReport.model_validate_json(
        http.post("/generate", json={**SMALL, **job, "dry_run": True}).content
    )
    made = generate(http, **job)

    tokens = made.tokens
    assert tokens is not None
    assert made.prompt is not None
    assert not told.tokens.prompt_is_estimate
    assert (told.tokens.text, told.tokens.conditions) == (made.prompt.tokens, tokens.conditions)
    shared = set(CheckedReference.model_fields) - {"step_share", "sound"}
    assert [reference.model_dump(include=shared) for reference in told.references] == [
        receipt.model_dump(include=shared) for receipt in made.references
    ]


def test_a_film_from_picture_clip_and_sound_proves_each_of_them(http: httpx.Client, tmp_path: Path) -> None:
    picture = upload(http, small_media.picture(tmp_path / "fox.png"))
    other = upload(http, small_media.picture(tmp_path / "other.png", shade=200))
    clip = upload(http, small_media.clip(tmp_path / "walk.mp4"))
    sound = upload(http, small_media.sound(tmp_path / "voice.wav"))
    references = [
        {"kind": "audio", "source": sound},
        {"kind": "image", "source": picture},
        {"kind": "video", "source": clip},
    ]

    plain = generate(http)
    made = generate(http, references=references)
    another = generate(http, references=[references[0], {"kind": "image", "source": other}])

    assert [item.label for item in made.references] == ["<Picture 1>", "<Video 1>", "<Audio 1>"]
    assert [item.place for item in made.references] == ["references[1]", "references[2]", "references[0]"]
    assert [reference_key(item.sha256, "png") for item in made.references][:1] == [picture]
    for item in made.references:
        assert item.rows[1] > item.rows[0]
    assert made.tokens is not None
    assert made.tokens.conditions == sum(item.tokens for item in made.references)
    assert made.seconds.reference_encode is not None
    assert made.prompt is not None
    assert plain.prompt is not None
    assert made.prompt.features_sha256 != plain.prompt.features_sha256
    assert len({each.files[0].sha256 for each in (plain, made, another)}) == 3
    assert _latent(made.references[0]) != _latent(another.references[0])
    assert _latent(made.references[2]) == _latent(another.references[1])


def _latent(receipt: ReferenceReceipt) -> str:
    return receipt.latent_sha256


def test_keyframes_make_another_film_and_a_torn_one_none(http: httpx.Client, tmp_path: Path) -> None:
    frame = upload(http, small_media.picture(tmp_path / "fox.png"))
    link = "https://127.0.0.1/fox.png"

    first, last = generate(http, first_frame=frame), generate(http, last_frame=frame)
    refused = http.post("/generate", json={**SMALL, "first_frame": frame, "last_frame": link})

    assert ([item.place for item in first.references], [item.place for item in last.references]) == (
        ["first_frame"],
        ["last_frame"],
    )
    assert first.files[0].sha256 != last.files[0].sha256
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "reference_unreadable")


def test_a_reference_goes_from_a_bucket_over_the_queue_into_a_film(
    *, own_s3: OwnS3, redis_url: str, redis_connection: redis.Redis, url: str, engine: Engine, tmp_path: Path
) -> None:
    settings = Settings(redis_url=redis_url, engine_url=url, storage_url=own_s3.url)
    fleet, store = Fleet(redis_connection, settings), open_store(own_s3.url)
    picture = small_media.picture(tmp_path / "fox.png", shade=10)
    sha256 = hashlib.sha256(picture.read_bytes()).hexdigest()
    store.put_file(reference_key(sha256, "png"), picture)
    references = [{"kind": "image", "source": reference_key(sha256, "png")}]

    with fleet.pulling():
        run_id = fleet.submit(
            **{**SMALL, "workflow": "ref2va", "references": references, "checkpoint": engine.checkpoint}
        )
        fleet.wait(run_id, JobStatus.SUCCEEDED, seconds=60)

    manifest = Manifest.model_validate_json(
        store.read_bytes(manifest_key(run_id, 1), limit_bytes=10**6) or b""
    )
    (receipt,) = manifest.references
    assert (receipt.sha256, receipt.place, receipt.label) == (sha256, "references[0]", "<Picture 1>")
    data = store.read_bytes(manifest.files["benchmark"].name, limit_bytes=10**6)
    record = BenchmarkRecord.model_validate_json(data or b"")
    for name in ("reference_fetch", "reference_prepare", "reference_encode"):
        assert getattr(record.seconds, name) is not None, name
