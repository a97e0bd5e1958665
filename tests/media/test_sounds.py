"""Sounds of any rate, form and layout into stereo at 32 kHz, resampled once, at their own place in time."""

import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import own_media
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import load_file

from media.downmix import lowered, matrix_for
from media.errors import ReferenceUnreadableError
from media.prepared import PreparedClip, PreparedMedia, PreparedSound
from media.resample import resample

Prepare = Callable[..., list[PreparedMedia]]
GOLDEN = load_file(Path(__file__).parent.parent / "golden" / "media.safetensors")


def only(prepared: list[PreparedMedia]) -> PreparedSound:
    (sound,) = prepared
    assert isinstance(sound, PreparedSound)
    return sound


def dominant_hz(samples: NDArray[np.float32]) -> float:
    """Return the loudest frequency, by a parabola through its peak and the two beside it."""
    size = 1 << 18
    spectrum = np.log(np.abs(np.fft.rfft(samples * np.hanning(samples.size), size)) + 1e-12)
    peak = int(spectrum[1:-1].argmax()) + 1
    before, top, after = spectrum[peak - 1 : peak + 2]
    return float(peak + 0.5 * (before - after) / (before - 2 * top + after)) * 32_000 / size


@pytest.mark.parametrize("rate", [8_000, 22_050, 24_000, 44_100, 48_000, 96_000])
def test_any_rate_keeps_its_pitch_length_and_level(prepare: Prepare, tmp_path: Path, rate: int) -> None:
    own_media.write_sound(tmp_path / "a.wav", own_media.tone(3, rate=rate), rate=rate)

    sound = only(prepare("a.wav", kind="audio"))

    assert sound.samples.dtype == np.float32
    assert sound.samples.shape == (2, 3 * 32_000)
    assert dominant_hz(sound.samples[0]) == pytest.approx(440, abs=0.05)
    assert np.abs(sound.samples[0, 1000:-1000]).max() == pytest.approx(0.5, abs=0.01)
    assert sound.changes == [f"Resampled from {rate:,} to 32,000 Hz."]


@pytest.mark.parametrize("rate", [16_000, 22_050, 44_100, 48_000])
def test_the_resampler_is_comfyuis(rate: int) -> None:
    found = resample(GOLDEN[f"resample.{rate}.in"], rate, filter_dtype=np.float32)
    finer = resample(GOLDEN[f"resample.{rate}.in"], rate, filter_dtype=np.float64)

    assert found.shape == GOLDEN[f"resample.{rate}.out"].shape
    assert np.abs(found - GOLDEN[f"resample.{rate}.out"]).max() < 1e-6
    assert np.abs(finer - GOLDEN[f"resample.{rate}.out"]).max() < 4e-5


@settings(deadline=None)
@given(st.integers(4_000, 384_000), st.integers(1, 400))
def test_every_rate_gives_its_length_and_keeps_silence_and_level(rate: int, length: int) -> None:
    out = resample(np.zeros((2, length), np.float32), rate, filter_dtype=np.float32)

    assert out.shape == (2, math.ceil(length * Fraction(32_000, rate)))
    assert not out.any()


def test_a_rate_without_a_common_factor_needs_no_giant_filter() -> None:
    level = np.full((2, 44_099), 0.25, np.float32)

    out = resample(level, 44_099, filter_dtype=np.float64)

    assert np.abs(out[:, 100:-100] - 0.25).max() < 2e-3


@pytest.mark.parametrize(
    "name", ["a.wav", "a.flac", "a.mp3", "a.ogg", "a.m4a", "a.mka", "a.aiff", "a.caf", "a.mov"]
)
def test_a_sound_of_every_form_begins_and_ends_where_it_should(
    prepare: Prepare, tmp_path: Path, name: str
) -> None:
    """A codec's delay at the start and its padding at the end are not played."""
    click = np.zeros((2, 3 * 48_000), np.float32)
    click[:, 24_000:24_480] = own_media.tone(0.01, hz=2000)
    codec = {"aiff": "pcm_s16be", "caf": "alac", "mov": "pcm_s24le", "mka": "libopus"}.get(name[2:])
    own_media.write_sound(tmp_path / name, click, codec=codec)

    sound = only(prepare(name, kind="audio"))

    assert np.argmax(np.abs(sound.samples[0]) > 0.2) == pytest.approx(16_000, abs=48)
    assert sound.samples.shape[1] == pytest.approx(3 * 32_000, abs=32)


@pytest.mark.parametrize("codec", ["pcm_u8", "pcm_s16le", "pcm_s24le", "pcm_s32le", "pcm_f32le", "pcm_f64le"])
def test_every_depth_has_its_full_scale_at_one(prepare: Prepare, tmp_path: Path, codec: str) -> None:
    tone = own_media.tone(2, rate=32_000)
    own_media.write_sound(tmp_path / "a.wav", tone, rate=32_000, codec=codec)

    sound = only(prepare("a.wav", kind="audio"))

    assert np.abs(sound.samples - tone).max() < (0.01 if codec == "pcm_u8" else 1e-4)
    assert sound.changes == []


