"""A clip's pictures: decoded once, put on 24 frames a second by their time stamps, sized frame by frame.

One frame of the file's own size is held at a time; what is kept goes to disk (`media/spool.py`). Sample
aspect ratio and scaling are one LANCZOS pass. HDR is scaled in 16 bits before it is toned down to 8
(`media/hdr.py`), SDR after it has become 8 bits, as both references do. Decoding stops when the last wanted
slot is filled.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Final

import av
import numpy as np
from av.container import InputContainer
from av.video.stream import VideoStream
from numpy.typing import NDArray
from PIL import Image

from media.admission import check_shape
from media.colours import BACKGROUND_NAME
from media.errors import ReferenceUnreadableError
from media.hdr import HDR_RULE, PRIMARIES_NAMES, TRANSFER_NAMES, hdr_to_srgb, is_wide, wide_to_srgb
from media.pixels import Pixels, ToRgb, Turn, is_hdr, turn_of_frame, upright_size
from media.sniff import FileForm
from media.spool import SpooledFrames
from media.streams import DECODER_THREADS, codec_name, film_of, open_streams
from media.timing import Slots
from queue_schemas.geometry import FPS

Size = tuple[int, int]
_SHORTFALL_FRAMES: Final = 2
"""At 24 a second, by which a whole file may hold less than its packets say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedClip:
    """What was kept of a clip's pictures."""

    frames: SpooledFrames
    origin: Fraction
    """Time of the first frame on the container's clock, in seconds."""
    changes: list[str]


def decode_clip(
    path: Path, form: FileForm, *, size_for: Callable[[int, int], Size], stop: int
) -> DecodedClip:
    """Decode the first `stop` frames at 24 a second, each of the size that `size_for` gives.

    `size_for` takes upright width and height in square pixels. Raises ReferenceUnreadableError, also where
    there are fewer frames than `stop`, which the packets had promised.
    """
    with open_streams(path, form) as container:
        stream = film_of(container)
        assert stream is not None  # its header was looked at
        try:
            return _decode(container, stream, size_for=size_for, stop=stop)
        except (av.FFmpegError, ValueError) as error:
            raise _broken(stream, str(getattr(error, "strerror", None) or error)) from error


def _decode(
    container: InputContainer, stream: VideoStream, *, size_for: Callable[[int, int], Size], stop: int
) -> DecodedClip:
    stream.codec_context.thread_type = "AUTO"
    stream.codec_context.thread_count = DECODER_THREADS
    assert stream.time_base is not None
    slots = Slots(rate=stream.average_rate, tick=stream.time_base)
    frames = _frames(container, stream)
    first = next(frames, None)
    if first is None:
        raise _broken(stream, "nothing in it decodes")
    sizing = _Sizing.of(first, aspect=stream.sample_aspect_ratio, size_for=size_for)
    spool = SpooledFrames(width=sizing.size[0], height=sizing.size[1])
    held, since, shown = first, slots.place(_time(first)), 1
    for frame in frames:
        slot = slots.place(_time(frame))
        if slot > since:
            spool.append(sizing.picture(held), times=min(slot, stop) - since)
            shown, since = shown + 1, min(slot, stop)
        held = frame
        if since >= stop:
            break
    else:
        end = min(slots.end(_duration(held)), stop)
        if end > since:
            spool.append(sizing.picture(held), times=end - since)
    if len(spool) < stop - _SHORTFALL_FRAMES:
        raise ReferenceUnreadableError(
            f"its pictures end after {len(spool) / FPS:.2f} s of {stop / FPS:.2f} s: damaged or cut off;"
            " give the whole file"
        )
    changes = sizing.changes
    rate = stream.average_rate
    if rate != FPS:
        changes.append(
            f"Brought from {float(rate):.5g} to {FPS} frames a second by time stamps."
            if rate
            else f"Brought to {FPS} frames a second by time stamps."
        )
    return DecodedClip(frames=spool, origin=slots.origin, changes=changes)


