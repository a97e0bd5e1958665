"""`h3 demo`: done once, again, started over, interrupted; with a small node first, then with the real one."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from client.demo import run_demo
from client.demo_folder import MARKER
from client.demo_node import node_command
from client.errors import DemoError, DemoFolderError
from client.session import Session
from client.settings import ClientSettings
from storage.local import LocalStore

FAKE_NODE = Path(__file__).parent / "fake_demo_node.py"
DRIVER = """
import sys
from pathlib import Path
from client.demo import run_demo
from client.session import Session
from client.settings import ClientSettings
folder, *command = sys.argv[1:]
sys.exit(run_demo(Session(settings=ClientSettings()), folder=Path(folder), fresh=False, command=command))
"""
H3 = [sys.executable, "-c", "from client.cli import main; main()"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "outputs" / "demo"


@pytest.fixture
def demo(redis_url: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Run the demo with a fake node; return its exit code and its output's last line."""

    def run(mode: str = "works", *, fresh: bool = False) -> tuple[int, dict[str, Any], str]:
        with redis.Redis.from_url(redis_url) as connection:
            connection.flushall()  # the real node brings a new redis-server each time
        command = [sys.executable, str(FAKE_NODE), redis_url, str(folder), mode]
        code = run_demo(Session(settings=ClientSettings()), folder=folder, fresh=fresh, command=command)
        shown = capsys.readouterr().out
        return code, json.loads(shown.splitlines()[-1]), shown

    return run


def test_the_node_of_the_demo_runs_nothing_from_the_working_folder(tmp_path: Path) -> None:
    (tmp_path / "worker").mkdir()
    (tmp_path / "worker" / "__init__.py").write_text("raise SystemExit('run from the working folder')")
    command = node_command(tmp_path, tmp_path)
    tied = command[: command.index(str(os.getpid())) + 1]

    ended = subprocess.run([*tied, "/bin/true"], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_link_in_the_place_of_the_log_is_replaced_and_not_written_through(
    demo: Callable[..., Any], folder: Path, tmp_path: Path
) -> None:
    precious = tmp_path / "thesis.txt"
    precious.write_text("precious")
    folder.mkdir(parents=True)
    (folder / MARKER).touch()
    (folder / "node.log").symlink_to(precious)

    code, _, _ = demo("works")

    assert code == 0
    assert precious.read_text() == "precious"
    assert not (folder / "node.log").is_symlink()


def test_a_folder_in_the_place_of_the_log_is_told(demo: Callable[..., Any], folder: Path) -> None:
    (folder / "node.log").mkdir(parents=True)
    (folder / MARKER).touch()

    with pytest.raises(DemoError, match=r"cannot write .*node\.log .*; move it away"):
        demo("works")


def names(folder: Path, name: str) -> list[Path]:
    return sorted(folder.rglob(name))


def node_has_ended(folder: Path) -> bool:
    pid = int((folder / "node.pid").read_text())
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_four_films_with_their_records_and_one_summary_are_left(demo: Any, folder: Path) -> None:
    code, said, shown = demo()

    assert code == 0
    assert (said["succeeded"], said["failed"], said["already_done"]) == (4, 0, False)
    assert sorted(said["videos"]) == [str(path) for path in names(folder, "*.mp4")]
    assert sorted(said["benchmarks"]) == [str(path) for path in names(folder, "benchmark.json")]
    assert len(said["videos"]) == len(said["benchmarks"]) == 4
    assert [str(path) for path in names(folder, "summary.json")] == [said["summary"]]
    summary = json.loads(Path(said["summary"]).read_text())
    assert [run["label"] for run in summary["runs"]] == [
        "prompt 1: A red fox trots through…, seed 7",
        "prompt 1: A red fox trots through…, seed 2026",
        "prompt 2: Waves break on a black…, seed 7",
        "prompt 2: Waves break on a black…, seed 2026",
    ]
    assert [run["video"] for run in summary["runs"]] == said["videos"]
    assert "prompt 2: Waves break on a black…, seed 2026: succeeded" in shown
    assert node_has_ended(folder)


def test_again_it_says_so_and_starts_nothing(demo: Any, folder: Path) -> None:
    _, first, _ = demo()
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}

    code, second, shown = demo("dies")

    assert code == 0
    assert second["already_done"] is True
    assert {**second, "seconds": 0, "already_done": False} == {**first, "seconds": 0}
    assert "already done" in shown
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_fresh_starts_over(demo: Any, folder: Path) -> None:
    demo()
    old = names(folder, "sweep.json")

    code, said, _ = demo(fresh=True)

    assert (code, said["already_done"], said["succeeded"]) == (0, False, 4)
    assert len(names(folder, "video.mp4")) == 4
    assert len(names(folder, "sweep.json")) == 1
    assert names(folder, "sweep.json") != old


