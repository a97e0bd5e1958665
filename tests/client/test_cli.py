"""The `h3` command: exit codes, the one JSON line, sentences instead of tracebacks.

Most tests run it in this process, which spares the start of an interpreter; what only a process shows
(signals, a terminal, an undecodable argument) starts one.
"""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from broker import keys
from broker.letters import DeadLetter
from client.cli import run
from client.session import Session
from client.settings import ClientSettings
from queue_schemas.jobs import build_job
from queue_schemas.results import Manifest

if TYPE_CHECKING:
    from small_node import FakeNode

H3 = [sys.executable, "-c", "from client.cli import main; main()"]
CLOSED = "redis://127.0.0.1:1/0"
SMALL = ["--width", "64", "--height", "64", "--frames", "5", "--steps", "2", "--checkpoint", "h3-tiny"]


def environment(**names: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("H3_")}
    return kept | names


@dataclass
class Done:
    """What one command line said and how it ended."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def h3(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    for name in [name for name in os.environ if name.startswith("H3_")]:
        monkeypatch.delenv(name)

    def run_here(*arguments: str | Path, **names: str) -> Done:
        with monkeypatch.context() as patch:
            for name, value in names.items():
                patch.setenv(name, value)
            code = run([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return Done(code, out, err)

    return run_here


RunH3 = Callable[..., Done]


def line(done: Done) -> dict[str, Any]:
    """The one line of standard output."""
    assert done.stdout.count("\n") == 1, done.stdout
    value: dict[str, Any] = json.loads(done.stdout)
    assert done.stdout == json.dumps(value, separators=(",", ":")) + "\n"
    return value


def sentence(done: Done) -> str:
    """The one line of standard error of a command that failed."""
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr.strip()


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


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the default storage is a folder below the working one


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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["submit", ""], "the prompt is empty"),
        (["submit", "x" * 7_001], "7,001 characters; at most 7,000"),
        (["submit", "a", "--frames", "100"], "the nearest are 90 and 107"),
        (["submit", "a", "--width", "100"], "the nearest are 96 and 128"),
        (["submit", "a", "--sampler", "ddim"], "sampler"),
        (["submit", "a", "--sampler", "res_multistep", "--conventions", "diffusers"], "use euler"),
        (["submit", "a", "--frames", "5", "--seconds", "1"], "give one of them"),
        (["submit", "a", "--seconds", "16"], "a film lasts up to 15.08 seconds"),
        (["submit", "a", "--seconds", "nan"], "a film lasts up to"),
        (["sweep", "--prompts", "missing.txt"], "cannot read the prompts file missing.txt"),
        (["sweep", "--prompts", "bad.txt"], "bad.txt, line 2: not UTF-8"),
        (["sweep", "--prompts", "good.txt", "--seeds", "0"], "0 seeds; a sweep has 1 to 100,000"),
        (["sweep", "--prompts", "good.txt", "--seeds", "x"], "give a count such as 4"),
        (["sweep", "--prompts", "long.txt"], "line 3: xxx"),
        (["submit", "a", "--storage", "s3://key:secret@bucket"], "holds no credentials"),
        (["submit", "a", "--redis", "http://x"], "rediss://host:port/0"),
        (["submit", "a", "--fleet", "a b"], "no fleet name"),
        (["collect"], "name --csv FILE, --json FILE or both"),
    ],
)
def test_refused_input_is_one_sentence_and_code_2_before_redis_is_touched(
    h3: RunH3, tmp_path: Path, arguments: list[str], said: str
) -> None:
    (tmp_path / "good.txt").write_text("a fox\n")
    (tmp_path / "bad.txt").write_bytes(b"a\n\xff\n")
    (tmp_path / "long.txt").write_text("a\n\n" + "x" * 7_001)
    before = sorted(tmp_path.rglob("*"))

    done = h3(*arguments, H3_REDIS_URL=CLOSED, H3_CHECKPOINT="h3-tiny")

    assert done.returncode == 2
    assert said in sentence(done)
    assert line(done)["error"]["code"] == "invalid_request"
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("option", ["--no-such", "--width=abc"])
def test_an_option_that_does_not_exist_or_parse_is_code_2_without_a_traceback(h3: RunH3, option: str) -> None:
    done = h3("submit", "a", option)

    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert option.partition("=")[0] in done.stderr


def test_an_unreachable_redis_is_named_with_a_remedy_and_code_3_and_nothing_is_written(
    h3: RunH3,
    tmp_path: Path,
) -> None:
    done = h3("submit", "a fox", *SMALL, "--redis", CLOSED)

    assert done.returncode == 3
    assert "no Redis answers at 127.0.0.1:1" in sentence(done)
    assert "h3-worker run --embedded" in sentence(done)
    assert "H3_REDIS_URL" in sentence(done)
    assert line(done)["error"]["code"] == "queue_unavailable"
    assert list(tmp_path.iterdir()) == []


def test_a_redis_password_is_never_shown(h3: RunH3) -> None:
    done = h3("submit", "a fox", *SMALL, "--redis", "redis://user:hunter2@127.0.0.1:1/0")

    assert done.returncode == 3
    assert "hunter2" not in done.stderr + done.stdout


def test_no_checkpoint_is_a_clear_question_and_code_2(h3: RunH3, redis_url: str, tmp_path: Path) -> None:
    done = h3("submit", "a fox", "--redis", redis_url)

    assert done.returncode == 2
    assert "--checkpoint or H3_CHECKPOINT" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_id_is_code_2_and_a_bad_environment_value_too(h3: RunH3, redis_url: str) -> None:
    unknown = h3("follow", "sweep-1", H3_REDIS_URL=redis_url)
    bad = h3("status", "x", H3_VAE_TILE_SIZE="big")
    strict = h3("status", "x", H3_REDIS_ULR="y", H3_STRICT_ENV="1")

    assert (unknown.returncode, bad.returncode, strict.returncode) == (2, 2, 2)
    assert "no run or sweep 'sweep-1'" in sentence(unknown)
    assert "H3_VAE_TILE_SIZE is 'big'" in sentence(bad)
    assert "did you mean 'H3_REDIS_URL'?" in sentence(strict)


def test_quiet_prints_nothing_but_errors(
    h3: RunH3, redis_url: str, storage: Path, working_node: "FakeNode"
) -> None:
    where = ["--redis", redis_url, "--storage", storage, "--quiet"]

    fine = h3("submit", "a fox", *SMALL, *where)
    faulty = h3("submit", "", *SMALL, *where)

    assert (fine.returncode, fine.stdout, fine.stderr) == (0, "", "")
    assert (faulty.returncode, faulty.stdout) == (2, "")
    assert "the prompt is empty" in sentence(faulty)


def test_a_prompt_with_a_lone_surrogate_or_control_characters_is_shown_escaped(
    h3: RunH3, storage: Path
) -> None:
    done = subprocess.run(
        [*H3, "submit", b"a \xff fox"], capture_output=True, timeout=60, env=environment(), check=False
    )
    unknown = h3("status", "\x1b[31mred\n", "--redis", CLOSED)

    assert done.returncode == 2
    assert b"lone surrogate" in done.stderr
    assert "\x1b" not in unknown.stderr
    assert unknown.stderr.count("\n") == 1


def test_collect_writes_both_files_without_a_redis(
    h3: RunH3, storage: Path, node: "FakeNode", make_job: Callable[..., Any], end_run: Callable[..., Manifest]
) -> None:
    end_run(node.store, make_job())
    node.store.put_bytes("runs/torn/1/manifest.json", b"{")

    done = h3("collect", "--csv", "r.csv", "--json", "r.json", "--storage", storage, H3_REDIS_URL=CLOSED)

    said = line(done)
    assert (done.returncode, said["records"], said["csv"], said["json"]) == (0, 1, "r.csv", "r.json")
    assert "runs/torn/1/manifest.json" in said["problems"][0]
    assert "note: left out: runs/torn/1/manifest.json" in done.stderr
    assert (
        Path("r.csv").read_text().splitlines()[0].startswith("run_id,sweep,label,prompt,film,schema_version,")
    )
    assert len(json.loads(Path("r.json").read_text())) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupting_leaves_the_job_alone_and_says_how_to_see_it_again(
    redis_url: str, storage: Path, node: "FakeNode", number: signal.Signals
) -> None:
    process = subprocess.Popen(
        [*H3, "submit", "a fox", *SMALL, "--redis", redis_url, "--storage", str(storage)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert process.stderr is not None
    notes = [process.stderr.readline(), process.stderr.readline()]  # following begins right after them

    process.send_signal(number)
    out, err = process.communicate(timeout=30)

    assert "no live node" in "".join(notes)
    assert process.returncode == 130
    assert (out, "Traceback" in err) == ("", False)
    assert "interrupted; the jobs go on. See them again with: h3 follow sweep-" in err
    assert len(node.queued()) == 1


def on_terminal(*arguments: str | Path, columns: int = 200, **names: str) -> tuple[int, str]:
    """Run the command with a terminal as standard output; return the exit code and what it showed."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*H3, *map(str, arguments)],
        stdout=theirs,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        env=environment(COLUMNS=str(columns), TERM="xterm", **names),
    )
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 65_536):
            shown += chunk
    except OSError:  # the terminal's other end is closed
        pass
    os.close(ours)
    return process.wait(timeout=30), shown.decode()


