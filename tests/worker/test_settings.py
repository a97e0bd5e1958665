"""Settings and the command line: what is refused, how, and what importing costs."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from worker.errors import SettingsError
from worker.settings import Settings, child_environment, read_settings


def test_an_empty_environment_gives_the_defaults() -> None:
    settings, warnings = read_settings({})

    assert settings == Settings()
    assert warnings == []
    assert (settings.port, settings.fleet, settings.storage_url) == (8033, "h3", "outputs/store")


def test_every_name_of_a_node_is_read() -> None:
    settings, _ = read_settings(
        {
            "H3_REDIS_URL": "rediss://example.test:6380/1",
            "H3_STORAGE_URL": "/films",
            "H3_MODELS_DIR": "/models",
            "H3_TOKENIZER_DIR": "/tokenizer",
            "H3_CHECKPOINT": "night",
            "H3_OUTPUT_DIR": "/scratch",
            "H3_PORT": "9000",
            "H3_ENGINE_URL": "http://127.0.0.1:9000",
            "H3_API_TOKEN": "secret-token",
            "H3_FLEET": "farm",
            "H3_NODE": "spark-1",
            "H3_CONDITIONING_MEMORY_GB": "0.5",
            "H3_CONDITIONING_DISK_GB": "100",
            "H3_CONDITIONING_DIR": "/kept",
            "H3_CONDITIONING_SHARED": "1",
        }
    )

    assert settings == Settings(
        redis_url="rediss://example.test:6380/1",
        storage_url="/films",
        models_dir=Path("/models"),
        tokenizer_dir=Path("/tokenizer"),
        checkpoint="night",
        output_dir=Path("/scratch"),
        port=9000,
        engine_url="http://127.0.0.1:9000",
        api_token="secret-token",
        fleet="farm",
        node="spark-1",
        conditioning_memory_gb=0.5,
        conditioning_disk_gb=100.0,
        conditioning_dir=Path("/kept"),
        conditioning_shared=True,
        redis_named=True,
    )


def test_an_unknown_name_is_a_warning_with_the_nearest_one_and_an_error_when_strict() -> None:
    _, warnings = read_settings({"H3_REDIS_ULR": "x", "H3_VAE_DTYPE": "float16"})
    assert warnings == ["unknown environment name H3_REDIS_ULR (did you mean 'H3_REDIS_URL'?)"]

    with pytest.raises(SettingsError, match="H3_REDIS_ULR"):
        read_settings({"H3_REDIS_ULR": "x", "H3_STRICT_ENV": "1"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("H3_PORT", "eighty"),
        ("H3_PORT", "70000"),
        ("H3_PORT", "-1"),
        ("H3_REDIS_URL", "http://127.0.0.1"),
        ("H3_STORAGE_URL", "ftp://example.test/films"),
        ("H3_PORT", "9" * 5_000),
        ("H3_ENGINE_URL", "127.0.0.1:8033"),
        ("H3_ENGINE_URL", "http://127.0.0.1:8033/engine"),
        ("H3_FLEET", "a:b"),
        ("H3_NODE", "a b"),
        ("H3_CONDITIONING_MEMORY_GB", "2 GB"),
        ("H3_CONDITIONING_MEMORY_GB", "nan"),
        ("H3_CONDITIONING_DISK_GB", "-1"),
        ("H3_CONDITIONING_SHARED", "yes"),
        ("H3_API_TOKEN", "naïve"),
    ],
)
def test_a_bad_value_is_refused(name: str, value: str) -> None:
    with pytest.raises(SettingsError):
        read_settings({name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("H3_ENGINE_URL", "http://fox:hunter2@127.0.0.1:8033"),
        ("H3_ENGINE_URL", "http://127.0.0.1:8033?token=hunter2"),
        ("H3_ENGINE_URL", "http://127.0.0.1:8033#hunter2"),
        ("H3_ENGINE_URL", "http://fox:hunter2/@127.0.0.1:8033"),
        ("H3_STORAGE_URL", "s3://fox:hunter2@films/h3"),
        ("H3_STORAGE_URL", "s3://films/h3?secret=hunter2"),
        ("H3_STORAGE_URL", "s3://films/h3?endpoint=https://fox:hunter2@example.test"),
        ("H3_STORAGE_URL", "https://fox:hunter2@example.test/films"),
        ("H3_REDIS_URL", "redis://fox:hunter2#@example.test"),
    ],
)
def test_an_address_with_a_secret_in_the_wrong_place_is_refused_without_it(name: str, value: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read_settings({name: value})

    assert "hunter2" not in str(caught.value)


def test_an_option_is_checked_as_the_environment_is() -> None:
    with pytest.raises(SettingsError):
        replace(Settings(), port=99_999)


def test_secrets_do_not_show_in_settings_and_reach_children() -> None:
    settings = Settings(redis_url="redis://:hunter2@127.0.0.1/0", api_token="hunter3")

    assert "hunter" not in repr(settings)
    assert child_environment(settings)["H3_API_TOKEN"] == "hunter3"
    assert "H3_CHECKPOINT" not in child_environment(settings)


def run_cli(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    kept = {name: value for name, value in os.environ.items() if not name.startswith("H3_")}
    return subprocess.run(
        [sys.executable, "-m", "worker.cli", *arguments],
        env=kept | environment | {"NO_COLOR": "1", "COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("command", ["run", "serve", "pull", "janitor", "forget"])
def test_every_help_ends_with_an_example_that_can_be_pasted(command: str) -> None:
    ended = run_cli(command, "--help")

    assert ended.returncode == 0
    assert ended.stdout.strip().splitlines()[-1].strip().startswith(f"Example: h3-worker {command} ")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["pull", "--redis", "http://127.0.0.1"], "scheme 'http'"),
        (["run", "--port", "99999"], "port 99999"),
        (["run", "--pullers", "0"], "0 pullers"),
        (["serve", "--host", "0.0.0.0"], "H3_API_TOKEN"),
        (["run", "--storage", "ftp://x/y"], "no storage speaks 'ftp'"),
        (["run", "--no-such-option"], "No such option"),
        (["runn"], "No such command"),
        (["pull", "--prot", "3"], "No such option"),
        (["run", "--embedded", "--redis", "redis://127.0.0.1"], "leave out either"),
        (["run", "--redis-port", "7000"], "give --embedded"),
        (["run", "--node", "spark 1"], "no node name"),
        (["forget"], "say what to forget"),
    ],
)
def test_a_bad_option_is_one_sentence_and_exit_code_2(arguments: list[str], says: str) -> None:
    ended = run_cli(*arguments)

    assert ended.returncode == 2
    assert says in ended.stderr
    assert "Traceback" not in ended.stderr
    if ended.stdout:  # of commands that have something to say to a program
        error = json.loads(ended.stdout)["error"]
        assert (error["code"], says in error["message"]) == ("invalid_request", True)


NOTHING_DONE = "fleet 'h3': the store is not fixed; nothing to forget"


@pytest.mark.parametrize(
    ("flag", "line", "words"),
    [
        ((), {"fleet": "h3", "done": ["fleet 'h3': the store is not fixed; nothing to forget"]}, True),
        (
            ("--json",),
            {"fleet": "h3", "done": ["fleet 'h3': the store is not fixed; nothing to forget"]},
            True,
        ),
        (("--quiet",), None, False),
    ],
)
def test_a_command_ends_in_one_json_line_when_piped_and_is_silent_when_asked(
    redis_url: str, flag: tuple[str, ...], line: dict[str, Any] | None, words: bool
) -> None:
    ended = run_cli("forget", "--store", "--redis", redis_url, *flag)

    assert ended.returncode == 0
    assert (json.loads(ended.stdout) if ended.stdout else None) == line
    assert bool(ended.stderr) is words


def test_an_error_is_said_quietly_too_and_as_json_where_that_is_asked_for() -> None:
    quiet = run_cli("forget", "--quiet")
    plain = run_cli("pull", "--redis", "redis://127.0.0.1/x")
    as_json = run_cli("pull", "--redis", "redis://127.0.0.1/x", "--json")

    assert (quiet.stdout, quiet.stderr.count("\n")) == ("", 1)
    assert plain.stdout == ""
    assert json.loads(as_json.stdout)["error"]["code"] == "invalid_request"


def test_a_queue_in_the_environment_rules_an_embedded_one_out() -> None:
    ended = run_cli("run", "--embedded", H3_REDIS_URL="redis://127.0.0.1:6379/0")

    assert ended.returncode == 2
    assert "--embedded starts a queue of its own, but --redis or H3_REDIS_URL names one" in ended.stderr


def test_a_node_without_redis_says_so_and_ends_with_3(free_port: int) -> None:
    ended = run_cli("run", "--redis", f"redis://127.0.0.1:{free_port}/0")

    assert (ended.returncode, json.loads(ended.stdout)["error"]["code"]) == (3, "queue_unavailable")
    assert f"no Redis answers at 127.0.0.1:{free_port} (connection refused)" in ended.stderr


@pytest.mark.parametrize("module", ["broker.submit", "worker.tasks", "worker.puller", "worker.supervisor"])
def test_queue_and_puller_import_without_torch_and_without_media(module: str) -> None:
    code = (
        "import sys\n"
        "for name in ('torch', 'av', 'numpy', 'boto3', 'transformers'): sys.modules[name] = None\n"
        f"import {module}\n"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_importing_the_package_imports_nothing() -> None:
    code = "import sys; before = set(sys.modules); import worker; print(set(sys.modules) - before)"

    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert ended.stdout.strip() == "{'worker'}"
