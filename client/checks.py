"""What jobs would cost and what becomes of their files, before anything is uploaded or queued.

A sweep's runs that differ in prompt and seed alone cost the same but for the prompt's rows: they are checked
once, with the longest prompt. Asks no queue; a store only for what jobs name by key, and for records.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from client.errors import ClientError, UploadError
from client.expected import Records
from client.handle import AnyJob
from client.loras import known_loras, settle_loras
from client.media_files import MediaFiles
from client.media_kinds import has_media
from client.submission import check_job
from media.checking import check_request
from media.errors import ReferenceUnreadableError
from queue_schemas.checks import CheckReport
from queue_schemas.references import MediaSource, shown_source

UNNAMED = "unnamed"
"""Stands for the checkpoint of jobs that name none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """Runs that cost the same."""

    report: CheckReport
    runs: int
    names: Mapping[str, str]
    """What each file is called, by its place."""


class MediaMissingError(ClientError):
    """Raised when files are to be looked at where what reads them is not installed."""

    def __init__(self) -> None:
        super().__init__("reading files needs the extra media: pip install 'h3-blackwell-runtime[media]'")


def check_jobs(
    asked: Sequence[tuple[str, Mapping[str, Any]]],
    *,
    checkpoint: str | None,
    defaults: Mapping[str, Any],
    files: MediaFiles,
    records: Records | None = None,
) -> list[Checked]:
    """Return one report for each kind of (label, job fields), in order.

    Raises InvalidRequestError, UploadError, MediaMissingError.
    """
    jobs = [
        check_job(label, fields, checkpoint=checkpoint or UNNAMED, defaults={"seed": 0, **defaults})
        for label, fields in asked
    ]
    jobs = settle_loras(jobs, [fields for _, fields in asked], known_loras(jobs, []))
    if any(job.media for job in jobs) and not has_media():
        raise MediaMissingError
    settled = files.settled(jobs)
    alike: dict[str, list[int]] = {}
    for number, job in enumerate(settled):
        same = job.model_copy(update={"seed": 0, "prompt": "any"})
        alike.setdefault(same.job_id, []).append(number)
    found = []
    for numbers in alike.values():
        longest = max(numbers, key=lambda number: len(settled[number].prompt.encode()))
        checked = _check(jobs[longest], settled[longest], files=files)
        seconds = records.expect(checked) if records else []
        found.append(
            Checked(
                report=checked.model_copy(update={"seconds": seconds}),
                runs=len(numbers),
                names={medium.place: shown_source(medium.source) for medium in jobs[longest].media},
            )
        )
    return found


def _check(job: AnyJob, settled: AnyJob, *, files: MediaFiles) -> CheckReport:
    """Check with the names that the caller gave, for errors; report what would be queued."""
    paths = {medium.place: files.path(medium) for medium in job.media}
    hashes = {medium.place: medium.sha256 for medium in settled.media}
    named = job.with_media(lambda m: MediaSource(source=m.source, sha256=hashes[m.place]))
    try:
        report = check_request(named, paths)
    except ReferenceUnreadableError as error:
        raise UploadError(str(error)) from None
    report = report.model_copy(update={"job": settled.model_dump(mode="json")})
    if job.checkpoint != UNNAMED:
        return report
    note = "no checkpoint is named (--checkpoint), so the size of its weights is not known"
    return report.model_copy(update={"notes": [*report.notes, note]})
