"""The files of a job made ready for the model: all headers first, then each file decoded once.

What conventions decide (sizes, cuts, how a keyframe fills the canvas) is read from `PRESETS`; the arithmetic
is `queue_schemas.reference_geometry`'s. An error names the file as the job does, and its place there.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np

from media.admission import check_all_lengths, check_one_length
from media.clips import decode_clip
from media.errors import ReferenceUnreadableError
from media.facts import PADDING_SECONDS, MediaFacts, probe_reference
from media.fitting import Fit, fit
from media.pictures import read_picture
from media.prepared import PreparedClip, PreparedMedia, PreparedPicture, PreparedSound
from media.sniff import ending_change
from media.sounds import DecodedSound, cut_to_limit, decode_sound, to_model_rate
from queue_schemas import reference_geometry as rules
from queue_schemas.conventions import PRESETS, Conventions
from queue_schemas.geometry import FPS
from queue_schemas.jobs import FL2VAJob, Job, Ref2VAJob
from queue_schemas.references import Medium, ReferenceItem, shown_source


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """One file of a job, looked at."""

    medium: Medium
    path: Path
    facts: MediaFacts

    @property
    def name(self) -> str:
        return shown_source(self.medium.source)

    @property
    def sha256(self) -> str:
        return self.medium.sha256 or sha256_of(self.path)

    def told(self) -> list[str]:
        """Return what its name and header alone give to tell."""
        return [*ending_change(self.name, self.facts.form), *self.facts.tracks_told]

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Give what is raised inside the file's name and place."""
        try:
            yield
        except ReferenceUnreadableError as error:
            raise error.named(file=self.name, place=self.medium.place) from error.__cause__


def prepare_references(job: Job, files: Mapping[str, Path]) -> list[PreparedMedia]:
    """Return a job's media in request order (keyframes: first, last); none for a t2va job.

    `files` says where each place lies (`references[0]`, `references[0].audio`, `last_frame`). Raises
    ReferenceUnreadableError for the first file that cannot be used, before any file is decoded where its
    header or the sum of lengths tells.
    """
    looked_at = look_at(job, files)
    conventions = PRESETS[job.conventions]
    if isinstance(job, FL2VAJob):
        return [_keyframe(job, file, conventions) for file in looked_at.values()]
    if not isinstance(job, Ref2VAJob):
        return []
    prepared: list[PreparedMedia] = []
    sounds: list[tuple[str, str, float]] = []
    for number, item in enumerate(job.references):
        file = looked_at[f"references[{number}]"]
        with file.naming():
            if item.kind == "image":
                prepared.append(_picture(job, item, file, conventions))
            elif item.kind == "video":
                other = looked_at.get(f"references[{number}].audio")
                prepared.append(_clip(job, item, file, other, conventions))
            else:
                decoded = _decoded_sound(file)
                sounds.append((file.medium.place, file.name, decoded.seconds))
                prepared.append(_sound(job, file, decoded, conventions))
    check_all_lengths("audio", sounds)
    return prepared


def look_at(job: Job, files: Mapping[str, Path]) -> dict[str, _File]:
    """Read every header and hold all files together to the limits; nothing is decoded."""
    found = {}
    for medium in job.media:
        name = shown_source(medium.source)
        facts = probe_reference(files[medium.place], kind=medium.kind, name=name, place=medium.place)
        found[medium.place] = _File(medium=medium, path=files[medium.place], facts=facts)
    own = [file for place, file in found.items() if not place.endswith(".audio")]
    for kind, slack in (("video", 0.0), ("audio", PADDING_SECONDS)):
        lengths = [
            (file.medium.place, file.name, file.facts.seconds or 0.0)
            for file in own
            if file.medium.kind == kind
        ]
        check_all_lengths("video" if kind == "video" else "audio", lengths, slack=slack)
    return found


