"""Any frame rate onto 24 frames a second by time stamps, with the sound where it was."""

from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import own_media
import pytest
from hypothesis import given
from hypothesis import strategies as st

from media.clips import decode_clip
from media.errors import ReferenceUnreadableError
from media.facts import probe_reference
from media.prepared import PreparedClip, PreparedMedia
from media.spool import SpooledFrames
from media.timing import Slots

Prepare = Callable[..., list[PreparedMedia]]
MILLISECOND = Fraction(1, 1000)
SHARP = {"crf": "4", "preset": "ultrafast"}


def only(prepared: list[PreparedMedia]) -> PreparedClip:
    (clip,) = prepared
    assert isinstance(clip, PreparedClip)
    return clip


def numbered(count: int, *, width: int = 32, height: int = 32) -> list[np.ndarray]:
    """Make frames that tell their number: by left half and right half, 16 levels each."""
    frames = []
    for number in range(count):
        frame = np.zeros((height, width, 3), np.uint8)
        frame[:, : width // 2] = 8 + 15 * (number % 16)
        frame[:, width // 2 :] = 8 + 15 * (number // 16)
        frames.append(frame)
    return frames


def numbers(spooled: SpooledFrames) -> list[int]:
    """Read the numbers of `numbered` back."""
    frames = spooled.take(range(len(spooled))).astype(float)
    low, high = frames[:, 8:24, 2:12].mean((1, 2, 3)), frames[:, 8:24, -12:-2].mean((1, 2, 3))
    return [round((a - 8) / 15) + 16 * round((b - 8) / 15) for a, b in zip(low, high, strict=True)]


def diffusers_rule(count: int, fps: float) -> list[int]:
    """Repeat each frame from its slot to the next one's, for a constant rate."""
    scale = 24 / fps
    slots = np.floor(np.arange(count) * scale + 0.5).astype(int)
    return np.repeat(np.arange(count), np.diff(slots, append=int(np.floor(count * scale + 0.5)))).tolist()


def numbers_of(path: Path) -> list[int]:
    """Read the numbers of a whole clip's frames at 24 a second, at its own size."""
    facts = probe_reference(path, kind="video")
    assert facts.frames is not None
    clip = decode_clip(path, facts.form, size_for=lambda width, height: (width, height), stop=facts.frames)
    return numbers(clip.frames)


RATES = [Fraction(rate) for rate in (10, 12, 24, 25, 48, 50, 60)] + [
    Fraction(24_000, 1001),
    Fraction(30_000, 1001),
]


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv"])
@pytest.mark.parametrize("fps", RATES, ids=str)
def test_a_constant_rate_follows_diffusers_rule(tmp_path: Path, name: str, fps: Fraction) -> None:
    count = int(fps * 2) + 3
    clock = MILLISECOND if name == "a.mkv" else None
    path = own_media.write_clip(tmp_path / name, numbered(count), fps=fps, time_base=clock, options=SHARP)

    assert numbers_of(path) == diffusers_rule(count, float(fps))


def test_a_varying_rate_keeps_duration_and_sync(prepare: Prepare, tmp_path: Path) -> None:
    times = [Fraction(n, 60) for n in range(60)] + [1 + Fraction(n, 10) for n in range(41)]
    clicks = np.zeros((2, 5 * 48_000), np.float32)
    clicks[:, 3 * 48_000 : 3 * 48_000 + 480] = 0.8  # where frame 80 begins
    path = own_media.write_clip(
        tmp_path / "vfr.mp4",
        numbered(100),
        times=times,
        time_base=Fraction(1, 600),
        sound=clicks,
        options=SHARP,
    )

    shown = numbers_of(path)
    clip = only(prepare("vfr.mp4", kind="video"))

    slots = [int(24 * time + Fraction(1, 2)) for time in times]
    assert shown == np.repeat(np.arange(100), np.diff(slots)).tolist()
    assert len(shown) == 5 * 24
    assert shown.index(80) == 3 * 24
    assert "Brought from 20 to 24 frames a second by time stamps." in clip.changes
    assert clip.sound is not None
    assert np.argmax(np.abs(clip.sound.samples[0]) > 0.2) == pytest.approx(3 * 32_000, abs=64)
    assert clip.sound.samples.shape[1] == 5 * 32_000


def test_frames_are_cut_to_the_film(prepare: Prepare, tmp_path: Path) -> None:
    own_media.write_clip(tmp_path / "a.mp4", numbered(100), options=SHARP)

    snapped = only(prepare("a.mp4", kind="video"))
    short = only(prepare("a.mp4", kind="video", frames=73))
    seen_whole = only(prepare("a.mp4", kind="video", frames=73, conventions="diffusers"))

    assert numbers(snapped.frames) == list(range(90))  # 17n + 5
    assert "Cut from 100 to 90 frames (3.750 s)." in snapped.changes
    assert numbers(short.frames) == list(range(73))
    assert seen_whole.num_frames == 73


def test_a_film_too_short_for_a_clip_is_said(prepare: Prepare, tmp_path: Path) -> None:
    own_media.write_clip(tmp_path / "a.mp4", numbered(60))

    with pytest.raises(ReferenceUnreadableError, match=r"5 frames at 24 per second.* ask for a longer film"):
        prepare("a.mp4", kind="video", frames=5, conventions="diffusers")


@pytest.mark.parametrize("start", [0.5, 0.0])
def test_a_clips_sound_begins_with_its_pictures(prepare: Prepare, tmp_path: Path, start: float) -> None:
    loud = np.full((2, 2 * 48_000), 0.5, np.float32)
    own_media.write_clip(tmp_path / "a.mkv", numbered(60), sound=loud, sound_start=start, sound_codec="flac")

    clip = only(prepare("a.mkv", kind="video"))

    assert clip.sound is not None
    assert np.argmax(np.abs(clip.sound.samples[0]) > 0.25) == pytest.approx(start * 32_000, abs=40)
    assert clip.sound.samples.shape[1] == pytest.approx((2 + start) * 32_000, abs=40)
    told = [change for change in clip.sound.changes if "silence was put before it" in change]
    assert told == (["It begins 0.500 s after the pictures: silence was put before it."] if start else [])


def test_pictures_that_begin_late_take_their_sound_with_them(prepare: Prepare, tmp_path: Path) -> None:
    times = [Fraction(1, 4) + Fraction(n, 24) for n in range(61)]
    clicks = np.zeros((2, 3 * 48_000), np.float32)
    clicks[:, 48_000 : 48_000 + 480] = 0.8
    own_media.write_clip(
        tmp_path / "a.mkv", numbered(60), times=times, time_base=MILLISECOND, sound=clicks, sound_codec="flac"
    )

    clip = only(prepare("a.mkv", kind="video"))

    assert clip.sound is not None
    assert np.argmax(np.abs(clip.sound.samples[0]) > 0.25) == pytest.approx(0.75 * 32_000, abs=60)
    assert "It begins 0.250 s before the pictures: that was cut." in clip.sound.changes


def test_an_edit_list_cuts_pictures_and_sound_alike(prepare: Prepare, tmp_path: Path) -> None:
    """As a phone trims: the file keeps what was cut and its edit lists begin a second in."""
    clicks = np.zeros((2, 4 * 48_000), np.float32)
    clicks[:, 2 * 48_000 : 2 * 48_000 + 480] = 0.8
    path = own_media.write_clip(
        tmp_path / "a.mov", numbered(96), sound=clicks, sound_codec="pcm_s16le",
        options={**SHARP, "g": "12", "bf": "0"},
    )  # fmt: skip
    data = bytearray(path.read_bytes())
    at = data.find(b"elst")
    while at >= 0:
        scale = int.from_bytes(data[data.find(b"mdhd", at) + 16 : data.find(b"mdhd", at) + 20])
        data[at + 12 : at + 16] = (3_000).to_bytes(4)  # of the film's own scale of 1000
        data[at + 16 : at + 20] = scale.to_bytes(4)
        at = data.find(b"elst", at + 4)
    path.write_bytes(data)

    clip = only(prepare("a.mov", kind="video"))

    assert numbers_of(path) == list(range(24, 96))
    assert clip.sound is not None
    assert np.argmax(np.abs(clip.sound.samples[0]) > 0.25) == pytest.approx(32_000, abs=64)


@given(st.lists(st.integers(0, 400), min_size=1, max_size=60), st.integers(1, 1000))
def test_slots_only_grow_and_last_as_long_as_the_stamps(gaps: list[int], unit: int) -> None:
    tick = Fraction(1, unit)
    stamps = [sum(gaps[:n]) * tick for n in range(len(gaps))]
    slots = Slots(rate=None, tick=tick)

    places = [slots.place(stamp) for stamp in stamps]
    end = slots.end(max(gaps[-1], 1) * tick)

    assert places[0] == 0
    assert all(a <= b for a, b in pairwise([*places, end]))
    assert abs(Fraction(end, 24) - (stamps[-1] + max(gaps[-1], 1) * tick)) <= Fraction(1, 48)
