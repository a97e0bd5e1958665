"""The options that several `h3` commands share, each spelled once. The schema checks their values.

A default in brackets is the schema's; an option that is left out leaves its field out.
"""

from typing import Annotated

import typer

Redis = Annotated[str | None, typer.Option("--redis", metavar="URL", help="Queue; default H3_REDIS_URL.")]
Storage = Annotated[
    str | None, typer.Option("--storage", metavar="URL", help="Folder or file:///folder of the outputs.")
]
Fleet = Annotated[str | None, typer.Option("--fleet", metavar="NAME", help="Fleet; default H3_FLEET.")]
Json = Annotated[bool, typer.Option("--json", help="Print one compact JSON line, also on a terminal.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")]

Width = Annotated[int | None, typer.Option("--width", help="Pixels, a multiple of 32 [960].")]
Height = Annotated[int | None, typer.Option("--height", help="Pixels, a multiple of 32 [544].")]
Frames = Annotated[int | None, typer.Option("--frames", help="17n + 5 at 24 per second, 5 to 362 [124].")]
Seconds = Annotated[
    float | None, typer.Option("--seconds", help="Instead of --frames: the shortest film of that length.")
]
Steps = Annotated[int | None, typer.Option("--steps", help="Model evaluations, 1 to 100 [20].")]
Seed = Annotated[int | None, typer.Option("--seed", help="0 to 2^63-1; drawn when left out.")]
ConventionsOption = Annotated[str | None, typer.Option("--conventions", help="comfyui or diffusers.")]
SamplerOption = Annotated[str | None, typer.Option("--sampler", help="euler or res_multistep.")]
ScheduleOption = Annotated[str | None, typer.Option("--schedule", help="simple or linear.")]
Attention = Annotated[str | None, typer.Option("--attention", help="auto or a backend's name.")]
VaeDtypeOption = Annotated[str | None, typer.Option("--vae-dtype", help="float16 or float32.")]
VaeTileSize = Annotated[int | None, typer.Option("--vae-tile-size", help="Pixels; exact only at 256.")]
Checkpoint = Annotated[
    str | None, typer.Option("--checkpoint", help="Resident set; default the only one that is served.")
]

COMMON_OPTIONS = {
    "redis": (Redis, None),
    "storage": (Storage, None),
    "fleet": (Fleet, None),
    "as_json": (Json, False),
    "quiet": (Quiet, False),
}
JOB_OPTIONS = {
    "width": (Width, None),
    "height": (Height, None),
    "frames": (Frames, None),
    "seconds": (Seconds, None),
    "steps": (Steps, None),
    "seed": (Seed, None),
    "conventions": (ConventionsOption, None),
    "sampler": (SamplerOption, None),
    "schedule": (ScheduleOption, None),
    "attention": (Attention, None),
    "vae_dtype": (VaeDtypeOption, None),
    "vae_tile_size": (VaeTileSize, None),
    "checkpoint": (Checkpoint, None),
}
