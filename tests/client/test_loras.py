"""LoRAs as one who submits sees them: named on the command line, supplied with steps, waited for."""

from typing import TYPE_CHECKING, Any

import pytest

from client.cli import run
from client.client import H3Client
from client.fleet import offers_of
from queue_schemas.loras import LoraCard

if TYPE_CHECKING:
    from pathlib import Path

    from small_node import FakeNode

TURBO = LoraCard(
    name="turbo", file="t.safetensors", header_sha256="ab" * 32, matched_modules=208,
    matched_tensors=624, num_tensors=624, steps=4, shift_video=6.0,
)  # fmt: skip
PUBLISHED = "minimax_h3_fl2v_turbo_8step_v1.0_comfyui_bf16"
ASKED = {"prompt": "a fox", "seed": 7, "checkpoint": "h3-tiny", "width": 64, "height": 64, "frames": 5}


@pytest.fixture
def turbo_node(node: "FakeNode") -> "FakeNode":
    offers = ["checkpoint:h3-tiny", "lora:turbo", "node:node-h3-tiny"]
    node.announce("h3-tiny", loras=[TURBO.model_dump()], offers=offers)
    return node


def jobs_of(node: "FakeNode") -> list[dict[str, Any]]:
    return [call["job"] for call in node.queued()]


def test_a_node_that_knows_the_lora_supplies_its_steps(client: H3Client, turbo_node: "FakeNode") -> None:
    handle = client.submit({**ASKED, "loras": [{"name": "turbo"}]})

    (job,) = jobs_of(turbo_node)
    assert (job["steps"], job["shift_video"], job["shift_audio"]) == (4, 6.0, 3.0)
    assert not any("made for" in note for note in handle.notes)


def test_what_the_caller_gave_stays_and_is_warned_about(client: H3Client, turbo_node: "FakeNode") -> None:
    handle = client.submit({**ASKED, "loras": [{"name": "turbo"}], "steps": 8})

    assert jobs_of(turbo_node)[0]["steps"] == 8
    assert "LoRA turbo was made for steps 4; this job has 8" in handle.notes


def test_without_a_node_a_published_name_means_the_published_file(client: H3Client, node: "FakeNode") -> None:
    handle = client.submit({**ASKED, "loras": [{"name": PUBLISHED}, {"name": "other"}]})

    assert jobs_of(node)[0]["steps"] == 8
    assert handle.notes[-1].endswith(f"--checkpoint h3-tiny --lora {PUBLISHED}=FILE --lora other=FILE")


def test_a_job_waits_for_a_node_with_its_lora(client: H3Client, turbo_node: "FakeNode") -> None:
    handle = client.submit({**ASKED, "loras": [{"name": "style"}]})

    assert "no live node serves checkpoint 'h3-tiny' with lora 'style'" in handle.notes[-1]
    assert "h3-tiny (attention sdpa; loras turbo)" in handle.notes[-1]
    assert "lora:turbo" in offers_of(client.nodes()[0])


def test_the_command_line_names_loras_with_their_strengths(
    redis_url: str, storage: "Path", turbo_node: "FakeNode", tmp_path: "Path", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("H3_REDIS_URL", redis_url)
    monkeypatch.setenv("H3_STORAGE_URL", str(storage))
    (tmp_path / "prompts.txt").write_text("a fox\n")
    (tmp_path / "sweep.yaml").write_text("prompts: [a fox]\nsteps: 3\nloras: [{name: style}]\n")
    rest = ["--seed", "7", "--checkpoint", "h3-tiny", "--no-follow", "--lora", "turbo:0.8"]

    submitted = run(["submit", "a fox", *rest, "--lora", "style"])
    swept = run(["sweep", "--prompts", str(tmp_path / "prompts.txt"), *rest])
    filed = run(["sweep", str(tmp_path / "sweep.yaml"), "--no-follow", "--checkpoint", "h3-tiny"])
    refused = run(["submit", "a fox", *rest, "--lora", "style:much"])

    assert (submitted, swept, filed, refused) == (0, 0, 0, 2)
    turbo, style = {"name": "turbo", "strength": 0.8}, {"name": "style", "strength": 1.0}
    found = {str(job["loras"]): job["steps"] for job in jobs_of(turbo_node)}
    assert found == {str([turbo, style]): 4, str([turbo]): 4, str([style]): 3}
