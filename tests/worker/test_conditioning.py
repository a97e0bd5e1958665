"""The conditioning cache of a node: who bypasses it, what records say of it, the store that nodes share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fleet import Fleet
from own_s3 import OwnS3

from model.conditioning.shared import SharedStoreError
from queue_schemas.benchmark import BenchmarkRecord
from queue_schemas.errors import InvalidRequestError
from queue_schemas.requests import GenerateRequest
from storage.identity import store_identity
from storage.layout import attempt_prefix
from storage.uri import open_store
from worker.conditioning import StoredConditioning, conditioning_options
from worker.engine import Engine
from worker.settings import Settings

KEY = "ab" * 32
MakeRequest = Callable[..., GenerateRequest]


def use_told(engine: Engine, request: GenerateRequest) -> str:
    return engine.generate(request, on_event=lambda _: None, cancelled=lambda: False).conditioning_cache


def test_a_request_says_whether_it_wants_the_cache_and_the_result_what_became_of_that(
    engine: Engine, make_request: MakeRequest
) -> None:
    asked: list[dict[str, Any]] = [{}, {"conditioning_cache": "use"}, {"conditioning_cache": "off"}]
    requests = [make_request(**each) for each in asked]

    assert [use_told(engine, request) for request in requests] == ["miss", "miss", "off"]
    assert len({request.job.job_id for request in requests}) == 1  # it is no part of the job
    with pytest.raises(InvalidRequestError, match="conditioning_cache"):
        make_request(conditioning_cache="hit")


def test_a_run_that_repeats_another_bypasses_the_cache_and_its_record_says_so(fleet: Fleet) -> None:
    with fleet.pulling():
        first = fleet.submit()
        again = fleet.submit(run_id=f"{first}-r1")
        fleet.wait(first)
        fleet.wait(again)

    def record(run_id: str) -> BenchmarkRecord:
        path = fleet.store / attempt_prefix(run_id, 1, 1) / "benchmark.json"
        return BenchmarkRecord.model_validate_json(path.read_bytes())

    assert record(first).conditioning_cache == "miss"
    assert record(again).conditioning_cache == "off"
    assert record(again).request == record(first).request


def test_settings_give_bounds_folder_and_store(tmp_path: Path) -> None:
    plain = conditioning_options(Settings(output_dir=tmp_path))
    chosen = conditioning_options(
        Settings(
            conditioning_memory_gb=0.5,
            conditioning_disk_gb=0,
            conditioning_dir=tmp_path / "kept",
            conditioning_shared=True,
        )
    )

    assert (plain.memory_bytes, plain.folder_bytes, plain.shared) == (2 * 10**9, 10**10, None)
    assert plain.folder == tmp_path / "conditioning"
    assert (chosen.memory_bytes, chosen.folder_bytes, chosen.folder) == (5 * 10**8, 0, tmp_path / "kept")
    assert isinstance(chosen.shared, StoredConditioning)


def test_nodes_share_through_a_folder_that_a_fleet_has_begun(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    shared = StoredConditioning(store)
    with pytest.raises(SharedStoreError, match="no store of a fleet"):
        shared.put(KEY, b"entry")
    assert not (tmp_path / "store").exists()

    store_identity(store)
    shared.put(KEY, b"entry")
    shared.put(KEY, b"newer")

    assert shared.get(KEY, limit_bytes=5) == b"newer"
    assert shared.get(KEY, limit_bytes=4) == b""
    assert shared.get("cd" * 32, limit_bytes=5) is None
    assert (tmp_path / "store" / "conditioning" / f"{KEY}.safetensors").read_bytes() == b"newer"


def test_nodes_share_through_a_bucket_and_a_dead_service_is_told_as_away(own_s3: OwnS3) -> None:
    store = open_store(own_s3.url)
    store_identity(store)
    shared = StoredConditioning(store)

    shared.put(KEY, b"entry")

    assert shared.get(KEY, limit_bytes=100) == b"entry"
    own_s3.kill()
    with pytest.raises(SharedStoreError):
        shared.get(KEY, limit_bytes=100)
