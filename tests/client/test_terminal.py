"""Text of others reaches a terminal as text: titles, colours and cursor moves in it do nothing."""

import io
import logging

import pytest
from rich.table import Table
from rich.text import Text

from client.session import Session
from client.settings import ClientSettings
from client.terminal import PlainConsole, SayingHandler, say
from queue_schemas.text import printable

EVIL = "a\x1b]0;title\x07\x1b[2J\x9b31m fox\u202e\udcff"
SHOWN = r"a\x1b]0;title\x07\x1b[2J\x9b31m fox\u202e\udcff"


def test_what_would_steer_is_escaped_and_every_script_stays() -> None:
    assert printable(EVIL) == SHOWN
    assert printable("a\nb\r\tc\x7f\u2028") == r"a\nb\r\tc\x7f\u2028"
    for text in ("Füchse im Schnee", "狐狸 🦊", "ثعلب", "👩‍👩‍👧", "«\u00a0oui\u00a0»"):
        assert printable(text) == text


def test_notes_errors_and_warnings_are_one_harmless_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    say(EVIL)
    Session(settings=ClientSettings()).note(f"{EVIL}\nh3: note: all is well")
    SayingHandler().emit(logging.makeLogRecord({"msg": "%s", "args": (EVIL,)}))

    assert capsys.readouterr().err.splitlines() == [
        f"h3: {SHOWN}",
        rf"h3: note: {SHOWN}\nh3: note: all is well",
        f"h3: {SHOWN}",
    ]


def test_a_console_keeps_its_own_colours_and_nobody_elses() -> None:
    sink = io.StringIO()
    console = PlainConsole(file=sink, force_terminal=True, color_system="standard", width=100)
    table = Table("what", header_style="bold")
    table.add_row(Text(EVIL))
    table.add_row(EVIL)

    console.print(table)
    console.print(f"[red]{EVIL}[/red] :fox:", soft_wrap=True)

    said = sink.getvalue()
    assert said.count(r"a\x1b]0;title") == 3  # a table may cut the rest off
    assert "[red]" in said
    assert ":fox:" in said
    assert "\x1b[1m" in said  # its own bold
    assert not any(part in said for part in ("\x1b]", "\x1b[2J", "\x07", "\x9b", "\u202e", "\udcff"))
