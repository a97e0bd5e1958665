"""Numbers on a command line: what Python's int() reads as well is none."""

from typing import Annotated

import pytest
import typer

from queue_schemas.command_lines import number_option, run_command_line
from queue_schemas.runs import Priority

app = typer.Typer()
seen: list[int | None] = []


@app.command()
def note(
    *,
    seed: Annotated[int | None, number_option("--seed", help="A seed")] = None,
    priority: Priority = Priority.NORMAL,
) -> None:
    """Note a seed."""
    seen.append(seed)


@pytest.mark.parametrize("text", ["7_0", "1.0", " 7", "7 ", "+7", "-7", "٧", "0x7", "", "x"])
def test_what_is_not_written_in_digits_is_no_number(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(app, ["--seed", text], name="note") == 2

    assert f"{text!r} is no whole number; write it in digits" in capsys.readouterr().err


def test_a_number_of_any_length_is_answered_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(app, ["--seed", "1" * 5_000], name="note") == 2

    assert "5,000 digits; at most 400 are read" in capsys.readouterr().err


def test_a_choice_that_is_none_is_told_without_pydantics_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(app, ["--priority", "nope"], name="note") == 2

    said = capsys.readouterr().err
    assert "Invalid value for '--priority': 'nope' is not one of 'high', 'normal', 'low'" in said


def test_digits_are_read_and_an_option_may_be_left_out() -> None:
    seen.clear()

    assert [run_command_line(app, line, name="note") for line in (["--seed", "07"], ["--"])] == [0, 0]
    assert seen == [7, None]