def test_a_person_at_a_terminal_sees_bars_and_a_table_and_no_json(
    redis_url: str, storage: Path, tmp_path: Path, working_node: "FakeNode"
) -> None:
    (tmp_path / "p.txt").write_text("a [red]fox[/red]\na wave\n")
    working_node.failing = {"a wave"}
    where = ["--redis", redis_url, "--storage", storage]

    code, shown = on_terminal("sweep", "--prompts", "p.txt", "--seeds", "5,", *SMALL, *where)
    json_code, json_shown = on_terminal(
        "sweep", "--prompts", "p.txt", "--seeds", "5,", *SMALL, *where, "--json"
    )

    assert code == json_code == 1
    assert "all runs" in shown
    assert "2/2, 1 failed" in shown
    assert "video.mp4" in shown
    assert "no step ended" in shown
    assert '{"' not in shown
    assert json.loads(json_shown)["failed"] == 1


@pytest.mark.parametrize(
    "command",
    [
        "",
        "submit",
        "sweep",
        "status",
        "follow",
        "fetch",
        "cancel",
        "collect",
        "nodes",
        "jobs",
        "doctor",
        "demo",
    ],
)
def test_every_help_ends_with_an_example_that_can_be_pasted(h3: RunH3, command: str) -> None:
    done = h3(*command.split(), "--help")

    last = done.stdout.strip().splitlines()[-1].strip()
    assert done.returncode == 0
    assert last.startswith(f"Example: h3 {command}")