def test_mono_becomes_two_equal_channels(prepare: Prepare, tmp_path: Path) -> None:
    mono = own_media.tone(3, rate=32_000, channels=1)
    own_media.write_sound(tmp_path / "a.wav", mono, rate=32_000, codec="pcm_f32le")

    sound = only(prepare("a.wav", kind="audio"))

    assert np.array_equal(sound.samples, np.repeat(mono, 2, axis=0))
    assert sound.changes == ["Mono was duplicated to two channels."]


@pytest.mark.parametrize("name", ["a.wav", "a.m4a"])
def test_five_one_is_mixed_by_the_table(prepare: Prepare, tmp_path: Path, name: str) -> None:
    pitches = {"FL": 400, "FR": 600, "FC": 900, "LFE": 60, "BL": 1300, "BR": 1900}
    channels = np.concatenate([own_media.tone(2, channels=1, hz=hz) for hz in pitches.values()]) * 0.4
    own_media.write_sound(tmp_path / name, channels, layout="5.1")

    sound = only(prepare(name, kind="audio"))

    times = np.arange(4000, 60_000)

    def level(samples: NDArray[np.float32], hz: int) -> float:
        return float(2 * abs((samples[times] * np.exp(-2j * np.pi * hz * times / 32_000)).mean()))

    expected = {
        "FL": (1, 0),
        "FR": (0, 1),
        "FC": (0.707, 0.707),
        "LFE": (0, 0),
        "BL": (0.707, 0),
        "BR": (0, 0.707),
    }
    for speaker, hz in pitches.items():
        gains = [level(side, hz) / 0.2 for side in sound.samples]
        assert gains == pytest.approx(expected[speaker], abs=0.04), speaker
    assert sound.changes[0] == "Mixed down from 6 channels to stereo."


def test_a_mix_that_would_clip_is_lowered_and_that_is_said(prepare: Prepare, tmp_path: Path) -> None:
    loud = np.repeat(own_media.tone(2, channels=1), 6, axis=0) * 1.9
    own_media.write_sound(tmp_path / "a.wav", loud, layout="5.1")

    sound = only(prepare("a.wav", kind="audio"))

    assert 0.98 < np.abs(sound.samples).max() < 1.02
    assert (
        sound.changes[0]
        == "Mixed down from 6 channels to stereo, lowered by 7.2 dB so that it does not clip."
    )


@pytest.mark.parametrize(
    ("layout", "channels"), [("quad", 4), ("5.0", 5), ("7.1", 8), ("2.1", 3), ("hexadecagonal", 16)]
)
def test_other_layouts_have_gains_for_both_sides(layout: str, channels: int) -> None:
    import av

    names = tuple(channel.name for channel in av.AudioLayout(layout).channels)
    assert len(names) == channels

    if layout == "hexadecagonal":
        with pytest.raises(ReferenceUnreadableError, match=r"its 16 channels .* mix it to stereo"):
            matrix_for((*names[:-1], "USR15"))
    gains = matrix_for(names)

    assert gains.shape == (2, channels)
    assert gains[0].sum() == pytest.approx(gains[1].sum())


def test_channels_without_names_follow_wavs_order() -> None:
    assert np.array_equal(matrix_for(("NONE",) * 6), matrix_for(("FL", "FR", "FC", "LFE", "BL", "BR")))
    with pytest.raises(ReferenceUnreadableError, match="its 11 channels"):
        matrix_for(("NONE",) * 11)
    assert lowered(np.full((2, 4), 0.5, np.float32))[1] == 0


def clip_with(path: Path, sound: NDArray[np.float32] | None, **options: object) -> Path:
    return own_media.write_clip(path, [own_media.colour()] * 60, sound=sound, **options)


def of_clip(prepared: list[PreparedMedia]) -> PreparedClip:
    (clip,) = prepared
    assert isinstance(clip, PreparedClip)
    return clip


def test_an_empty_track_counts_as_no_sound_and_that_is_said(prepare: Prepare, tmp_path: Path) -> None:
    options = {"movflags": "frag_keyframe+empty_moov"}
    clip_with(tmp_path / "a.mp4", np.zeros((2, 0), np.float32), container_options=options)

    clip = of_clip(prepare("a.mp4", kind="video"))

    assert clip.sound is None
    assert "Its track of sound is empty and counts as none." in clip.changes
    with pytest.raises(ReferenceUnreadableError, match="it has no sound, or an empty track of it"):
        prepare("a.mp4", kind="audio")


def test_a_clip_without_sound_has_nothing_to_tell_of_it(prepare: Prepare, tmp_path: Path) -> None:
    clip_with(tmp_path / "a.mp4", None)

    clip = of_clip(prepare("a.mp4", kind="video"))

    assert clip.sound is None
    assert not any("sound" in change for change in clip.changes)


