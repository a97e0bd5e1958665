"""One track of sound into float32 stereo at 32 kHz: decoded, downmixed, put in time, cut, resampled once.

Codec delay and edit lists are libav's to apply: what the decoder gives is what plays. Blocks are appended as
they come; only where their stamps drift from that by more than 40 ms was there a gap, which becomes silence,
or an overlap, which is left out. Decoding stops at the limit, whatever a header said.

Shapes: C channels of the file; N samples per channel.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Final

import av
import numpy as np
from av.audio.stream import AudioStream
from av.container import InputContainer
from numpy.typing import NDArray

from media.downmix import lowered, matrix_for
from media.errors import ReferenceUnreadableError
from media.resample import resample
from media.sniff import MP4, FileForm
from media.streams import codec_name, open_streams, sound_of
from queue_schemas import limits
from queue_schemas.conventions import Conventions
from queue_schemas.geometry import AUDIO_LATENTS_PER_SECOND, FPS, SAMPLE_RATE_HZ

_DRIFT_SECONDS: Final = Fraction(40, 1000)
_TOLD_SECONDS: Final = Fraction(5, 1000)
_OVER_SECONDS: Final = 1
"""Decoded past the limit, so that the length is known to exceed it."""
_FULL_SCALE: Final = {"u8": 2.0**7, "s16": 2.0**15, "s32": 2.0**31, "flt": 1.0, "dbl": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedSound:
    """A whole track at its own rate, in stereo."""

    samples: NDArray[np.float32]
    """[2, N]"""
    rate_hz: int
    changes: list[str]

    @property
    def seconds(self) -> float:
        return self.samples.shape[1] / self.rate_hz


def decode_sound(
    path: Path, form: FileForm, *, ends: Fraction, origin: Fraction | None = None
) -> DecodedSound:
    """Decode a file's track of sound up to a second past the limit; there is one, and it is not empty.

    `ends` is when its packets have played: an mp4 tells so what a codec pads at the end, and libav plays it.
    `origin` is the time on the container's clock at which sample 0 plays; None starts with the track.
    Raises ReferenceUnreadableError, which says that it is the sound that is broken.
    """
    with open_streams(path, form) as container:
        stream = sound_of(container)
        assert stream is not None  # its header was looked at
        if stream.codec_context is None:
            raise _broken(stream, "its codec is not known")
        try:
            return _decode(container, stream, origin, ends=ends if form is MP4 else None)
        except (av.FFmpegError, ValueError) as error:
            raise _broken(stream, str(getattr(error, "strerror", None) or error)) from error


def to_model_rate(
    sound: DecodedSound, *, film_frames: int, conventions: Conventions
) -> tuple[NDArray[np.float32], list[str]]:
    """Return the sound [2, N] at 32 kHz, cut at its own rate to the film where conventions say so."""
    samples, rate = sound.samples, sound.rate_hz
    changes = list(sound.changes)
    if conventions.sound_cut_to_film:
        most = int(film_frames / FPS * rate)
        if samples.shape[1] > most:
            changes.append(f"Cut from {sound.seconds:.3f} s to the film's {film_frames / FPS:.3f} s.")
            samples = samples[:, :most]
    if rate != SAMPLE_RATE_HZ:
        dtype = np.float32 if conventions.sound_filter_in_float32 else np.float64
        samples = resample(samples, rate, filter_dtype=dtype)
        changes.append(f"Resampled from {rate:,} to {SAMPLE_RATE_HZ:,} Hz.")
    return np.ascontiguousarray(samples, np.float32), changes


def cut_to_limit(sound: DecodedSound) -> DecodedSound | None:
    """Return a clip's own sound without what exceeds the limit; None where it is too short to be any."""
    if sound.samples.shape[1] < sound.rate_hz / AUDIO_LATENTS_PER_SECOND:
        return None
    most = round((limits.REFERENCE_SECONDS_MAX + limits.REFERENCE_SECONDS_TOLERANCE) * sound.rate_hz)
    if sound.samples.shape[1] <= most:
        return sound
    told = f"Cut to {limits.REFERENCE_SECONDS_MAX:g} s, the most that a clip's sound has."
    return DecodedSound(
        samples=sound.samples[:, :most], rate_hz=sound.rate_hz, changes=[*sound.changes, told]
    )


def _decode(
    container: InputContainer, stream: AudioStream, origin: Fraction | None, *, ends: Fraction | None
) -> DecodedSound:
    frames = _frames(container, stream)
    first = next(frames, None)
    if first is None:
        raise _broken(stream, "nothing in it decodes")
    rate, channels = first.sample_rate, _channels(first)
    if not limits.SOUND_RATE_HZ_MIN <= rate <= limits.SOUND_RATE_HZ_MAX:
        raise ReferenceUnreadableError(
            f"its sound has {rate:,} samples a second; {limits.SOUND_RATE_HZ_MIN:,} to"
            f" {limits.SOUND_RATE_HZ_MAX:,} are read; resample it"
        )
    matrix = matrix_for(channels)
    track = _Track(rate=rate, most=int((limits.REFERENCE_SECONDS_MAX + _OVER_SECONDS) * rate))
    track.start(_time(first), origin)
    frame: av.AudioFrame | None = first
    while frame is not None and not track.full:
        if frame.sample_rate != rate or _channels(frame) != channels:
            raise ReferenceUnreadableError("its sound changes rate or channels midway; write it anew")
        values = _values(frame)
        if not np.isfinite(values).all():
            raise _broken(stream, "it holds samples that are not finite")
        track.add(matrix @ values, _time(frame))
        frame = next(frames, None)
    return _mixed(track.samples(until=ends), rate, channels, track.changes)


