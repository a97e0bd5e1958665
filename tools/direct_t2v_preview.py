"""Make one film from a prompt, without a queue: python tools/direct_t2v_preview.py --prompt "a red fox"

Prints one compact JSON line (`--quiet`: nothing); `--progress` tells each sampler step's time on stderr.
Without model files it builds and uses the synthetic checkpoint h3-tiny, and the line says so.
"""

import json
import logging
import threading
from pathlib import Path
from typing import Annotated, Any

import typer

from client.settings import ClientSettings
from queue_schemas.events import ProgressEvent, Stage
from queue_schemas.jobs import ConventionsName, VaeDtype
from queue_schemas.requests import parse_request
from queue_schemas.results import GenerateResult
from worker.command import reported, settings_with, tell

EPILOG = "python tools/direct_t2v_preview.py --prompt 'a red fox in snow' --steps 4 --seed 7 --progress"
TINY_DEFAULTS = {"width": 256, "height": 160, "frames": 22, "steps": 8}
"""What h3-tiny makes where nothing is said: seconds on a CPU. Real weights get the job's own defaults."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(epilog=EPILOG)
def preview(
    *,
    prompt: Annotated[str, typer.Option(help="What the film shows and sounds like; 1 to 7,000 characters")],
    width: Annotated[int | None, typer.Option(help="Pixels, a multiple of 32")] = None,
    height: Annotated[int | None, typer.Option(help="Pixels, a multiple of 32")] = None,
    frames: Annotated[int | None, typer.Option(help="17n + 5 frames at 24 fps")] = None,
    steps: Annotated[int | None, typer.Option(help="Model evaluations")] = None,
    seed: Annotated[int | None, typer.Option(help="Drawn, and told, when left out")] = None,
    output: Annotated[Path, typer.Option(help="The mp4 to write")] = Path("outputs/preview.mp4"),
    models_dir: Annotated[Path | None, typer.Option(help="ComfyUI models folder [H3_MODELS_DIR]")] = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="Transformer, by name or file [H3_CHECKPOINT]")
    ] = None,
    text_encoder: Annotated[str | None, typer.Option(help="Text encoder, by name or file")] = None,
    video_vae: Annotated[str | None, typer.Option(help="Video VAE, by name or file")] = None,
    audio_vae: Annotated[str | None, typer.Option(help="Audio VAE, by name or file")] = None,
    vae_dtype: Annotated[VaeDtype | None, typer.Option(help="Of the video VAE [H3_VAE_DTYPE]")] = None,
    vae_tile_size: Annotated[
        int | None, typer.Option(help="Pixels; only 256 is exact [H3_VAE_TILE_SIZE]")
    ] = None,
    conventions: Annotated[ConventionsName | None, typer.Option(help="Whose numbers")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1; chosen when left out")] = None,
    progress: Annotated[bool, typer.Option("--progress", help="Each step's time, on stderr")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors")] = False,
) -> None:
    """Make one film from a prompt on this machine, without a queue."""
    job = {
        "prompt": prompt, "width": width, "height": height, "frames": frames, "steps": steps, "seed": seed,
        "vae_dtype": vae_dtype, "vae_tile_size": vae_tile_size, "conventions": conventions,
    }  # fmt: skip
    files = {"text_encoder": text_encoder, "video_vae": video_vae, "audio_vae": audio_vae}
    with reported(logging.INFO if progress else logging.WARNING):
        settings = settings_with(models_dir=models_dir, checkpoint=checkpoint)
        place = {
            "models_dir": settings.models_dir,
            "checkpoint": settings.checkpoint,
            "tokenizer_dir": settings.tokenizer_dir,
            "device": device,
            **files,
        }
        result = make_film(job, place, output=output, told=tell if progress else lambda message: None)
        if not quiet:
            print(json.dumps(summary(result, output), separators=(",", ":")))


def make_film(job: dict[str, Any], place: dict[str, Any], *, output: Path, told: Any) -> GenerateResult:
    """Check the request, load the models, generate; the request is refused before anything is loaded."""
    given = {name: value for name, value in job.items() if value is not None}
    tiny = not any(
        place[name] for name in ("models_dir", "checkpoint", "text_encoder", "video_vae", "audio_vae")
    )
    fields = {
        **(TINY_DEFAULTS if tiny else {}),
        **ClientSettings.from_environment().job_defaults(),
        **given,
        "output": output.name,
    }
    seed = parse_request(fields, checkpoint="preview").job.seed  # the seed stays when the name is known

    from model.pipeline import load_pipeline  # noqa: PLC0415 - torch, only for a request that is fine
    from worker.engine import Engine  # noqa: PLC0415

    engine = Engine(load_pipeline(**place, on_progress=told), output_root=output.parent)
    stop = threading.Event()
    try:
        request = parse_request({**fields, "seed": seed}, checkpoint=engine.checkpoint)
        return engine.generate(
            request, on_event=lambda event: told(progress_line(event)), cancelled=stop.is_set
        )
    finally:
        stop.set()  # Ctrl-C: the GPU thread ends at its next step
        engine.close()


def progress_line(event: ProgressEvent) -> str:
    if event.stage is Stage.DENOISE and event.step:
        return f"step {event.step}/{event.steps}: {event.seconds:.3f} s"
    return f"{event.stage.value} {event.step}/{event.steps}" if event.step else event.stage.value


def summary(result: GenerateResult, output: Path) -> dict[str, Any]:
    """The facts of the film in one flat object."""
    assert result.media is not None
    synthetic = [f"made with {result.checkpoint.name}, whose weights are random: the film shows nothing"]
    return {
        "output": str(output),
        "checkpoint": result.checkpoint.name,
        "weights": result.checkpoint.weights,
        "seed": result.job["seed"],
        "width": result.media.width,
        "height": result.media.height,
        "frames": result.media.frames,
        "video_seconds": result.media.video_seconds,
        "audio_seconds": result.media.audio_seconds,
        "device": result.environment.device,
        "sha256": result.files[0].sha256,
        "seconds": result.seconds.model_dump(exclude_none=True),
        "notes": [*result.notes, *(synthetic if result.checkpoint.weights == "random" else [])],
    }


if __name__ == "__main__":
    app()