def test_a_failed_run_is_code_1_and_only_it_is_made_again(demo: Any, folder: Path) -> None:
    code, said, shown = demo("fails")
    again, second, _ = demo()

    assert (code, said["succeeded"], said["failed"]) == (1, 2, 2)
    assert "node.log" in shown
    assert (again, second["succeeded"], len(names(folder, "video.mp4"))) == (0, 4, 4)
    assert len(names(folder, "manifest.json")) == 6


def test_a_node_that_does_not_start_is_told_with_the_end_of_its_log(demo: Any, folder: Path) -> None:
    with pytest.raises(DemoError, match=r"ended with code 1; look into .*node\.log: no redis-server found"):
        demo("dies")
    with pytest.raises(DemoError, match=r"ended with code 1.*out of luck"):
        demo("dies-later")
    with pytest.raises(DemoError, match="serves 'other', not 'h3-tiny'"):
        demo("other")

    assert node_has_ended(folder)
    assert names(folder, "summary.json") == []


def test_a_film_that_is_gone_is_not_called_done(demo: Any, folder: Path) -> None:
    demo()
    names(folder, "video.mp4")[0].unlink()

    with pytest.raises(DemoFolderError, match=r"video\.mp4 is gone .*--fresh"):
        demo()


@pytest.mark.parametrize("fresh", [True, False])
def test_a_store_of_real_films_is_neither_emptied_nor_worked_in(
    demo: Any, folder: Path, end_run: Any, make_job: Any, fresh: bool
) -> None:
    end_run(LocalStore(folder), make_job())
    (folder / "sweeps" / "sweep-1").mkdir(parents=True)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}

    with pytest.raises(DemoFolderError, match=r"was not made by the demo \(it holds 'runs'\)"):
        demo(fresh=fresh)

    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_fresh_uses_an_empty_folder(demo: Any, folder: Path) -> None:
    folder.mkdir(parents=True)

    code, said, _ = demo(fresh=True)

    assert (code, said["succeeded"]) == (0, 4)


def test_fresh_removes_only_what_the_demos_own_sweeps_made(
    demo: Any, folder: Path, end_run: Any, make_job: Any
) -> None:
    demo()
    real = end_run(LocalStore(folder), make_job())
    (folder / "notes.txt").write_text("mine")
    earlier = folder / "runs" / "0123abcd"  # a run of an earlier version's demo, known by its sweep
    earlier.mkdir()
    sweep = json.loads(names(folder, "sweep.json")[0].read_text())
    run = {**sweep["runs"][0], "run_id": earlier.name}
    (folder / "sweeps" / "sweep-0").mkdir()
    (folder / "sweeps" / "sweep-0" / "sweep.json").write_text(json.dumps({**sweep, "runs": [run]}))
    old = names(folder, "video.mp4")

    demo(fresh=True)

    assert (folder / "notes.txt").read_text() == "mine"
    assert (folder / "runs" / real.run_id).is_dir()
    assert not earlier.exists()
    assert len(names(folder, "sweep.json")) == 1
    assert len(names(folder, "video.mp4")) == len(old) == 5


def test_fresh_removes_what_a_killed_upload_left(demo: Any, folder: Path) -> None:
    demo()
    left = f".{{}}.123.{'0a' * 8}.tmp"
    places = [names(folder, "video.mp4")[0].parent / left.format("video.mp4")]
    places += [
        folder / left.format("summary.json"),
        folder / "sweeps" / "sweep-9" / left.format("sweep.json"),
    ]
    for place in places:
        place.parent.mkdir(exist_ok=True)
        place.write_text("half")

    demo(fresh=True)

    assert [place for place in places if place.exists()] == []
    assert not (folder / "sweeps" / "sweep-9").exists()