def test_without_arguments_the_help_is_shown(h3: RunH3) -> None:
    assert "Usage: " in h3().stdout + h3().stderr


def test_the_version_is_told(h3: RunH3) -> None:
    done = h3("--version")

    assert (done.returncode, done.stdout.split()[0]) == (0, "h3")


def test_a_usage_error_is_a_line_for_programs_too(h3: RunH3) -> None:
    wrong, missing, command = h3("submit", "a", "--no-such"), h3("follow"), h3("sumbit", "a")

    for done in (wrong, missing, command):
        assert done.returncode == 2
        assert line(done)["error"]["code"] == "invalid_request"
    assert "--no-such" in line(wrong)["error"]["message"]
    assert h3("submit", "a", "--no-such", "--quiet").stdout == ""


def test_no_live_node_is_answered_with_how_to_start_one(h3: RunH3, redis_url: str) -> None:
    done = h3("submit", "a fox", "--redis", redis_url)

    assert done.returncode == 2
    assert "start a node: h3-worker run" in sentence(done)


def test_a_required_node_is_code_2(h3: RunH3, redis_url: str, storage: Path, node: "FakeNode") -> None:
    done = h3("submit", "a fox", *SMALL, "--require-node", "--redis", redis_url, "--storage", storage)

    assert done.returncode == 2
    assert "no live node serves checkpoint 'h3-tiny'" in sentence(done)
    assert node.queued() == []


