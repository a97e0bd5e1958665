"""One film from a prompt, in this process and without a queue: what the preview tool does.

The engine is the same one that serves jobs, so the film and its facts are those a job would get.
"""

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from media.errors import ReferenceUnreadableError
from model.lora.files import split_source
from queue_schemas.events import ProgressEvent, Stage
from queue_schemas.jobs import Job
from queue_schemas.references import MEDIA_FIELDS, MediaSource, Medium, is_local
from queue_schemas.requests import parse_request
from queue_schemas.results import GenerateResult
from worker.film_path import film_path
from worker.gathering import Gathered, Sources, gather
from worker.output_root import check_writable
from worker.reference_folder import ReferenceFolder

TINY_DEFAULTS: Final = {"width": 256, "height": 160, "frames": 22, "steps": 8}
"""What h3-tiny makes where nothing is said: seconds on a CPU. Real weights get the job's own defaults."""
Tell = Callable[[str], None]


def preview_film(
    fields: Mapping[str, Any], files: Mapping[str, Any], *, output: Path, tell: Tell
) -> dict[str, Any]:
    """Make the film of a job's `fields` with the models of `files`; return its facts, flat.

    `files` are the arguments of `model.startup.load_pipeline`; a LoRA among them may end in `:STRENGTH`, and
    all are applied. The request, its media (paths of this machine, or links) and the place of the film are
    checked before anything is loaded.
    Raises InvalidRequestError, OutputRootError, ReferenceUnreachableError, ModelError, MediaError.
    """
    loras = [_strength_of(text) for text in files.get("loras", ())]
    files = {**files, "loras": [source for source, _ in loras]}
    asked = [{"name": split_source(source)[0], "strength": strength} for source, strength in loras]
    delivery = {**fields, "output": output.name, **({"loras": asked} if asked else {})}
    job = parse_request(delivery, checkpoint="preview").job
    check_writable(output.parent, remedy="name another file by --output")
    film_path(output.parent.resolve(), output.name)
    delivery["seed"] = job.seed  # kept when the checkpoint's name is known
    with TemporaryDirectory(prefix="h3-preview-") as folder, _gathered(job, Path(folder)) as gathered:
        return _make(delivery, files, gathered, output=output, tell=tell)


def _gathered(job: Job, folder: Path) -> Gathered:
    """Have the job's files in `folder`, their headers looked at. Raises ReferenceUnreadableError."""
    here = job.with_media(_by_path)
    gathered = gather(here, Sources(folder=ReferenceFolder(folder), input_root=Path("/")))
    if gathered.files:
        from media.references import look_at  # noqa: PLC0415 - Pillow and libav

        try:
            look_at(gathered.asked, gathered.files)
        except BaseException:
            gathered.close()
            raise
    return gathered


def _by_path(medium: Medium) -> MediaSource:
    """Return where a file of this machine lies, whatever folder this process is in; a link stays as it is."""
    if not is_local(medium.source):
        return MediaSource(source=medium.source, sha256=medium.sha256)
    with suppress(OSError, RuntimeError):  # a name too long, a closed folder, a `~name` that nobody has
        path = Path(medium.source).expanduser().absolute()
        if path.is_file():
            return MediaSource(source=str(path), sha256=medium.sha256)
    raise ReferenceUnreadableError(
        "there is no such file; check its name and folder", file=medium.source, place=medium.place
    )


def _make(
    delivery: dict[str, Any], files: Mapping[str, Any], gathered: Gathered, *, output: Path, tell: Tell
) -> dict[str, Any]:
    """Load the models and make the film, now that everything else is known to be fine."""
    from model.startup import load_pipeline, uses_h3_tiny  # noqa: PLC0415 - torch, for a request that is fine
    from worker.engine import Engine  # noqa: PLC0415

    defaults = TINY_DEFAULTS if uses_h3_tiny(**_named(files)) else {}
    media = gathered.job.model_dump(mode="json", include=set(MEDIA_FIELDS))
    engine = Engine(load_pipeline(**files, on_progress=tell), output_root=output.parent)
    stop = threading.Event()
    try:
        request = parse_request(
            {**defaults, **delivery, **media}, checkpoint=engine.checkpoint, loras=engine.loras
        )
        result = engine.generate(
            request, gathered, on_event=lambda event: tell(_line(event)), cancelled=stop.is_set
        )
    finally:
        stop.set()  # Ctrl-C: the GPU thread ends at its next step
        engine.close()
    return _facts(result, output)


def _strength_of(text: str) -> tuple[str, float]:
    """Return file and strength of `[NAME=]FILE[:STRENGTH]`; a file's name may hold colons of its own."""
    source, _, strength = text.rpartition(":")
    try:
        return (source, float(strength)) if source else (text, 1.0)
    except ValueError:
        return text, 1.0


def _named(files: Mapping[str, Any]) -> dict[str, Any]:
    names = ("models_dir", "checkpoint", "text_encoder", "video_vae", "audio_vae")
    return {name: files.get(name) for name in names}


def _line(event: ProgressEvent) -> str:
    if event.stage is Stage.DENOISE and event.step:
        return f"step {event.step}/{event.steps}: {event.seconds:.3f} s"
    return f"{event.stage.value} {event.step}/{event.steps}" if event.step else event.stage.value


def _facts(result: GenerateResult, output: Path) -> dict[str, Any]:
    assert result.media is not None  # every film has one
    synthetic = [f"made with {result.checkpoint.name}, whose weights are random: the film shows nothing"]
    return {
        "output": str(output),
        "checkpoint": result.checkpoint.name,
        "weights": result.checkpoint.weights,
        "loras": [lora.model_dump() for lora in result.loras],
        "seed": result.job["seed"],
        "width": result.media.width,
        "height": result.media.height,
        "frames": result.media.frames,
        "video_seconds": result.media.video_seconds,
        "audio_seconds": result.media.audio_seconds,
        "device": result.environment.device,
        "sha256": result.files[0].sha256,
        "seconds": result.seconds.model_dump(exclude_none=True),
        "references": [receipt.model_dump(mode="json", exclude_none=True) for receipt in result.references],
        "notes": [*result.notes, *(synthetic if result.checkpoint.weights == "random" else [])],
    }
