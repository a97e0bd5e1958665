"""How a film comes to be: whole, once, the same each time, or not at all."""

import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from media.encode import TAGS, encode_mp4
from media.errors import FilmInputError, FilmWriteError
from media.probe import probe, probe_with_tags
from queue_schemas.geometry import track_samples

RATE = 32_000
Noise = Callable[[int], NDArray[np.uint8]]


def hiss(frames: int) -> NDArray[np.float32]:
    sound = np.random.default_rng(3).normal(0.0, 0.1, (2, track_samples(frames)))
    return sound.astype(np.float32)


def test_a_film_holds_what_was_put_in(tmp_path: Path, noise: Noise) -> None:
    path = tmp_path / "film.mp4"

    found = encode_mp4(path, frames=[noise(22)], waveform=hiss(22), sample_rate_hz=RATE)

    assert found == probe(path)
    assert (found.width, found.height, found.frames, found.fps) == (48, 32, 22, 24)
    assert (found.video_codec, found.audio_codec) == ("h264", "aac")
    assert (found.sample_rate_hz, found.channels, found.samples) == (RATE, 2, 29_333)
    assert found.video_seconds == pytest.approx(22 / 24, abs=1e-9)
    assert found.audio_seconds == pytest.approx(29_333 / RATE, abs=1e-9)
    assert list(tmp_path.iterdir()) == [path]


def test_the_same_film_twice_is_the_same_bytes(tmp_path: Path, noise: Noise) -> None:
    for name in ("a.mp4", "b.mp4"):
        encode_mp4(
            tmp_path / name,
            frames=[noise(39)],
            waveform=hiss(39),
            sample_rate_hz=RATE,
            metadata={"title": "fox"},
        )

    assert (tmp_path / "a.mp4").read_bytes() == (tmp_path / "b.mp4").read_bytes()


def test_frames_in_parts_give_the_same_bytes_as_all_at_once(tmp_path: Path, noise: Noise) -> None:
    frames = noise(39)
    parts = (frames[start:end] for start, end in ((0, 5), (5, 5), (5, 22), (22, 39)))

    encode_mp4(tmp_path / "whole.mp4", frames=[frames], waveform=hiss(39), sample_rate_hz=RATE)
    encode_mp4(tmp_path / "parts.mp4", frames=parts, waveform=hiss(39), sample_rate_hz=RATE)

    assert (tmp_path / "whole.mp4").read_bytes() == (tmp_path / "parts.mp4").read_bytes()


@pytest.mark.parametrize(
    "text",
    [
        "a red fox in snow",
        "  spaces kept \n lines\r\n\ttoo \u2028",
        "<d>[English] hold on</d> = ; # \\ \" '",
        "狐 キツネ ثعلب \u202eשועל\u202c e\u0301 \U0001f98a\U0001f468\u200d\U0001f469\u200d\U0001f467",
        "\U0001f98a" * 7_000,
    ],
)
def test_tags_are_kept_to_the_last_byte(tmp_path: Path, noise: Noise, text: str) -> None:
    tags = dict.fromkeys(TAGS, text)

    encode_mp4(tmp_path / "t.mp4", frames=[noise(5)], waveform=hiss(5), sample_rate_hz=RATE, metadata=tags)

    _, found = probe_with_tags(tmp_path / "t.mp4")
    assert {name: found[name].encode() for name in TAGS} == dict.fromkeys(TAGS, text.encode())


