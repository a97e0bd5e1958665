"""What a picture, clip or sound is, from its header and its packets; nothing is decoded.

A container's own word for its length is not trusted: the packets are read through and their time stamps
counted, which also finds a file that is cut off. Lengths of compressed sound come out up to a tenth of a
second long, by what its codec pads; the decoded length decides then (`media/references.py`).
"""

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Final

from av.audio.stream import AudioStream
from av.container import InputContainer
from av.video.stream import VideoStream

from media import pictures
from media.admission import check_bytes, check_one_length, check_shape
from media.errors import ReferenceUnreadableError
from media.pixels import Turn, turn_of, upright_size
from media.sniff import AIFF, AVI, CAF, FLAC, MATROSKA, MP4, WAV, FileForm, sniff
from media.streams import codec_name, display_matrices, film_of, is_cover, open_streams, sound_of
from media.timing import on_rate, slot_of
from queue_schemas import limits
from queue_schemas.references import Kind

PADDING_SECONDS: Final = 0.15
"""By which the packets of compressed sound may say more than is in them."""
_CUT_SECONDS: Final = Fraction(1, 10)
"""A track that ends this much before its own header says is cut off."""
_INDEXED: Final = (MP4, MATROSKA, AVI, WAV, FLAC, AIFF, CAF)
"""Forms whose header knows the length; of others libav guesses it from the bit rate."""
_PACKETS: Final = 1_000_000
_KIND_WORDS: Final = {"image": "a picture", "video": "a clip", "audio": "a sound"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SoundFacts:
    """The track of sound that would be used."""

    codec: str
    rate_hz: int
    channels: int
    seconds: float
    ends: Fraction
    """When its last packet has played, on the container's clock, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaFacts:
    """One file; sizes are upright, in square pixels, before anything is scaled."""

    kind: Kind
    """What it is used as."""
    form: FileForm
    num_bytes: int
    width: int | None = None
    height: int | None = None
    seconds: float | None = None
    """Of a clip's pictures, or of a sound."""
    frames: int | None = None
    """Of a clip, at 24 a second, uncut."""
    sound: SoundFacts | None = None
    """None where there is no track, or an empty one."""
    tracks_told: tuple[str, ...] = ()
    """A sentence for each track that is left out."""


@dataclass(slots=True, kw_only=True)
class _Track:
    packets: int = 0
    first: Fraction | None = None
    last: Fraction = Fraction(0)
    end: Fraction = Fraction(0)
    last_duration: Fraction = Fraction(0)


def probe_reference(path: Path, *, kind: Kind, name: str | None = None, place: str = "") -> MediaFacts:
    """Look at a file that is to be a reference or keyframe, and hold it to the limits of one file.

    `name` is what a person calls it. Raises ReferenceUnreadableError, with that name and `place`.
    """
    try:
        return _probe(path, kind)
    except ReferenceUnreadableError as error:
        raise error.named(file=path.name if name is None else name, place=place) from error.__cause__


def _probe(path: Path, kind: Kind) -> MediaFacts:
    try:
        num_bytes = path.stat().st_size
        check_bytes(kind, num_bytes)
        with path.open("rb") as file:
            form = sniff(file, wanted=kind)
        if (form.family == "picture") != (kind == "image"):
            raise ReferenceUnreadableError(f"it is {form.name}, not {_KIND_WORDS[kind]}{_hint(form)}")
        if kind == "image":
            return _picture_facts(path, form, num_bytes)
        return _stream_facts(path, form, kind, num_bytes)
    except OSError as error:
        raise ReferenceUnreadableError(f"it cannot be opened: {error.strerror or error}") from error


def _hint(form: FileForm) -> str:
    if form.family == "picture":
        return "; give it as a reference of kind image, or convert an animation to mp4"
    return "; give it as a reference of kind video or audio"


def _picture_facts(path: Path, form: FileForm, num_bytes: int) -> MediaFacts:
    header = pictures.read_header(path, form)
    check_shape(header.width, header.height)
    return MediaFacts(kind="image", form=form, num_bytes=num_bytes, width=header.width, height=header.height)


def _stream_facts(path: Path, form: FileForm, kind: Kind, num_bytes: int) -> MediaFacts:
    matrices = display_matrices(path) if form is MP4 else {}
    with open_streams(path, form) as container:
        film = film_of(container) if kind == "video" else None
        sound = sound_of(container)
        if kind == "video" and film is None:
            raise ReferenceUnreadableError("it has no pictures; give it as a reference of kind audio")
        if film is not None and film.codec_context is None:
            raise ReferenceUnreadableError(
                "its pictures are of a codec that is not known; give H.264 or HEVC"
            )
        films = [stream for stream in container.streams.video if not is_cover(stream)]
        streams: list[VideoStream | AudioStream] = [*films, *container.streams.audio]
        tracks = _measure(container, streams)
        if form in _INDEXED:
            _check_whole(container, streams, tracks)
        sound_facts = _sound_facts(sound, tracks) if sound is not None else None
        told = _told(container, kind, has_empty_sound=sound is not None and sound_facts is None)
        if film is None:
            return _of_sound(form, sound_facts, num_bytes=num_bytes, told=told)
        turn = turn_of(matrices[film.id]) if film.id in matrices else Turn()
        track = tracks[film.index]
        return _of_clip(form, film, track, turn=turn, sound=sound_facts, num_bytes=num_bytes, told=told)


def _told(container: InputContainer, kind: Kind, *, has_empty_sound: bool) -> tuple[str, ...]:
    films, sounds = container.streams.video, container.streams.audio
    found = []
    if kind == "audio" and film_of(container) is not None:
        found.append("Its pictures are not used.")
    if kind == "video" and sum(not is_cover(stream) for stream in films) > 1:
        found.append("It has several tracks of pictures; the first is used.")
    if len(sounds) > 1:
        found.append(f"It has {len(sounds)} tracks of sound; the default one is used.")
    if has_empty_sound:
        found.append("Its track of sound is empty and counts as none.")
    return tuple(found)


def _of_sound(
    form: FileForm, sound: SoundFacts | None, *, num_bytes: int, told: tuple[str, ...]
) -> MediaFacts:
    if sound is None:
        raise ReferenceUnreadableError("it has no sound, or an empty track of it; give a file with sound")
    check_one_length("audio", sound.seconds, slack=PADDING_SECONDS)
    return MediaFacts(
        kind="audio", form=form, num_bytes=num_bytes, seconds=sound.seconds, sound=sound, tracks_told=told
    )


def _of_clip(
    form: FileForm,
    film: VideoStream,
    track: _Track,
    *,
    turn: Turn,
    sound: SoundFacts | None,
    num_bytes: int,
    told: tuple[str, ...],
) -> MediaFacts:
    if not track.packets or track.first is None:
        raise ReferenceUnreadableError("its track of pictures is empty; give a file with pictures")
    step = 1 / film.average_rate if film.average_rate else Fraction(1, 24)
    assert film.time_base is not None
    length = on_rate(
        track.last - track.first + (track.last_duration or step),
        index=track.packets,
        rate=film.average_rate,
        tick=2 * film.time_base,
    )
    check_one_length("video", float(length))
    width, height = upright_size(film.width, film.height, aspect=film.sample_aspect_ratio, turn=turn)
    check_shape(width, height)
    if film.width * film.height > limits.CLIP_PIXELS:
        raise ReferenceUnreadableError(
            f"its frames have {film.width}x{film.height} pixels; at most {limits.CLIP_PIXELS:,} are read;"
            " scale it down"
        )
    if track.packets > limits.CLIP_RATE_HZ * max(Fraction(1), length):
        raise ReferenceUnreadableError(
            f"it has {track.packets:,} frames in {float(length):.2f} s; at most"
            f" {limits.CLIP_RATE_HZ:,} a second are read"
        )
    return MediaFacts(
        kind="video",
        form=form,
        num_bytes=num_bytes,
        width=width,
        height=height,
        seconds=float(length),
        frames=slot_of(length),
        sound=sound,
        tracks_told=told,
    )


def _sound_facts(stream: AudioStream, tracks: dict[int, _Track]) -> SoundFacts | None:
    track = tracks[stream.index]
    if not track.packets or track.first is None:
        return None
    context = stream.codec_context
    return SoundFacts(
        codec=codec_name(stream),
        rate_hz=context.sample_rate if context is not None else 0,
        channels=context.layout.nb_channels if context is not None else 0,
        seconds=float(max(Fraction(0), track.end - max(track.first, Fraction(0)))),
        ends=track.end,
    )


def _measure(container: InputContainer, streams: list[VideoStream | AudioStream]) -> dict[int, _Track]:
    """Read every packet of some streams."""
    tracks = {stream.index: _Track() for stream in streams}
    if not streams:
        return tracks
    for number, packet in enumerate(container.demux(streams)):
        if number > _PACKETS:
            raise ReferenceUnreadableError(f"it has more than {_PACKETS:,} packets; write it anew")
        if packet.is_corrupt:
            raise ReferenceUnreadableError("it is damaged or cut off; give the whole file")
        track = tracks.get(packet.stream_index)
        stamp = packet.pts if packet.pts is not None else packet.dts
        if track is None or not packet.size or stamp is None or packet.is_discard:
            continue
        start, duration = stamp * packet.time_base, (packet.duration or 0) * packet.time_base
        track.packets += 1
        track.first = start if track.first is None else min(track.first, start)
        if start >= track.last or track.packets == 1:
            track.last, track.last_duration = start, duration
        track.end = max(track.end, start + duration)
    return tracks


def _check_whole(
    container: InputContainer, streams: list[VideoStream | AudioStream], tracks: dict[int, _Track]
) -> None:
    """Refuse a file one of whose tracks ends before its own header says, or all before the file's does."""
    if container.duration is None:
        return
    whole = Fraction(container.duration, 1_000_000)
    ends = {stream.index: tracks[stream.index].end for stream in streams if tracks[stream.index].packets}
    last = max(ends.values(), default=whole)
    for stream in streams:
        if stream.index not in ends:
            continue
        own = stream.duration * stream.time_base if stream.duration and stream.time_base else None
        # An edit list may play less of a track than its own length; the file's counts what is played.
        declared, end = (whole, last) if own is None else (min(own, whole), ends[stream.index])
        if end - min(tracks[stream.index].first or Fraction(0), Fraction(0)) < declared - _CUT_SECONDS:
            what = "pictures" if isinstance(stream, VideoStream) else "sound"
            raise ReferenceUnreadableError(
                f"it is cut off, with {what} for {float(end):.2f} s of {float(declared):.2f} s;"
                " give the whole file"
            )
