"""JSON types are taken as they are: nothing is guessed from a text, a flag or a fraction."""

import json
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from queue_schemas import json_schemas, reservations, resident, runs
from queue_schemas.benchmark import BenchmarkRecord
from queue_schemas.errors import InvalidRequestError
from queue_schemas.events import EVENT_ADAPTER, JobError, ProgressEvent
from queue_schemas.jobs import JOB_ADAPTER, Ref2VAJob, build_job
from queue_schemas.nodes import NodeCard
from queue_schemas.requests import load_json_object, parse_request
from queue_schemas.resident import ResidentSet
from queue_schemas.results import GenerateResult, Manifest
from queue_schemas.sweeps import Sweep

COMPLETE = {"prompt": "a red fox", "seed": 7, "checkpoint": "h3-tiny"}
MANIFEST = {
    "run_id": "a",
    "job_id": "a",
    "generation": 1,
    "attempt": 1,
    "status": "succeeded",
    "finished_at": "2026-01-01T00:00:00Z",
}
RECORD = {**MANIFEST, "request": {}, "started_at": "2026-01-01T00:00:00Z"}
CARD = {
    "node": "n",
    "checkpoint": "c",
    "weights": "real",
    "device": "cpu",
    "attention_backends": ["sdpa"],
    "started_at": "2026-01-01T00:00:00Z",
}


def all_models() -> set[type[BaseModel]]:
    assert json_schemas
    assert reservations
    assert resident
    assert runs
    found, pending = set(), [BaseModel]
    while pending:
        kinds = [k for k in pending.pop().__subclasses__() if k.__module__.startswith("queue_schemas.")]
        found |= set(kinds)
        pending += kinds
    return found


def test_every_model_is_frozen_strict_and_finite() -> None:
    models = all_models()

    assert len(models) > 30
    for model in models:
        config = model.model_config
        assert config.get("frozen"), model
        assert config.get("strict"), model
        assert config.get("allow_inf_nan") is False, model
        assert config.get("extra") in ("forbid", "ignore"), model


@pytest.mark.parametrize(
    "field",
    [
        {"steps": True},
        {"steps": 8.0},
        {"steps": "8"},
        {"seed": "7_0"},
        {"seed": 7.0},
        {"width": "64"},
        {"width": 64.0},
        {"frames": False},
        {"shift_video": "12"},
        {"shift_video": True},
        {"vae_tile_size": "256"},
        {"schema_version": True},
        {"schema_version": 1.0},
        {"prompt": b"a fox"},
        {"sampler": 1},
        {"conventions": True},
        {"checkpoint": 3},
        {"first_frame": 1},
        {"references": [{"kind": "image", "source": 1}]},
        {"references": "ab"},
        {"references": {"kind": "image"}},
        {"dry_run": "off"},
        {"dry_run": 0},
        {"output": 1},
    ],
)
def test_a_wrong_json_type_in_a_request_is_refused_naming_the_field(field: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match=next(iter(field))):
        parse_request({**COMPLETE, **field})


def test_a_whole_number_may_stand_for_a_fraction_and_words_for_choices() -> None:
    job = build_job({**COMPLETE, "shift_video": 12, "sampler": "euler", "vae_dtype": "float16"})

    assert job.job_id == build_job(COMPLETE).job_id
    assert JOB_ADAPTER.validate_json(job.model_dump_json()) == job
    assert JOB_ADAPTER.validate_python(json.loads(job.model_dump_json())) == job
    references = build_job({**COMPLETE, "references": [{"kind": "image", "source": "a.png"}]})
    assert isinstance(references, Ref2VAJob)
    assert JOB_ADAPTER.validate_python(references.model_dump(mode="json")) == references


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        (Manifest, {**MANIFEST, "generation": True}),
        (Manifest, {**MANIFEST, "attempt": "1"}),
        (Manifest, {**MANIFEST, "schema_version": True}),
        (
            Manifest,
            {**MANIFEST, "files": {"video": {"name": "a", "size_bytes": 2.0, "sha256": "0"}}},
        ),
        (Manifest, {**MANIFEST, "error": {"code": "stalled", "message": "x", "retryable": "yes"}}),
        (BenchmarkRecord, {**RECORD, "seconds": {"total": "2.5"}}),
        (BenchmarkRecord, {**RECORD, "seconds": {"denoise_steps": [True]}}),
        (BenchmarkRecord, {**RECORD, "cold": "no"}),
        (NodeCard, {**CARD, "busy": "no"}),
        (NodeCard, {**CARD, "pullers": "2"}),
        (
            Sweep,
            {"sweep_id": "s", "created_at": "x", "runs": [{"run_id": "a", "job": {}, "generation": "1"}]},
        ),
        (ProgressEvent, {"stage": "denoise", "step": "1"}),
        (JobError, {"code": "stalled", "message": "x", "retryable": 1}),
        (
            ResidentSet,
            {"name": "a", "transformer": {"fl2va": "f"}, "text_encoder": "t", "loras": [{"name": 1}]},
        ),
    ],
)
def test_a_wrong_json_type_is_no_value_elsewhere_either(
    model: type[BaseModel], fields: dict[str, Any]
) -> None:
    with pytest.raises(ValidationError):
        model.model_validate(fields)
    with pytest.raises(ValidationError):
        model.model_validate_json(json.dumps(fields))


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_number_that_is_none_is_read_nowhere(number: str) -> None:
    record = json.dumps({**RECORD, "seconds": {"total": "X"}}).replace('"X"', number)
    request = json.dumps({**RECORD, "request": {"a": [{"b": "X"}]}}).replace('"X"', number)
    progress = f'{{"event":"progress","stage":"denoise","seconds":{number}}}'
    result = f'{{"event":"result","result":{{"seconds":{{"total":{number}}}}}}}'

    for read, text in (
        (BenchmarkRecord.model_validate_json, record),
        (BenchmarkRecord.model_validate_json, request),
        (EVENT_ADAPTER.validate_json, progress),
        (EVENT_ADAPTER.validate_json, result),
    ):
        with pytest.raises(ValidationError, match="finite"):
            read(text)
    with pytest.raises(InvalidRequestError, match="is no JSON number"):
        load_json_object(f'{{"shift_video": {number}}}'.encode(), limit_bytes=100)


@pytest.mark.parametrize("status", ["queued", "running"])
def test_a_manifest_tells_an_end(status: str) -> None:
    with pytest.raises(ValidationError, match="no end of a run"):
        Manifest.model_validate({**MANIFEST, "status": status})


def test_values_made_in_python_need_no_detour_through_json() -> None:
    assert GenerateResult.model_validate(
        {
            "job_id": "a",
            "output": "a.mp4",
            "job": {},
            "environment": {
                "node": "n",
                "device": "cpu",
                "platform": "linux",
                "python": "3.11",
                "versions": {},
            },
            "checkpoint": {"name": "a", "weights": "random", "transformer_layout": "full", "files": []},
            "backends": dict.fromkeys(
                (
                    "attention",
                    "transformer_dtype",
                    "text_encoder_dtype",
                    "video_vae_dtype",
                    "audio_vae_dtype",
                ),
                "x",
            ),
            "cold": True,
            "jobs_served": 0,
        }
    )
