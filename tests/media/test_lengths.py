"""How long clips and sounds may be, each and together, told with both numbers."""

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import own_media
import pytest

from media.errors import ReferenceUnreadableError
from media.prepared import PreparedMedia

Prepare = Callable[..., list[PreparedMedia]]


def clip(path: Path, seconds: Fraction | float) -> Path:
    """Write a clip of one frame each tenth of a second, the last one as long as is left."""
    tenths = int(seconds * 10)
    times = [Fraction(n, 10) for n in range(tenths)] + [Fraction(seconds).limit_denominator(1000)]
    pictures = [own_media.colour(width=32, height=32)] * tenths
    # Without B-frames, since an mp4 tells how long the last frame in order of decoding is shown.
    return own_media.write_clip(path, pictures, times=times, time_base=Fraction(1, 1000), options={"bf": "0"})


def sound(path: Path, seconds: float) -> Path:
    return own_media.write_sound(path, own_media.tone(seconds, rate=8_000), rate=8_000)


def test_two_clips_of_7504_milliseconds_are_within_the_tolerance(prepare: Prepare, tmp_path: Path) -> None:
    for name in ("a.mp4", "b.mp4"):
        clip(tmp_path / name, Fraction(7504, 1000))

    prepared = prepare("a.mp4", "b.mp4", kind="video", frames=22)

    assert len(prepared) == 2


@pytest.mark.parametrize("make", [clip, sound])
def test_a_real_overrun_is_refused_with_all_numbers(
    prepare: Prepare, tmp_path: Path, make: Callable[[Path, float], Path]
) -> None:
    kind, end, word = ("video", "mp4", "clips") if make is clip else ("audio", "wav", "sounds")
    for name in ("a", "b"):
        make(tmp_path / f"{name}.{end}", 7.51)

    with pytest.raises(ReferenceUnreadableError) as caught:
        prepare(f"a.{end}", f"b.{end}", kind=kind, frames=22)

    assert str(caught.value) == (
        f"references[1] (b.{end}): with it the {word} last 7.510 + 7.510 = 15.020 s; all of a job's have at"
        " most 15 s together; cut or leave out some"
    )


@pytest.mark.parametrize(
    ("make", "seconds", "said"),
    [
        (clip, 1.98, "it lasts 1.980 s; a clip has at least 2 s; give a longer one"),
        (clip, 15.02, "it lasts 15.020 s; a clip has at most 15 s; cut it"),
        (sound, 1.98, "it lasts 1.980 s; a sound has at least 2 s; give a longer one"),
        (sound, 15.02, "it lasts 15.020 s; a sound has at most 15 s; cut it"),
        (sound, 60, "it lasts 60.000 s; a sound has at most 15 s; cut it"),
        (clip, 1.992, None),
        (clip, 15.009, None),
        (sound, 1.992, None),
        (sound, 15.009, None),
    ],
)
def test_each_lasts_2_to_15_seconds(
    prepare: Prepare, tmp_path: Path, make: Callable[[Path, float], Path], seconds: float, said: str | None
) -> None:
    kind, name = ("video", "a.mp4") if make is clip else ("audio", "a.wav")
    make(tmp_path / name, seconds)

    if said is None:
        assert prepare(name, kind=kind, frames=22)
    else:
        with pytest.raises(ReferenceUnreadableError) as caught:
            prepare(name, kind=kind, frames=22)
        assert str(caught.value) == f"references[0] ({name}): {said}"


@pytest.mark.parametrize("name", ["a.mp3", "a.m4a", "a.ogg"])
def test_a_codecs_padding_does_not_count(prepare: Prepare, tmp_path: Path, name: str) -> None:
    own_media.write_sound(tmp_path / name, own_media.tone(15, rate=48_000, channels=1), rate=48_000)

    (prepared,) = prepare(name, kind="audio")

    assert prepared.samples.shape[1] == pytest.approx(15 * 32_000, abs=40)


def test_a_short_voice_beside_a_longer_film_is_legal(prepare: Prepare, tmp_path: Path) -> None:
    sound(tmp_path / "voice.wav", 5.2)

    (voice,) = prepare("voice.wav", kind="audio", frames=243, conventions="diffusers")

    assert voice.samples.shape[1] == 5.2 * 32_000


def test_a_clips_own_and_other_sound_do_not_count_as_sounds(prepare: Prepare, tmp_path: Path) -> None:
    own_media.write_clip(tmp_path / "a.mp4", [own_media.colour()] * 60, sound=own_media.tone(2.5, channels=1))
    sound(tmp_path / "b.wav", 10)
    sound(tmp_path / "c.wav", 15)

    prepared = prepare(
        {"kind": "video", "source": "a.mp4", "audio": "b.wav"}, {"kind": "audio", "source": "c.wav"}
    )

    assert len(prepared) == 2


def test_nothing_is_decoded_before_every_header_is_read(prepare: Prepare, tmp_path: Path) -> None:
    own_media.write_picture(tmp_path / "a.png", own_media.colour())
    data = bytearray((tmp_path / "a.png").read_bytes())
    data[60:80] = bytes(20)  # its header is whole, its pixels are not
    (tmp_path / "a.png").write_bytes(data)
    sound(tmp_path / "b.wav", 20)

    with pytest.raises(ReferenceUnreadableError, match=r"references\[1\] \(b\.wav\): it lasts 20"):
        prepare("a.png", {"kind": "audio", "source": "b.wav"})
