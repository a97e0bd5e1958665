"""Events and results read leniently, environment names strictly, error codes once."""

import pytest

from queue_schemas.environment import ENVIRONMENT, EnvironmentNameError, check_environment
from queue_schemas.errors import EXIT_REFUSED, EXIT_RUNTIME, ErrorCode, nearest_hint
from queue_schemas.events import EVENT_ADAPTER, ErrorEvent, JobStatus, ProgressEvent, ResultEvent, Stage
from queue_schemas.results import Manifest


def test_each_event_is_told_apart_by_its_name() -> None:
    progress = EVENT_ADAPTER.validate_python(
        {"event": "progress", "stage": "denoise", "step": 3, "steps": 20}
    )
    failed = EVENT_ADAPTER.validate_python(
        {"event": "error", "error": {"code": "stalled", "message": "no step ended", "retryable": True}}
    )
    result = EVENT_ADAPTER.validate_python({"event": "result", "result": {"job_id": "a"}})

    assert progress == ProgressEvent(stage=Stage.DENOISE, step=3, steps=20)
    assert isinstance(failed, ErrorEvent)
    assert failed.error.code is ErrorCode.STALLED
    assert isinstance(result, ResultEvent)


def test_a_reader_ignores_fields_of_a_newer_version() -> None:
    manifest = Manifest.model_validate(
        {
            "run_id": "a",
            "job_id": "a",
            "generation": 1,
            "attempt": 1,
            "status": "succeeded",
            "finished_at": "2026-01-01T00:00:00Z",
            "from_the_future": {"x": 1},
        }
    )

    assert manifest.status is JobStatus.SUCCEEDED


def test_only_three_states_are_ends() -> None:
    ends = {status for status in JobStatus if status.terminal}

    assert ends == {JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELLED}


def test_what_is_refused_is_never_worth_a_retry_and_the_rest_is_a_failure() -> None:
    refused = {code for code in ErrorCode if code.exit_code == EXIT_REFUSED}

    assert refused == {code for code in ErrorCode if not code.retryable} - {ErrorCode.CANCELLED}
    assert {ErrorCode.CHECKPOINT_INVALID, ErrorCode.OUTPUT_REJECTED} < refused
    assert {code.exit_code for code in ErrorCode} == {EXIT_REFUSED, EXIT_RUNTIME}


def test_an_unknown_environment_name_is_a_warning_with_the_nearest_one() -> None:
    assert check_environment({"H3_REDIS_ULR": "x", "PATH": "/bin", "H3_FLEET": "a"}) == [
        "unknown environment name H3_REDIS_ULR (did you mean 'H3_REDIS_URL'?)"
    ]
    assert check_environment(dict.fromkeys(ENVIRONMENT, "0")) == []


def test_an_unknown_environment_name_is_an_error_where_strict() -> None:
    with pytest.raises(EnvironmentNameError, match="H3_REDIS_ULR"):
        check_environment({"H3_REDIS_ULR": "x", "H3_STRICT_ENV": "1"})


def test_a_name_that_resembles_nothing_gets_no_hint() -> None:
    assert nearest_hint("zzzz", ["steps"]) == ""