@pytest.mark.parametrize("first", [0, 40])
@pytest.mark.parametrize("codec", ["aac", "alac", "libopus"])
def test_a_broken_track_is_named_and_can_be_left_out(
    prepare: Prepare, tmp_path: Path, codec: str, first: int
) -> None:
    path = clip_with(tmp_path / "a.mp4", own_media.tone(2.5), sound_codec=codec)
    own_media.spoil(path, "audio", first=first if codec != "alac" else first // 2)

    with pytest.raises(ReferenceUnreadableError) as caught:
        prepare("a.mp4", kind="video")

    assert "its track of sound" in caught.value.reason
    assert "is broken" in caught.value.reason
    assert (caught.value.place, caught.value.file) == ("references[0]", "a.mp4")
    silent = of_clip(prepare({"kind": "video", "source": "a.mp4", "audio": "off"}))
    assert silent.sound is None


def test_a_clips_sound_is_its_own_another_or_none(prepare: Prepare, tmp_path: Path) -> None:
    clip_with(tmp_path / "a.mp4", own_media.tone(2.5, hz=440))
    own_media.write_sound(tmp_path / "b.wav", own_media.tone(3, hz=880))

    own = of_clip(prepare({"kind": "video", "source": "a.mp4", "audio": "auto"}))
    other = of_clip(prepare({"kind": "video", "source": "a.mp4", "audio": "b.wav"}))
    none = of_clip(prepare({"kind": "video", "source": "a.mp4", "audio": "off"}))

    assert own.sound is not None
    assert other.sound is not None
    assert (own.sound.place, other.sound.place) == ("references[0]", "references[0].audio")
    assert own.sound.sha256 == own.sha256 != other.sound.sha256
    assert dominant_hz(own.sound.samples[0]) == pytest.approx(440, abs=1)
    assert dominant_hz(other.sound.samples[0]) == pytest.approx(880, abs=1)
    assert none.sound is None
    assert "Its sound was left out, as asked." in none.changes


def test_a_sound_is_cut_to_the_film_at_its_own_rate_where_diffusers_does(
    prepare: Prepare, tmp_path: Path
) -> None:
    own_media.write_sound(tmp_path / "a.wav", own_media.tone(4, rate=44_100), rate=44_100)

    comfyui = only(prepare("a.wav", kind="audio", frames=73))
    diffusers = only(prepare("a.wav", kind="audio", frames=73, conventions="diffusers"))

    assert comfyui.samples.shape[1] == 4 * 32_000
    assert diffusers.samples.shape[1] == math.ceil(int(73 / 24 * 44_100) * 320 / 441)
    assert diffusers.changes[0] == "Cut from 4.000 s to the film's 3.042 s."


def test_sound_that_a_film_brings_is_used_without_its_pictures(prepare: Prepare, tmp_path: Path) -> None:
    clip_with(tmp_path / "a.mp4", own_media.tone(2.5))

    sound = only(prepare("a.mp4", kind="audio"))

    assert sound.samples.shape == (2, 80_000)
    assert sound.changes[0] == "Its pictures are not used."


def test_a_sound_that_is_not_finite_is_refused(prepare: Prepare, tmp_path: Path) -> None:
    tone = own_media.tone(2)
    tone[0, 500] = np.inf
    own_media.write_sound(tmp_path / "a.wav", tone, codec="pcm_f32le")

    with pytest.raises(ReferenceUnreadableError, match="not finite"):
        prepare("a.wav", kind="audio")


def test_a_gap_becomes_silence(prepare: Prepare, tmp_path: Path) -> None:
    """A recording whose second half is stamped half a second late."""
    import av

    with av.open(str(tmp_path / "a.mka"), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=32_000, layout="stereo")
        for start, samples in ((0, 32_000), (48_000, 32_000)):
            level = np.full((1, samples * 2), 8_000, np.int16)
            frame = av.AudioFrame.from_ndarray(level, format="s16", layout="stereo")
            frame.sample_rate, frame.pts, frame.time_base = 32_000, start, Fraction(1, 32_000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))

    sound = only(prepare("a.mka", kind="audio"))

    assert sound.samples.shape[1] == pytest.approx(80_000, abs=40)
    assert not sound.samples[:, 32_100:47_900].any()
    assert sound.changes == ["Gaps of 0.500 s in all were filled with silence."]


def test_a_clips_sound_that_outlasts_the_limit_is_cut_and_that_is_said(
    prepare: Prepare, tmp_path: Path
) -> None:
    tone = own_media.tone(15.5, rate=8_000, channels=1)
    clip_with(tmp_path / "a.mkv", tone, sound_rate=8_000, sound_codec="pcm_s16le")

    clip = of_clip(prepare("a.mkv", kind="video"))

    assert clip.sound is not None
    assert clip.sound.samples.shape[1] == 15.01 * 32_000
    assert "Cut to 15 s, the most that a clip's sound has." in clip.sound.changes
