"""References as people write them, on the command line, in sweep files and from Python."""

from pathlib import Path
from typing import Any

import pytest

from client.errors import SweepInputError, UploadError
from client.given_references import parse_reference, short_names, with_media
from client.sweep_files import read_sweep_file

KEY = f"references/{'ab' * 32}.png"


@pytest.mark.parametrize(
    ("text", "item"),
    [
        ("a.png", {"source": "a.png"}),
        ("a.png,size=max", {"source": "a.png", "size": "max"}),
        ("c.mp4,audio=off,kind=video", {"source": "c.mp4", "audio": "off", "kind": "video"}),
        ("c.mp4,audio=my, own.wav", {"source": "c.mp4", "audio": "my, own.wav"}),
        ("Scan 1, 10.30.png", {"source": "Scan 1, 10.30.png"}),
        (r"a\,size=b.png,size=max", {"source": "a,size=b.png", "size": "max"}),
        ("https://x.example/a.png?w=1,2", {"source": "https://x.example/a.png?w=1,2"}),
    ],
)
def test_a_reference_is_a_file_and_options(text: str, item: dict[str, Any]) -> None:
    assert parse_reference(text) == item


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a.png,sise=max", r"unknown option 'sise' \(did you mean 'size'\?\).*written \\,"),
        ("a.png,size=", "size= needs a value: match or max"),
        ("a.png,size=max,size=match", "size stands twice"),
        ("https://x.example/a.png?key=secret,h=2", r"https://x.example/a.png: unknown option 'h'"),
    ],
)
def test_an_option_that_is_wrong_is_refused(text: str, said: str) -> None:
    with pytest.raises(SweepInputError, match=said) as caught:
        parse_reference(text)
    assert "secret" not in str(caught.value)


def test_paths_and_names_become_items_with_their_kind(tmp_path: Path) -> None:
    filled = with_media(
        {
            "references": [Path("a.JPEG"), "b.mov", {"source": Path("c"), "kind": "audio"}, KEY],
            "first_frame": Path("d.png"),
        }
    )

    assert filled["references"] == [
        {"source": "a.JPEG", "kind": "image"},
        {"source": "b.mov", "kind": "video"},
        {"source": "c", "kind": "audio"},
        {"source": KEY, "kind": "image"},
    ]
    assert filled["first_frame"] == "d.png"
    with pytest.raises(UploadError, match=r"references\[0\] \(notes.txt\) does not .* say kind=image"):
        with_media({"references": "notes.txt"})


def test_a_sweep_file_takes_references_from_beside_it_and_as_an_axis(tmp_path: Path) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text(
        """
prompts: [a fox]
axes:
  references:
    - [a.png, {source: c.mp4, audio: voice.wav}]
    - b.png,size=max
    - ["https://x.example/p/d.png?token=secret"]
    - [{source: e.mp4, audio: off}]
"""
    )

    runs = read_sweep_file(file, fields={}).runs

    assert [fields["references"] for _, fields in runs] == [
        [
            {"source": str(tmp_path / "a.png")},
            {"source": str(tmp_path / "c.mp4"), "audio": str(tmp_path / "voice.wav")},
        ],
        [{"source": str(tmp_path / "b.png"), "size": "max"}],
        [{"source": "https://x.example/p/d.png?token=secret"}],
        [{"source": str(tmp_path / "e.mp4"), "audio": "off"}],  # which YAML calls false
    ]
    labels = [label for label, _ in runs]
    assert [label.split(", ")[1] for label in labels] == [
        "references a.png + c.mp4",
        "references b.png",
        "references d.png",
        "references e.mp4",
    ]


def test_a_sweep_files_own_references_are_no_axis_and_frames_may_be_one(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text("prompt: a fox\nseeds: [1, 2]\nreferences: [a.png, b.png]\n")
    (tmp_path / "two.yaml").write_text("prompt: a fox\nfirst_frame: [a.png, b.png]\nlast_frame: c.png\n")

    one = read_sweep_file(tmp_path / "one.yaml", fields={})
    two = read_sweep_file(tmp_path / "two.yaml", fields={})

    assert [len(fields["references"]) for _, fields in one.runs] == [2, 2]
    assert [(f["first_frame"], f["last_frame"]) for _, f in two.runs] == [
        (str(tmp_path / "a.png"), str(tmp_path / "c.png")),
        (str(tmp_path / "b.png"), str(tmp_path / "c.png")),
    ]
    assert two.counted.startswith("2 runs: 1 prompt x 2 first_frames x 1 seed")


def test_labels_call_a_stored_file_by_the_start_of_its_hash() -> None:
    assert short_names([{"source": KEY}, "https://u:p@x.example/a/b.png?q=1"]) == "abababababab + b.png"