@dataclass(slots=True, kw_only=True)
class _Sizing:
    """What every frame of one clip goes through."""

    size: Size
    coded: Size
    turn: Turn
    to_rgb: ToRgb = field(default_factory=ToRgb)
    changes: list[str]
    _changed_midway: bool = False

    @classmethod
    def of(
        cls, first: av.VideoFrame, *, aspect: Fraction | None, size_for: Callable[[int, int], Size]
    ) -> "_Sizing":
        turn = turn_of_frame(first)
        upright = upright_size(first.width, first.height, aspect=aspect, turn=turn)
        check_shape(*upright)
        size = size_for(*upright)
        changes = []
        if turn != Turn():
            changes.append(f"Its frames were {turn}, as its container says.")
        if aspect and aspect != 1:
            changes.append(f"Its pixels of {aspect.numerator}:{aspect.denominator} became square.")
        changes += _colour_changes(first)
        if upright != size:
            changes.append(
                f"Each frame was scaled from {upright[0]}x{upright[1]} to {size[0]}x{size[1]} pixels."
            )
        return cls(size=size, coded=(first.width, first.height), turn=turn, changes=changes)

    def picture(self, frame: av.VideoFrame) -> NDArray[np.uint8]:
        """Return one frame upright, sRGB, of the clip's size."""
        if (frame.width, frame.height) != self.coded and not self._changed_midway:
            self._changed_midway = True
            self.changes.append("Its frames change size midway; each was scaled to the same size.")
        pixels = self.turn.apply(self.to_rgb(frame, wide=is_hdr(frame)))
        if pixels.dtype == np.uint16:
            return hdr_to_srgb(
                self._resized_16(pixels), transfer=frame.color_trc, primaries=frame.color_primaries
            )
        image = Image.fromarray(np.ascontiguousarray(pixels))
        if image.size != self.size:
            image = image.resize(self.size, Image.Resampling.LANCZOS)
        sized = np.asarray(image)
        return (
            wide_to_srgb(sized, primaries=frame.color_primaries) if is_wide(frame.color_primaries) else sized
        )

    def _resized_16(self, pixels: Pixels) -> NDArray[np.uint16]:
        if pixels.shape[1::-1] == self.size:
            return pixels.astype(np.uint16)
        out = np.empty((self.size[1], self.size[0], 3), np.uint16)
        for channel in range(3):
            plane = Image.fromarray(np.ascontiguousarray(pixels[..., channel], np.float32))
            sized = np.asarray(plane.resize(self.size, Image.Resampling.LANCZOS))
            out[..., channel] = np.clip(np.round(sized), 0, 65_535)
        return out


def _colour_changes(frame: av.VideoFrame) -> list[str]:
    found = []
    bits = max((component.bits for component in frame.format.components), default=8)
    if any(component.is_alpha for component in frame.format.components):
        found.append(f"What is transparent in it was laid over {BACKGROUND_NAME}.")
    if is_hdr(frame):
        found.append(f"HDR ({TRANSFER_NAMES[frame.color_trc]}) was converted to sRGB: {HDR_RULE}.")
    elif bits > 8:
        found.append(f"Its {bits} bits per channel were reduced to 8.")
    if is_wide(frame.color_primaries) and not is_hdr(frame):
        found.append(f"Its colours were converted to sRGB from {PRIMARIES_NAMES[frame.color_primaries]}.")
    return found


def _frames(container: InputContainer, stream: VideoStream) -> Iterator[av.VideoFrame]:
    for frame in container.decode(stream):
        assert isinstance(frame, av.VideoFrame)
        if frame.is_corrupt:
            raise _broken(stream, "a frame is damaged")
        yield frame


def _time(frame: av.VideoFrame) -> Fraction | None:
    return None if frame.pts is None or frame.time_base is None else frame.pts * frame.time_base


def _duration(frame: av.VideoFrame) -> Fraction | None:
    return frame.duration * frame.time_base if frame.duration and frame.time_base else None


def _broken(stream: VideoStream, reason: str) -> ReferenceUnreadableError:
    return ReferenceUnreadableError(
        f"its track of pictures ({codec_name(stream)}) is broken: {reason}; write it anew"
    )