def picture_size_of(path: Path) -> tuple[int, int]:
    """Return upright (width, height) of a picture from its header. Raises ReferenceUnreadableError."""
    facts = probe_reference(path, kind="image")
    assert facts.width is not None
    assert facts.height is not None
    return facts.width, facts.height


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _keyframe(job: FL2VAJob, file: _File, conventions: Conventions) -> PreparedPicture:
    how: Fit = "stretch"
    if file.medium.place == "last_frame" and (job.first_frame or conventions.lone_last_frame == "cropped"):
        how = conventions.keyframe_fit
    return _fitted(file, lambda width, height: (job.width, job.height), how=how)


def _picture(job: Ref2VAJob, item: ReferenceItem, file: _File, conventions: Conventions) -> PreparedPicture:
    canvas = (job.width, job.height)
    return _fitted(
        file,
        lambda width, height: rules.picture_size(
            width, height, canvas=canvas, size=item.size, conventions=conventions
        ),
        how="stretch",
    )


def _fitted(file: _File, size_for: Callable[[int, int], tuple[int, int]], *, how: Fit) -> PreparedPicture:
    with file.naming():
        image, changes = read_picture(file.path, file.facts.form)
        fitted, scaled = fit(image, size_for(*image.size), how=how)
    return PreparedPicture(
        place=file.medium.place,
        sha256=file.sha256,
        changes=[*file.told(), *changes, *scaled],
        pixels=np.array(fitted),
    )


def _clip(
    job: Ref2VAJob, item: ReferenceItem, file: _File, other: _File | None, conventions: Conventions
) -> PreparedClip:
    facts = file.facts
    assert facts.frames is not None
    assert facts.seconds is not None
    changes = file.told()
    with file.naming():
        try:
            seen, _ = rules.clip_frames(facts.frames, film_frames=job.frames, conventions=conventions)
        except ValueError as error:
            raise ReferenceUnreadableError(f"{error}; ask for a longer film") from error
        clip = decode_clip(
            file.path,
            facts.form,
            size_for=lambda width, height: rules.clip_size(width, height, conventions=conventions),
            stop=seen,
        )
        seen, _ = rules.clip_frames(len(clip.frames), film_frames=job.frames, conventions=conventions)
        clip.frames.shorten(seen)
    changes += clip.changes
    if seen < facts.frames:
        changes.append(f"Cut from {facts.frames} to {seen} frames ({seen / FPS:.3f} s).")
    sound = None
    if item.audio == "auto":
        sound = _own_sound(job, file, clip.origin, conventions, changes)
    elif other is not None:
        sound = _sound(job, other, _decoded_sound(other), conventions)
    elif facts.sound is not None:
        changes.append("Its sound was left out, as asked.")
    return PreparedClip(
        place=file.medium.place,
        sha256=file.sha256,
        changes=changes,
        frames=clip.frames,
        sound=sound,
    )


def _own_sound(
    job: Ref2VAJob, file: _File, origin: Fraction, conventions: Conventions, changes: list[str]
) -> PreparedSound | None:
    """Return a clip's own sound, which begins with its pictures; what is missing is added to `changes`."""
    if file.facts.sound is None:
        return None
    with file.naming():
        decoded = cut_to_limit(_decode(file, origin=origin))
    if decoded is None:
        changes.append("Its sound is shorter than one latent (25 ms): none is used.")
        return None
    return _sound(job, file, decoded, conventions)


def _decoded_sound(file: _File) -> DecodedSound:
    """Decode a sound of its own and hold its true length to the limits."""
    with file.naming():
        decoded = _decode(file)
        check_one_length("audio", decoded.seconds)
    return decoded


def _decode(file: _File, *, origin: Fraction | None = None) -> DecodedSound:
    assert file.facts.sound is not None
    return decode_sound(file.path, file.facts.form, ends=file.facts.sound.ends, origin=origin)


def _sound(job: Ref2VAJob, file: _File, decoded: DecodedSound, conventions: Conventions) -> PreparedSound:
    samples, changes = to_model_rate(decoded, film_frames=job.frames, conventions=conventions)
    named = file.told() if file.medium.kind == "audio" else []
    return PreparedSound(
        place=file.medium.place, sha256=file.sha256, changes=[*named, *changes], samples=samples
    )