def test_a_name_that_looks_like_an_address_is_a_file(
    tmp_path: Path, noise: Noise, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    encode_mp4(Path("http:fox %03d.mp4"), frames=[noise(5)], waveform=hiss(5), sample_rate_hz=RATE)

    assert probe(Path("http:fox %03d.mp4")).frames == 5


@pytest.mark.parametrize(
    ("parts", "waveform", "sentence"),
    [
        ([np.zeros((5, 32, 33, 3), np.uint8)], hiss(5), "33x32 pixels cannot be yuv420p"),
        ([np.zeros((5, 31, 32, 3), np.uint8)], hiss(5), "32x31 pixels cannot be yuv420p"),
        (
            [np.zeros((5, 32, 32), np.uint8)],
            hiss(5),
            r"must be uint8 \[F, H, W, 3\]; these are uint8 \[5, 32, 32\]",
        ),
        ([np.zeros((5, 32, 32, 4), np.uint8)], hiss(5), "must be uint8"),
        ([np.zeros((5, 32, 32, 3), np.float32)], hiss(5), "these are float32"),
        ([np.zeros((0, 32, 32, 3), np.uint8)], hiss(5), "no frames"),
        ([], hiss(5), "no frames"),
        (
            [np.zeros((5, 32, 32, 3), np.uint8), np.zeros((5, 32, 64, 3), np.uint8)],
            hiss(10),
            "after frames of",
        ),
        ([np.zeros((5, 32, 32, 3), np.uint8)], hiss(5)[:1], r"must be float32 \[2, N\]"),
        ([np.zeros((5, 32, 32, 3), np.uint8)], hiss(5).astype(np.float64), "this one is float64"),
        ([np.zeros((5, 32, 32, 3), np.uint8)], hiss(5)[:, 1:], "need 6667 samples at 32000 Hz; .* has 6666"),
        ([np.zeros((5, 32, 32, 3), np.uint8)], hiss(22), "need 6667 samples at 32000 Hz; .* has 29333"),
        ([np.zeros((5, 32, 32, 3), np.uint8)], np.full((2, 6667), np.nan, np.float32), "not finite"),
        ([np.zeros((5, 32, 32, 3), np.uint8)], np.full((2, 6667), -np.inf, np.float32), "not finite"),
    ],
)
def test_what_cannot_be_a_film_is_refused_and_leaves_nothing(
    tmp_path: Path, parts: list[NDArray[np.uint8]], waveform: NDArray[np.float32], sentence: str
) -> None:
    with pytest.raises(FilmInputError, match=sentence):
        encode_mp4(tmp_path / "film.mp4", frames=parts, waveform=waveform, sample_rate_hz=RATE)

    assert list(tmp_path.iterdir()) == []


def test_a_rate_that_aac_lacks_is_refused(tmp_path: Path, noise: Noise) -> None:
    with pytest.raises(FilmInputError, match="no sample rate of 31999 Hz; it has 96000"):
        encode_mp4(tmp_path / "film.mp4", frames=[noise(5)], waveform=hiss(5), sample_rate_hz=31_999)


@pytest.mark.parametrize(
    ("tags", "sentence"),
    [
        ({"prompt": "fox"}, "keeps no tag 'prompt'; it keeps title, comment"),
        ({"title": ""}, "'title' is empty"),
        ({"comment": "a\0b"}, "holds a NUL"),
        ({"comment": "\ud83e"}, "no valid Unicode"),
    ],
)
def test_a_tag_that_would_not_survive_is_refused(
    tmp_path: Path, noise: Noise, tags: dict[str, str], sentence: str
) -> None:
    with pytest.raises(FilmInputError, match=sentence):
        encode_mp4(
            tmp_path / "film.mp4", frames=[noise(5)], waveform=hiss(5), sample_rate_hz=RATE, metadata=tags
        )

    assert list(tmp_path.iterdir()) == []


def test_a_decoder_that_fails_between_parts_leaves_the_old_film(tmp_path: Path, noise: Noise) -> None:
    path = tmp_path / "film.mp4"
    path.write_bytes(b"the old film")

    def parts() -> Iterator[NDArray[np.uint8]]:
        yield noise(22)
        raise RuntimeError("the decoder broke")

    with pytest.raises(RuntimeError, match="the decoder broke"):
        encode_mp4(path, frames=parts(), waveform=hiss(39), sample_rate_hz=RATE)

    assert path.read_bytes() == b"the old film"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_missing_is_said(tmp_path: Path, noise: Noise) -> None:
    with pytest.raises(FilmWriteError, match="No such file or directory"):
        encode_mp4(tmp_path / "no" / "film.mp4", frames=[noise(5)], waveform=hiss(5), sample_rate_hz=RATE)


def test_a_disk_that_takes_no_more_leaves_nothing(tmp_path: Path, noise: Noise) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(FilmWriteError, match=r"film\.mp4: File too large"):
            encode_mp4(tmp_path / "film.mp4", frames=[noise(22)], waveform=hiss(22), sample_rate_hz=RATE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert list(tmp_path.iterdir()) == []


def test_encoding_prints_nothing_and_needs_no_torch(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; import numpy as np; from media.encode import encode_mp4;"
        "encode_mp4(Path(sys.argv[1]), frames=[np.zeros((5, 32, 32, 3), np.uint8)],"
        " waveform=np.zeros((2, 6667), np.float32), sample_rate_hz=32_000);"
        "sys.exit(9 if 'torch' in sys.modules else 0)"
    )

    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "film.mp4")], capture_output=True, check=False
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