def test_a_sweep_says_what_it_queued_and_hints_repeat_the_addresses(
    h3: RunH3, redis_url: str, storage: Path, tmp_path: Path
) -> None:
    (tmp_path / "p.txt").write_text("a fox\n")
    where = ["--redis", redis_url, "--storage", storage, "--fleet", "h3"]

    drawn = h3("sweep", "--prompts", "p.txt", "--seeds", "51", *SMALL, *where, "--no-follow")
    single = h3("sweep", "--prompts", "p.txt", "--seeds", "51,", *SMALL, *where, "--no-follow")
    code, shown = on_terminal("submit", "a fox", *SMALL, *where, "--no-follow")

    assert "note: 51 runs: 1 prompt x 51 drawn seeds" in drawn.stderr
    assert "note: 1 run: 1 prompt x 1 seed" in single.stderr
    assert line(single)["runs"][0]["seed"] == 51
    assert code == 0
    assert f"--redis {redis_url} --storage {storage} --fleet h3" in shown
    assert re.search(r"1 queued, seed \d+; follow with: h3 follow sweep-", shown)


def test_a_hint_shows_no_password() -> None:
    flags = {"redis": "redis://u:hunter2@host:1/0", "storage": "a b"}
    session = Session(settings=ClientSettings(), flags=flags)

    assert session.hint("follow x") == "h3 follow x --redis 'redis://u:***@host:1/0' --storage 'a b'"


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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sweep"], "name one of: a sweep FILE, --prompts FILE, --resume SWEEP"),
        (["sweep", "s.yaml", "--prompts", "p.txt"], "name one of"),
        (["sweep", "s.yaml", "--retry-failed"], "goes with --resume"),
        (["sweep", "s.yaml", "--seeds", "4"], "a sweep file has its own seeds"),
        (["sweep", "--resume", "x", "--steps", "4"], "takes everything from the sweep"),
        (["sweep", "s.yaml", "--no-follow", "--on-done", "true"], "--on-done needs --follow"),
        (["sweep", "s.yaml", "--label", "x"], "write NAME=TEXT"),
        (["sweep", "s.yaml", "--steps", "0"], "steps"),
        (["collect", "--csv", "r.csv", "--storage", "nowhere"], "there is no storage folder"),
        (["collect", "--json", "-"], "standard output with --csv only"),
    ],
)
def test_contradictions_are_refused(h3: RunH3, tmp_path: Path, arguments: list[str], said: str) -> None:
    (tmp_path / "s.yaml").write_text("prompts: [a fox]\n")
    before = sorted(tmp_path.rglob("*"))

    done = h3(*arguments, H3_REDIS_URL=CLOSED, H3_CHECKPOINT="h3-tiny")

    assert done.returncode == 2
    assert said in sentence(done)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_table_on_standard_output_stands_alone(
    h3: RunH3, storage: Path, node: "FakeNode", make_job: Callable[..., Any], end_run: Callable[..., Manifest]
) -> None:
    end_run(node.store, make_job())

    done = h3("collect", "--csv", "-", "--storage", storage)

    header, row = done.stdout.splitlines()
    assert header.startswith("run_id,sweep,label,prompt,film,")
    assert len(row.split(",")) > 20