def test_fresh_follows_no_link(demo: Any, folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    demo()
    (folder / "sweeps" / "inner").symlink_to(outside)
    run = names(folder, "video.mp4")[0].parents[3]
    (run / "link").symlink_to(outside)

    code, _, _ = demo(fresh=True)

    assert code == 0
    assert [path.name for path in outside.iterdir()] == ["precious"]


@pytest.mark.parametrize("fresh", [False, True])
def test_a_folder_that_is_a_link_or_a_file_is_refused(
    demo: Any, folder: Path, tmp_path: Path, fresh: bool
) -> None:
    folder.parent.mkdir()
    folder.symlink_to(tmp_path)
    with pytest.raises(DemoFolderError, match="is a link"):
        demo(fresh=fresh)
    folder.unlink()
    folder.write_text("")
    with pytest.raises(DemoFolderError, match="is a file"):
        demo(fresh=fresh)


@pytest.mark.parametrize("mode", ["never-ready", "idle"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_node_and_the_demo(
    redis_url: str, redis_connection: redis.Redis, folder: Path, mode: str, number: signal.Signals
) -> None:
    command = [sys.executable, str(FAKE_NODE), redis_url, str(folder), mode]
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(folder), *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: (folder / "node.pid").exists() and (folder / "node.pid").read_text() != "")
    if mode == "idle":
        wait_until(
            lambda: sum(redis_connection.llen(key) for key in redis_connection.keys("rq:queue:h3-*")) == 4
        )

    process.send_signal(number)
    process.send_signal(number)  # an impatient second one changes nothing
    _, err = process.communicate(timeout=30)

    assert process.returncode == 130
    assert "interrupted; everything that the demo started has ended" in err
    assert "Traceback" not in err
    assert node_has_ended(folder)


def test_two_demos_do_not_share_a_folder(redis_url: str, demo: Any, folder: Path) -> None:
    command = [sys.executable, str(FAKE_NODE), redis_url, str(folder), "never-ready"]
    first = subprocess.Popen([sys.executable, "-c", DRIVER, str(folder), *command], stdout=subprocess.DEVNULL)
    wait_until((folder / "node.pid").exists)

    with pytest.raises(DemoFolderError, match="another demo is at work"):
        demo(fresh=True)

    first.terminate()
    assert first.wait(timeout=30) == 130


def wait_until(condition: Callable[[], bool], *, seconds: float = 40.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def processes_of(folder: Path) -> list[str]:
    """The command lines of every process whose arguments or environment name the folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                told = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
                if str(folder).encode() in told:
                    found.append((entry / "cmdline").read_bytes().decode().replace("\0", " "))
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
    return found


@pytest.mark.slow  # what `make demo` does; here with hostile settings around it
def test_the_real_demo_leaves_four_films_and_no_process(folder: Path) -> None:
    pytest.importorskip("torch")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("H3_")}
    environment |= {"H3_REDIS_URL": "redis://127.0.0.1:1/0", "H3_CHECKPOINT": "other", "H3_FLEET": "own"}

    done = subprocess.run(
        [*H3, "demo", "--storage", str(folder), "--json"],
        capture_output=True,
        text=True,
        env=environment,
        cwd=folder.parent.parent,  # h3-tiny is built in outputs/ below it
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["succeeded"], said["failed"]) == (4, 0)
    assert sorted(said["videos"]) == [str(path) for path in names(folder, "*.mp4")]
    assert all(path.endswith("/1/attempts/1/video.mp4") for path in said["videos"])
    records = [json.loads(path.read_bytes()) for path in names(folder, "benchmark.json")]
    assert sorted(record["conditioning_cache"] for record in records) == ["hit", "hit", "miss", "miss"]
    assert processes_of(folder) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_real_node_ends_with_a_demo_that_is_interrupted_or_killed(
    folder: Path, number: signal.Signals
) -> None:
    pytest.importorskip("torch")
    process = subprocess.Popen(
        [*H3, "demo", "--storage", str(folder)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=folder.parent.parent,
    )
    wait_until(lambda: any("serve" in command for command in processes_of(folder)))

    process.send_signal(number)

    assert process.wait(timeout=60) in (130, -signal.SIGKILL)
    wait_until(lambda: processes_of(folder) == [])