def _mixed(
    samples: NDArray[np.float32], rate: int, channels: tuple[str, ...], changes: list[str]
) -> DecodedSound:
    if len(channels) == 1:
        changes = [*changes, "Mono was duplicated to two channels."]
    elif len(channels) > 2:
        samples, decibels = lowered(samples)
        by = f", lowered by {decibels:.1f} dB so that it does not clip" if decibels else ""
        changes = [*changes, f"Mixed down from {len(channels)} channels to stereo{by}."]
    return DecodedSound(samples=samples, rate_hz=rate, changes=changes)


class _Track:
    """Blocks of stereo sound put one after another, by their time stamps."""

    def __init__(self, *, rate: int, most: int) -> None:
        self._rate, self._most = rate, most
        self._blocks: list[NDArray[np.float32]] = []
        self._length, self._skip = 0, 0
        self._origin = self._late = Fraction(0)
        self._silent = self._left_out = 0

    @property
    def full(self) -> bool:
        return self._length >= self._most

    def start(self, first: Fraction | None, origin: Fraction | None) -> None:
        """Let sample 0 be at `origin`: what plays before it is cut, silence fills up what starts later."""
        first = first or Fraction(0)
        self._origin = first if origin is None else origin
        self._late = first - self._origin
        offset = round(self._late * self._rate)
        self._skip = max(0, -offset)
        self._append_silence(max(0, offset))

    def add(self, block: NDArray[np.float32], stamp: Fraction | None) -> None:
        """Append a block [2, n] whose first sample plays at `stamp`."""
        if stamp is not None:
            drift = round((stamp - self._origin) * self._rate) - (self._length - self._skip)
            if drift > _DRIFT_SECONDS * self._rate:
                self._silent += drift
                self._append_silence(drift)
            elif -drift > _DRIFT_SECONDS * self._rate:
                self._left_out -= drift
                self._skip -= drift
        self._append(block)

    def samples(self, *, until: Fraction | None) -> NDArray[np.float32]:
        """Return all of it [2, N], or what plays until then."""
        if not self._blocks:
            return np.zeros((2, 0), np.float32)
        whole = np.concatenate(self._blocks, axis=1)[:, : self._most]
        return whole if until is None else whole[:, : max(0, round((until - self._origin) * self._rate))]

    @property
    def changes(self) -> list[str]:
        found = []
        if abs(self._late) > _TOLD_SECONDS:
            when, what = (
                ("after", "silence was put before it") if self._late > 0 else ("before", "that was cut")
            )
            found.append(f"It begins {abs(float(self._late)):.3f} s {when} the pictures: {what}.")
        if self._silent:
            found.append(f"Gaps of {self._silent / self._rate:.3f} s in all were filled with silence.")
        if self._left_out:
            found.append(f"Overlaps of {self._left_out / self._rate:.3f} s in all were left out.")
        return found

    def _append_silence(self, length: int) -> None:
        self._append(np.zeros((2, min(length, self._skip + self._most)), np.float32))

    def _append(self, block: NDArray[np.float32]) -> None:
        cut = min(self._skip, block.shape[1])
        self._skip -= cut
        self._blocks.append(block[:, cut:])
        self._length += block.shape[1] - cut


def _frames(container: InputContainer, stream: AudioStream) -> Iterator[av.AudioFrame]:
    for frame in container.decode(stream):
        assert isinstance(frame, av.AudioFrame)
        if frame.samples:
            yield frame


def _channels(frame: av.AudioFrame) -> tuple[str, ...]:
    return tuple(channel.name for channel in frame.layout.channels)


def _time(frame: av.AudioFrame) -> Fraction | None:
    return None if frame.pts is None or frame.time_base is None else frame.pts * frame.time_base


def _values(frame: av.AudioFrame) -> NDArray[np.float32]:
    """Return the samples [C, n] with full scale at 1."""
    kind = frame.format.name.removesuffix("p")
    values = frame.to_ndarray()
    if not frame.format.is_planar:
        values = values.reshape(frame.samples, -1).T
    if kind == "u8":
        values = values.astype(np.float32) - 128
    return (values / _FULL_SCALE[kind]).astype(np.float32)


def _broken(stream: AudioStream, reason: str) -> ReferenceUnreadableError:
    return ReferenceUnreadableError(
        f"its track of sound ({codec_name(stream)}) is broken: {reason}; write it anew, or leave the sound"
        " out (a clip's with audio: off)"
    )
