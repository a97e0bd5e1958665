"""LoRAs of a node: offered by name, agreed on by the fleet, named in results and records."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from fake_pipeline import FakePipeline
from fleet import Fleet

from broker.nodes import live_nodes
from queue_schemas.benchmark import BenchmarkRecord
from queue_schemas.events import JobStatus
from queue_schemas.loras import LoraCard
from queue_schemas.nodes import EngineState
from storage.local import LocalStore
from worker.engine import Engine
from worker.errors import AgreementInUseError, NodeStartError
from worker.forgetting import forget_agreements
from worker.membership import Membership

TURBO = LoraCard(
    name="turbo", file="t.safetensors", header_sha256="ab" * 32, sample_sha256="cd" * 32,
    matched_modules=208, matched_tensors=624, num_tensors=624, steps=4, shift_video=6.0,
)  # fmt: skip


@pytest.fixture(autouse=True)
def turbo(pipeline: FakePipeline) -> None:
    pipeline.loras = [TURBO]


@pytest.fixture
def node(redis_connection: redis.Redis, tmp_path: Path) -> Membership:
    store = LocalStore(tmp_path / "store")
    made = Membership(connection=redis_connection, fleet="h3", store=store, pullers=1, engine_url="")
    made.check_store()
    return made


def test_a_body_without_steps_and_shifts_gets_those_of_its_lora(
    engine_url: str, make_fields: Callable[..., dict[str, Any]]
) -> None:
    fields = {name: value for name, value in make_fields().items() if name != "steps"}
    body = fields | {"dry_run": True, "loras": [{"name": "turbo", "strength": 0.8}]}

    filled = httpx.post(f"{engine_url}/generate", json=body, trust_env=False).json()
    other = httpx.post(f"{engine_url}/generate", json=body | {"steps": 20}, trust_env=False).json()

    assert [filled["job"][name] for name in ("steps", "shift_video", "shift_audio")] == [4, 6.0, 3.0]
    assert not any("made for" in note for note in filled["notes"])
    assert "LoRA turbo was made for steps 4; this job has 20" in other["notes"]
    assert other["job"]["loras"] == [{"name": "turbo", "strength": 0.8}]


def test_a_run_goes_to_a_node_that_has_its_lora_and_the_record_names_the_file(fleet: Fleet) -> None:
    asked = [{"name": "turbo", "strength": 0.8}]
    other = fleet.submit(needs=("lora:other",), seed=1, loras=[{"name": "other"}])
    run_id = fleet.submit(needs=("lora:turbo", "checkpoint:h3-fake"), steps=3, loras=asked)

    with fleet.pulling():
        fleet.wait(run_id)

    record = BenchmarkRecord.model_validate_json(
        (fleet.store / fleet.manifest(run_id).files["benchmark"].name).read_bytes()
    )
    (lora,) = record.loras
    assert (lora.name, lora.strength, lora.identity) == ("turbo", 0.8, TURBO.identity)
    assert "LoRA turbo was made for steps 4; this job has 3" in record.notes
    assert fleet.status(other) is JobStatus.QUEUED


def test_a_node_offers_its_loras_by_name(
    node: Membership, engine: Engine, redis_connection: redis.Redis
) -> None:
    node.join(engine.ready(), stopped=lambda: False)

    (card,) = live_nodes(redis_connection)
    assert "lora:turbo" in card.offers
    assert card.loras == [TURBO]


def test_a_loras_name_means_one_file_in_a_fleet_until_it_is_forgotten(
    node: Membership, engine: Engine, pipeline: FakePipeline, redis_connection: redis.Redis
) -> None:
    node.join(engine.ready(), stopped=lambda: False)
    pipeline.loras = [TURBO.model_copy(update={"sample_sha256": "ee" * 32})]

    says = r"lora 'turbo' means other files.*there abab\S+\.cdcd\S+, here .*--lora NAME=FILE.*--lora turbo"
    with pytest.raises(NodeStartError, match=says):
        node.join(engine.ready(), stopped=lambda: False)
    with pytest.raises(NodeStartError, match="other files than those"):
        node.renew(engine.ready(), state=EngineState.READY)

    def forget() -> list[str]:
        return forget_agreements(redis_connection, fleet="h3", store=False, checkpoint=None, lora="turbo")

    with pytest.raises(AgreementInUseError):
        forget()
    node.leave()
    assert forget() == ["fleet 'h3': the meaning of lora 'turbo' is forgotten"]
    node.join(engine.ready(), stopped=lambda: False)