def test_films_are_fetched_and_runs_cancelled_by_the_start_of_their_ids(
    h3: RunH3, redis_url: str, storage: Path, node: "FakeNode"
) -> None:
    where = ["--redis", redis_url, "--storage", storage]
    run = line(h3("submit", "a fox", *SMALL, "--seed", "7", "--no-follow", *where))["run_id"]

    early = h3("fetch", run[:8], "--to", "films", *where)
    node.run_all()
    done = h3("fetch", run[:8], "--to", "films", *where)
    other = line(h3("submit", "a wave", *SMALL, "--no-follow", *where))["run_id"]
    cancelled = h3("cancel", other[:8], *where)
    state = h3("status", other[:8], run[:8], *where)

    assert (early.returncode, done.returncode, cancelled.returncode, state.returncode) == (1, 0, 0, 1)
    assert "has not ended" in early.stderr
    (video,) = line(done)["videos"]
    assert Path(video).read_bytes() == b"film"
    assert line(cancelled)["removed"] == 1
    assert [entry["status"] for entry in line(state)["runs"]] == ["cancelled", "succeeded"]


def test_a_failed_run_tells_where_its_log_lies(
    h3: RunH3, redis_url: str, storage: Path, node: "FakeNode"
) -> None:
    where = ["--redis", redis_url, "--storage", storage]
    node.failing = {"a fox"}
    run = line(h3("submit", "a fox", *SMALL, "--no-follow", *where))["run_id"]
    node.run_all()

    _, shown = on_terminal("status", run, *where, columns=80)
    (told,) = line(h3("status", run, *where))["runs"]

    assert told["log"] == f"{storage}/runs/{run}/1/attempts/1/log.txt"
    assert f"    its log: {told['log']}" in shown.splitlines()


def test_nodes_and_jobs_are_listed(
    h3: RunH3, redis_url: str, storage: Path, node: "FakeNode", make_job: Callable[..., Any]
) -> None:
    where = ["--redis", redis_url, "--storage", storage]
    none = h3("nodes", *where)
    node.announce("h3-tiny")
    h3("submit", "a fox", *SMALL, "--priority", "high", "--no-follow", *where)
    h3("submit", "a wave", *SMALL, "--no-follow", *where)
    node.begin()

    nodes, jobs = line(h3("nodes", *where)), line(h3("jobs", *where))

    assert (none.returncode, line(none)) == (1, {"nodes": []})
    assert nodes["nodes"][0]["checkpoint"] == "h3-tiny"
    assert (jobs["queued"], jobs["running"], jobs["dead"]) == (1, 1, 0)
    assert [queue["priority"] for queue in jobs["queues"]] == ["high", "normal"]


def test_doctor_tells_faults_with_code_1(h3: RunH3, redis_url: str, storage: Path) -> None:
    done = h3("doctor", "--redis", redis_url, "--storage", storage)

    said = line(done)
    assert done.returncode == 1
    faults = {finding["subject"]: finding for finding in said["findings"] if not finding["ok"]}
    assert set(faults) == {"redis durability", "storage", "nodes"}
    assert all(finding["remedy"] for finding in faults.values())
    assert said["faults"] == 3


def test_ids_and_paths_are_whole_on_a_terminal_of_80_columns(
    h3: RunH3, redis_url: str, storage: Path, node: "FakeNode"
) -> None:
    where = ["--redis", redis_url, "--storage", storage]
    run = line(h3("submit", "a fox " * 40, *SMALL, "--seed", "7", "--no-follow", *where))["run_id"]
    node.run_all()
    letter = DeadLetter(entry=f"{run}-1", attempt=3, reason="engine_lost: gone", log="one\nlast words")
    node.connection.rpush(keys.dead_key("h3"), letter.dumps())

    _, status = on_terminal("status", run, *where, columns=80)
    _, followed = on_terminal("follow", run, *where, columns=80)
    _, jobs = on_terminal("jobs", *where, columns=80)
    _, doctor = on_terminal("doctor", *where, columns=80)

    assert run in status
    assert f"{storage}/runs/{run}/1/attempts/1/video.mp4" in followed.splitlines()
    assert "0 waiting, 0 running" in jobs
    assert f"dead after attempt 3: {run}-1: engine_lost: gone" in jobs
    assert "    last words" in jobs
    (told,) = line(h3("jobs", *where))["dead_letters"]
    assert (told["attempt"], told["log"]) == (3, "one\nlast words")
    assert "FAULT nodes: no live node" in doctor
    assert "\n      start one: h3-worker run" in doctor.replace("\r", "")
