"""Prompts × seeds: what is read, what is drawn, in which order."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from client.errors import SweepInputError
from client.sweeps import describe_sweep, draw_seeds, expand, parse_seeds, read_prompts, sweep_bytes
from queue_schemas.jobs import T2VAJob, build_job
from queue_schemas.sweeps import SweepRun

NOW = datetime(2026, 3, 1, 10, 15, 0, tzinfo=UTC)


def write(folder: Path, data: bytes) -> Path:
    path = folder / "prompts.txt"
    path.write_bytes(data)
    return path


def job(prompt: str, seed: int = 7) -> T2VAJob:
    built = build_job({"prompt": prompt, "seed": seed, "checkpoint": "h3"})
    assert isinstance(built, T2VAJob)
    return built


def run(label: str, prompt: str) -> SweepRun:
    return SweepRun(run_id=job(prompt).job_id, job=job(prompt).model_dump(mode="json"), label=label)


def test_blank_lines_and_comments_are_skipped_and_lines_keep_their_number(tmp_path: Path) -> None:
    path = write(tmp_path, "\ufeff# prompts\n\na red fox\r\n   \n  # no\n 狐狸 🦊 # kept \nlast".encode())

    assert read_prompts(path) == [
        ("line 3", "a red fox"),
        ("line 6", "狐狸 🦊 # kept"),
        ("line 7", "last"),
    ]


def test_only_a_line_feed_ends_a_prompt(tmp_path: Path) -> None:
    path = write(tmp_path, "one\u2028still one\x0cand on\ntwo".encode())

    assert [prompt for _, prompt in read_prompts(path)] == ["one\u2028still one\x0cand on", "two"]


def test_a_line_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    with pytest.raises(SweepInputError, match=r"prompts\.txt, line 2: not UTF-8"):
        read_prompts(write(tmp_path, b"fine\nF\xfcchse\n"))


@pytest.mark.parametrize("data", [b"", b"\n\n", b"# only\n"])
def test_a_file_without_a_prompt_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(SweepInputError, match="holds no prompt"):
        read_prompts(write(tmp_path, data))


def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(SweepInputError, match=r"nothing\.txt: No such file"):
        read_prompts(tmp_path / "nothing.txt")
    with pytest.raises(SweepInputError, match="Is a directory"):
        read_prompts(tmp_path)


def test_seeds_are_a_list_or_a_count() -> None:
    assert parse_seeds("1,2,3", base_seed=None) == [1, 2, 3]
    assert parse_seeds(" 5 , 4 ", base_seed=None) == [5, 4]
    assert parse_seeds("7,", base_seed=None) == [7]
    assert len(set(parse_seeds("4", base_seed=None))) == 4


@pytest.mark.parametrize("text", ["", "x", "1,x", "-1", "1,-2", ",", "1,,2", "0", "100001", "²", "9" * 30])
def test_what_is_neither_is_refused(text: str) -> None:
    with pytest.raises(SweepInputError, match="seeds"):
        parse_seeds(text, base_seed=None)


def test_the_same_seed_twice_and_a_base_beside_explicit_seeds_are_refused() -> None:
    with pytest.raises(SweepInputError, match="twice"):
        parse_seeds("1,2,1", base_seed=None)
    with pytest.raises(SweepInputError, match="base seed has no meaning"):
        parse_seeds("1,2", base_seed=9)


def test_drawn_seeds_follow_from_the_base_and_fewer_are_the_start_of_more() -> None:
    four = draw_seeds(4, base_seed=42)

    # Golden: another derivation would give yesterday's sweep other seeds.
    assert four == [42, 3078271081851394, 5947403762466838, 1911086715296984]
    assert draw_seeds(2, base_seed=42) == four[:2]
    assert draw_seeds(4, base_seed=43)[1:] != four[1:]
    assert len(set(draw_seeds(1_000, base_seed=1))) == 1_000
    assert max(draw_seeds(1_000, base_seed=1)) < 2**53


def test_a_sweep_is_all_seeds_of_the_first_prompt_then_of_the_next() -> None:
    runs = expand([("line 2", "a"), ("line 5", "b")], seeds=[8, 7], fields={"steps": 4})

    assert [label for label, _ in runs] == [
        "line 2: a, seed 8",
        "line 2: a, seed 7",
        "line 5: b, seed 8",
        "line 5: b, seed 7",
    ]
    assert runs[3][1] == {"steps": 4, "prompt": "b", "seed": 7}


def test_a_sweep_larger_than_the_limit_is_refused_before_it_is_made() -> None:
    with pytest.raises(SweepInputError, match="400 prompts x 251 seeds are more than the 100,000"):
        expand([("line 1", "a")] * 400, seeds=range(251), fields={})


def test_a_sweep_names_each_job_once_and_has_a_readable_id_of_its_own() -> None:
    runs = [run("line 1", "a"), run("line 2", "b"), run("line 3", "a")]

    first, second = describe_sweep(runs, now=NOW), describe_sweep(runs, now=NOW)

    assert [run.label for run in first.runs] == ["line 1", "line 2"]
    assert first.runs[0].run_id == job("a").job_id
    assert build_job(first.runs[0].job) == job("a")
    assert first.sweep_id.startswith("sweep-20260301-101500-")
    assert first.sweep_id != second.sweep_id
    assert first.created_at == "2026-03-01T10:15:00+00:00"


def test_a_label_holds_the_beginning_of_its_prompt_on_one_line() -> None:
    ((label, _),) = expand([("line 1", "a  red\nfox in the deep snow of a birch wood")], seeds=[7], fields={})

    assert label == "line 1: a red fox in the deep s…, seed 7"


def test_a_sweep_larger_than_a_reader_accepts_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queue_schemas.limits.SWEEP_BYTES", 100)

    with pytest.raises(SweepInputError, match="split it"):
        sweep_bytes(describe_sweep([run("line 1", "a")], now=NOW))
