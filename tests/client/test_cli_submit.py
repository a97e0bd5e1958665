"""`h3 submit` and `h3 sweep`: from a command line or a sweep file to the films."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from h3_command import SMALL, RunH3, line, sentence

from queue_schemas.jobs import build_job

if TYPE_CHECKING:
    from small_node import FakeNode


def test_submit_follows_to_the_film_and_prints_one_line(
    h3: RunH3, redis_url: str, storage: Path, working_node: "FakeNode"
) -> None:
    done = h3("submit", "a fox", *SMALL, "--seed", "7", "--redis", redis_url, "--storage", storage)

    said = line(done)
    (run,) = said["runs"]
    assert (done.returncode, said["succeeded"], said["failed"]) == (0, 1, 0)
    assert said["run_id"] == run["run_id"]
    assert Path(run["video"]).read_bytes() == b"film"
    assert json.loads(Path(run["benchmark"]).read_text())["run_id"] == run["run_id"]
    assert (run["seed"], run["checkpoint"], run["outcome"]) == (7, "h3-tiny", "queued")
    assert "no live node serves checkpoint 'h3-tiny'" in done.stderr


def test_submit_without_following_names_the_run_and_a_second_one_joins(
    h3: RunH3, redis_url: str, storage: Path, node: "FakeNode"
) -> None:
    where = ["--redis", redis_url, "--storage", str(storage)]

    first = line(h3(*where, "submit", "a fox", *SMALL, "--seed", "7", "--no-follow"))
    second = line(h3(*where, "submit", "a fox", *SMALL, "--seed", "7", "--no-follow"))
    state = line(h3(*where, "status", first["run_id"], first["sweep_id"]))

    assert (first["queued"], second["joined"]) == (1, 1)
    assert first["run_id"] == second["run_id"] == node.queued()[0]["run_id"]
    ((run_state,),) = [state["runs"]]
    assert run_state.items() >= {"run_id": first["run_id"], "generation": 1, "status": "queued"}.items()
    assert run_state["label"] == "a fox, seed 7"


def test_every_job_option_reaches_the_job(h3: RunH3, redis_url: str, storage: Path, node: "FakeNode") -> None:
    options = ["--seconds", "1", "--conventions", "diffusers"]
    options += ["--schedule", "simple", "--vae-dtype", "float32", "--vae-tile-size", "512"]
    options += ["--attention", "sdpa", "--width", "128", "--height", "64", "--steps", "3", "--seed", "5"]

    done = h3("submit", "a fox", *options, "--checkpoint", "c", "--no-follow", H3_REDIS_URL=redis_url)

    assert done.returncode == 0, done.stderr
    job = node.queued()[0]["job"]
    assert build_job(job) == build_job(
        {
            "prompt": "a fox",
            "frames": 39,
            "conventions": "diffusers",
            "schedule": "simple",
            "vae_dtype": "float32",
            "vae_tile_size": 512,
            "attention": "sdpa",
            "width": 128,
            "height": 64,
            "steps": 3,
            "seed": 5,
            "checkpoint": "c",
        }
    )
    h3("submit", "a wave", "--sampler", "res_multistep", *SMALL, "--no-follow", H3_REDIS_URL=redis_url)
    assert node.queued()[1]["job"]["sampler"] == "res_multistep"


def test_no_checkpoint_is_a_clear_question_and_code_2(h3: RunH3, redis_url: str, tmp_path: Path) -> None:
    done = h3("submit", "a fox", "--redis", redis_url)

    assert done.returncode == 2
    assert "--checkpoint or H3_CHECKPOINT" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_no_live_node_is_answered_with_how_to_start_one(h3: RunH3, redis_url: str) -> None:
    done = h3("submit", "a fox", "--redis", redis_url)

    assert done.returncode == 2
    assert "start a node: h3-worker run" in sentence(done)


def test_a_required_node_is_code_2(h3: RunH3, redis_url: str, storage: Path, node: "FakeNode") -> None:
    done = h3("submit", "a fox", *SMALL, "--require-node", "--redis", redis_url, "--storage", storage)

    assert done.returncode == 2
    assert "no live node serves checkpoint 'h3-tiny'" in sentence(done)
    assert node.queued() == []


def test_a_sweep_with_failures_ends_with_code_1(
    h3: RunH3, redis_url: str, storage: Path, tmp_path: Path, working_node: "FakeNode"
) -> None:
    (tmp_path / "p.txt").write_text("a fox\n# no\na wave\n")
    working_node.failing = {"a wave"}
    where = ["--redis", redis_url, "--storage", storage]

    done = h3("sweep", "--prompts", "p.txt", "--seeds", "1,2", *SMALL, *where)
    said = line(done)
    again = h3("follow", said["sweep_id"], *where)
    state = h3("status", said["sweep_id"], *where)

    assert done.returncode == again.returncode == 1
    assert (said["succeeded"], said["failed"], said["cancelled"]) == (2, 2, 0)
    labels = [
        "line 1: a fox, seed 1",
        "line 1: a fox, seed 2",
        "line 3: a wave, seed 1",
        "line 3: a wave, seed 2",
    ]
    assert [run["label"] for run in said["runs"]] == labels
    assert said["runs"][3]["error"]["code"] == "stalled"
    assert (line(again)["failed"], state.returncode) == (2, 1)


def test_a_sweep_again_is_done_and_only_what_failed_is_queued_again(
    h3: RunH3, redis_url: str, storage: Path, tmp_path: Path, node: "FakeNode"
) -> None:
    (tmp_path / "p.txt").write_text("a fox\na wave\n")
    node.failing = {"a wave"}
    command = ["sweep", "--prompts", "p.txt", "--seeds", "2", "--seed", "3", *SMALL, "--no-follow"]
    where = ["--redis", redis_url, "--storage", storage]
    assert line(h3(*command, *where))["queued"] == 4
    node.run_all()

    said = line(h3(*command, *where))

    assert (said["done"], said["queued"]) == (2, 2)
    assert [run["generation"] for run in said["runs"]] == [1, 1, 2, 2]


def test_a_sweep_file_is_queued_followed_and_its_end_is_told(
    h3: RunH3, redis_url: str, storage: Path, tmp_path: Path, working_node: "FakeNode"
) -> None:
    (tmp_path / "s.yaml").write_text(
        "prompts: [a fox, a wave]\nseeds: 2\naxes: {steps: [1, 2]}\nlabels: {shot: 12}\n"
        "width: 64\nheight: 64\nframes: 5\ncheckpoint: h3-tiny\n"
    )
    working_node.failing = {"a wave"}
    where = ["--redis", redis_url, "--storage", storage]

    done = h3(
        "sweep", "s.yaml", *where, "--on-done", 'cat > told.json; echo "$SWEEP_ID $SWEEP_FAILED"; exit 3'
    )
    said = line(done)

    assert done.returncode == 1
    assert said.items() >= {"succeeded": 4, "failed": 4, "cancelled": 0, "joined": 0}.items()
    assert said["sweep"].startswith("sweep-")
    assert said["seconds"] > 0
    assert "8 runs: 2 prompts x 2 steps x 2 seeds" in done.stderr
    assert json.loads((tmp_path / "told.json").read_text()) == said
    assert f"{said['sweep']} 4" in done.stderr
    assert "the --on-done command ended with code 3" in done.stderr

    working_node.failing = set()
    resumed = h3("sweep", "--resume", said["sweep"], *where)
    retried = h3("sweep", "--resume", said["sweep"], "--retry-failed", *where)
    assert (resumed.returncode, line(resumed)["failed"]) == (1, 4)
    assert (retried.returncode, line(retried)["succeeded"]) == (0, 8)


def test_an_on_done_command_that_fails_is_code_3_after_a_good_sweep(
    h3: RunH3, redis_url: str, storage: Path, tmp_path: Path, working_node: "FakeNode"
) -> None:
    (tmp_path / "p.txt").write_text("a fox\n")
    command = ["sweep", "--prompts", "p.txt", *SMALL, "--redis", redis_url, "--storage", storage]

    assert h3(*command, "--on-done", "false").returncode == 3
    assert h3(*command, "--on-done", "true").returncode == 0


def test_a_priority_of_the_command_line_wins_over_the_sweep_files(
    h3: RunH3, redis_url: str, storage: Path, tmp_path: Path, node: "FakeNode"
) -> None:
    (tmp_path / "s.yaml").write_text("prompts: [a fox]\npriority: high\n")
    command = ["sweep", "s.yaml", *SMALL, "--redis", redis_url, "--storage", storage, "--no-follow"]

    h3(*command)
    h3(*command, "--priority", "normal", "--seed", "1")

    assert [call["submission"]["priority"] for call in node.queued()] == ["high", "normal"]
