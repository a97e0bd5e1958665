"""What `h3` refuses, with one sentence and code 2, before a queue or a file is touched."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from h3_command import CLOSED, RunH3, line, sentence

if TYPE_CHECKING:
    pass


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
        (["submit", "a", "--storage", "~nosuchuser/x"], "names no user of this machine"),
        (["submit", "a", "--storage", "file:///a%00b"], "holds a NUL"),
        (["submit", "a", "--storage", "loop/x"], "a link that leads to itself"),
        (["collect", "--csv", "r.csv", "--storage", "loop"], "a link that leads to itself"),
        (["demo", "--storage", "x" * 300], "too long for the file system"),
        (["submit", "a", "--label", "shot=\udcff"], "lone surrogate"),
        (["sweep", "--prompts", "pipe"], "holds no prompt"),
        (["sweep", "--prompts", "."], "Is a directory"),
        (["submit", "a", "--redis", "http://x"], "rediss://host:port/0"),
        (["submit", "a", "--fleet", "a b"], "no fleet name"),
        (["collect"], "name --csv FILE, --json FILE or both"),
    ],
)
def test_refused_input_is_one_sentence_and_code_2_before_redis_is_touched(
    h3: RunH3, tmp_path: Path, arguments: list[str], said: str
) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "good.txt").write_text("a fox\n")
    (tmp_path / "bad.txt").write_bytes(b"a\n\xff\n")
    (tmp_path / "long.txt").write_text("a\n\n" + "x" * 7_001)
    before = sorted(tmp_path.rglob("*"))

    done = h3(*arguments, H3_REDIS_URL=CLOSED, H3_CHECKPOINT="h3-tiny")

    assert done.returncode == 2
    assert said in sentence(done)
    assert line(done)["error"]["code"] == "invalid_request"
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sweep"], "name one of: a sweep FILE, --prompts FILE, --resume SWEEP"),
        (["sweep", "s.yaml", "--prompts", "p.txt"], "name one of"),
        (["sweep", "s.yaml", "--retry-failed"], "goes with --resume"),
        (["sweep", "s.yaml", "--seeds", "4"], "a sweep file has its own seeds"),
        (["sweep", "--resume", "x", "--steps", "4"], "takes everything from the sweep"),
        (["sweep", "--resume", "x", "--label", "shot=1"], "takes everything from the sweep"),
        (["sweep", "--resume", "x", "--priority", "normal"], "takes everything from the sweep"),
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


@pytest.mark.parametrize(
    "arguments",
    [
        ["--redis", CLOSED, "demo"],
        ["--fleet", "night", "demo", "--fresh"],
        ["--redis", CLOSED, "collect", "--csv", "r.csv"],
        ["--fleet", "night", "collect", "--csv", "r.csv"],
    ],
)
def test_an_option_that_the_command_would_ignore_is_refused(
    h3: RunH3, tmp_path: Path, arguments: list[str]
) -> None:
    done = h3(*arguments)

    assert done.returncode == 2
    said = line(done)["error"]
    assert said["code"] == "invalid_request"
    assert f"has no use for {arguments[0]}" in said["message"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", ["--no-such", "--width=abc"])
def test_an_option_that_does_not_exist_or_parse_is_code_2_without_a_traceback(h3: RunH3, option: str) -> None:
    done = h3("submit", "a", option)

    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert option.partition("=")[0] in done.stderr
