"""Make one film from a prompt, without a queue: python tools/direct_t2v_preview.py --prompt "a red fox"

Prints one compact JSON line (`--quiet`: nothing); `--progress` tells each sampler step's time on stderr.
Without model files it builds and uses the synthetic checkpoint h3-tiny, and the line says so.
"""

import json
import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

from client.given_references import parse_reference, with_media
from client.settings import ClientSettings
from queue_schemas.command_lines import number_option, run_command_line
from queue_schemas.jobs import ConventionsName, VaeDtype
from worker.command import Output, reported, settings_with, tell
from worker.preview import preview_film

EPILOG = "Example: python tools/direct_t2v_preview.py --prompt 'a red fox in snow'"
app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command(epilog=EPILOG)
def preview(
    *,
    prompt: Annotated[str, typer.Option(help="What the film shows and sounds like; 1 to 7,000 characters")],
    width: Annotated[
        int | None, number_option(help="Pixels, a multiple of 32 [960x544; h3-tiny 256x160]")
    ] = None,
    height: Annotated[
        int | None, number_option(help="Pixels, a multiple of 32 [960x544; h3-tiny 256x160]")
    ] = None,
    frames: Annotated[int | None, number_option(help="17n + 5 frames at 24 fps [124; h3-tiny 22]")] = None,
    steps: Annotated[int | None, number_option(help="Model evaluations [20; h3-tiny 8]")] = None,
    seed: Annotated[int | None, number_option(help="Drawn, and told, when left out")] = None,
    reference: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE|LINK[,OPTION=VALUE]...",
            help="A picture, clip or sound to refer to; may be repeated, in order. Options as of h3 submit",
        ),
    ] = None,
    first_frame: Annotated[
        str | None, typer.Option(metavar="FILE|LINK", help="The picture it begins with")
    ] = None,
    last_frame: Annotated[
        str | None, typer.Option(metavar="FILE|LINK", help="The picture it ends with")
    ] = None,
    output: Annotated[Path, typer.Option(help="The mp4 to write")] = Path("outputs/preview.mp4"),
    models_dir: Annotated[Path | None, typer.Option(help="ComfyUI models folder [H3_MODELS_DIR]")] = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="Transformer, by name or file [H3_CHECKPOINT]")
    ] = None,
    text_encoder: Annotated[str | None, typer.Option(help="Text encoder, by name or file")] = None,
    video_vae: Annotated[str | None, typer.Option(help="Video VAE, by name or file")] = None,
    audio_vae: Annotated[str | None, typer.Option(help="Audio VAE, by name or file")] = None,
    lora: Annotated[
        list[str] | None,
        typer.Option(metavar="[NAME=]FILE[:STRENGTH]", help="A LoRA to apply; may be repeated, in order"),
    ] = None,
    allow_partial_lora: Annotated[
        bool, typer.Option("--allow-partial-lora", help="Apply a LoRA of which some tensors have no place")
    ] = False,
    lora_time_embedder: Annotated[
        Path | None, typer.Option(help="A full transformer file: fits AdaLN deltas to a pruned one")
    ] = None,
    vae_dtype: Annotated[VaeDtype | None, typer.Option(help="Of the video VAE [H3_VAE_DTYPE]")] = None,
    vae_tile_size: Annotated[
        int | None, number_option(help="Pixels; only 256 is exact [H3_VAE_TILE_SIZE]")
    ] = None,
    conventions: Annotated[ConventionsName | None, typer.Option(help="Whose numbers")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1; chosen when left out")] = None,
    profile_memory: Annotated[
        bool, typer.Option("--profile-memory", help="What memory is held while loading, on stderr")
    ] = False,
    progress: Annotated[bool, typer.Option("--progress", help="Each step's time, on stderr")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors")] = False,
) -> None:
    """Make one film from a prompt on this machine, without a queue."""
    level = logging.INFO if progress else logging.WARNING
    with reported(Output(quiet=quiet), level=level) as said:
        settings = settings_with(said, models_dir=models_dir, checkpoint=checkpoint)
        job = {
            "prompt": prompt, "width": width, "height": height, "frames": frames, "steps": steps,
            "seed": seed, "vae_dtype": vae_dtype, "vae_tile_size": vae_tile_size, "conventions": conventions,
            "references": [parse_reference(text) for text in reference] if reference else None,
            "first_frame": first_frame, "last_frame": last_frame,
        }  # fmt: skip
        facts = preview_film(
            ClientSettings.from_environment().job_defaults()
            | with_media({name: value for name, value in job.items() if value is not None}),
            {
                "models_dir": settings.models_dir,
                "checkpoint": settings.checkpoint,
                "text_encoder": text_encoder,
                "video_vae": video_vae,
                "audio_vae": audio_vae,
                "tokenizer_dir": settings.tokenizer_dir,
                "loras": lora or [],
                "allow_partial_lora": allow_partial_lora,
                "lora_time_embedder": lora_time_embedder,
                "device": device,
                "profile_memory": profile_memory,
            },
            output=output,
            tell=tell if progress or profile_memory else lambda message: None,
        )
        if not quiet:
            print(json.dumps(facts, separators=(",", ":")))


if __name__ == "__main__":
    raise SystemExit(run_command_line(app, sys.argv[1:], name="python tools/direct_t2v_preview.py"))
