"""The options that several `h3` commands share, each spelled once. The schema checks their values.

A default in brackets is the schema's; an option that is left out leaves its field out.
"""

from typing import Annotated

import typer

from queue_schemas.command_lines import number_option
from queue_schemas.environment import DEFAULT_FLEET, DEFAULT_REDIS_URL
from queue_schemas.runs import Priority
from storage.uri import DEFAULT_STORAGE_URL

Redis = Annotated[
    str | None,
    typer.Option("--redis", metavar="URL", help=f"Queue; default H3_REDIS_URL [{DEFAULT_REDIS_URL}]."),
]
Storage = Annotated[
    str | None,
    typer.Option(
        "--storage",
        metavar="URL",
        help="Where the node writes: a folder or s3://bucket/prefix; default H3_STORAGE_URL"
        f" [{DEFAULT_STORAGE_URL}].",
    ),
]
Fleet = Annotated[
    str | None, typer.Option("--fleet", metavar="NAME", help=f"Fleet; default H3_FLEET [{DEFAULT_FLEET}].")
]
Json = Annotated[bool, typer.Option("--json", help="Print one compact JSON line, also on a terminal.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")]

Width = Annotated[int | None, number_option("--width", help="Pixels, a multiple of 32 [960].")]
Height = Annotated[int | None, number_option("--height", help="Pixels, a multiple of 32 [544].")]
Frames = Annotated[int | None, number_option("--frames", help="17n + 5 at 24 per second, 5 to 362 [124].")]
Seconds = Annotated[
    float | None, typer.Option("--seconds", help="Instead of --frames: the shortest film of that length.")
]
Steps = Annotated[int | None, number_option("--steps", help="Model evaluations, 1 to 100 [20].")]
Seed = Annotated[int | None, number_option("--seed", help="0 to 2^63-1; drawn when left out.")]
ConventionsOption = Annotated[
    str | None,
    typer.Option(
        "--conventions",
        help="Whose way where the two differ, as in the schedule: comfyui or diffusers [comfyui].",
    ),
]
SamplerOption = Annotated[
    str | None,
    typer.Option(
        "--sampler",
        help="How a step moves the latents: euler or res_multistep, second order, at the same cost [euler].",
    ),
]
ScheduleOption = Annotated[
    str | None,
    typer.Option(
        "--schedule",
        help="Which noise levels the steps visit: simple or linear [that of --conventions].",
    ),
]
Attention = Annotated[
    str | None, typer.Option("--attention", help="auto, or a backend that the node has (h3 nodes) [auto].")
]
VaeDtypeOption = Annotated[
    str | None,
    typer.Option(
        "--vae-dtype", help="Of the video decoder: float16, or float32 for exact diagnostics [float16]."
    ),
]
VaeTileSize = Annotated[
    int | None,
    number_option(
        "--vae-tile-size", help="Pixels; only 256 decodes exactly, others for memory's sake [256]."
    ),
]
Checkpoint = Annotated[
    str | None, typer.Option("--checkpoint", help="Resident set; default the only one that is served.")
]

Loras = Annotated[
    list[str] | None,
    typer.Option(
        "--lora",
        metavar="NAME[:STRENGTH]",
        help="A LoRA that the node has (h3 nodes), at strength 1 or another; may be repeated, in order.",
    ),
]

WorkflowOption = Annotated[
    str | None,
    typer.Option("--workflow", help="t2va, fl2va or ref2va [what the references and frames ask for]."),
]
References = Annotated[
    list[str] | None,
    typer.Option(
        "--reference",
        metavar="FILE|KEY|LINK[,OPTION=VALUE]...",
        help="A picture, clip or sound for ref2va; may be repeated, in order. Options: size=max of a picture;"
        " audio=off or audio=FILE of a clip; kind=image, video or audio.",
    ),
]
FirstFrame = Annotated[
    str | None, typer.Option("--first-frame", metavar="FILE|KEY|LINK", help="The picture it begins with.")
]
LastFrame = Annotated[
    str | None, typer.Option("--last-frame", metavar="FILE|KEY|LINK", help="The picture it ends with.")
]
NoFetch = Annotated[
    bool,
    typer.Option("--no-fetch", help="Refuse (code 2) references that are links instead of fetching them."),
]

PriorityOption = Annotated[
    Priority | None, typer.Option("--priority", help="Which runs a node takes first [normal].")
]
NodeOption = Annotated[
    str | None, typer.Option("--node", metavar="NODE", help="The only node that may serve it (h3 nodes).")
]
Force = Annotated[
    bool, typer.Option("--force", help="Make it again although it is done: the next unused repeat.")
]
RequireNode = Annotated[
    bool, typer.Option("--require-node", help="Refuse (code 2) what no live node can serve now.")
]
LabelOption = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="NAME=TEXT", help="Kept with the sweep; may be repeated."),
]

COMMON_OPTIONS = {
    "redis": (Redis, None),
    "storage": (Storage, None),
    "fleet": (Fleet, None),
    "as_json": (Json, False),
    "quiet": (Quiet, False),
}
HOW_OPTIONS = {
    "priority": (PriorityOption, None),
    "node": (NodeOption, None),
    "force": (Force, False),
    "label": (LabelOption, None),
    "require_node": (RequireNode, False),
    "no_fetch": (NoFetch, False),
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
    "loras": (Loras, None),
    "workflow": (WorkflowOption, None),
    "references": (References, None),
    "first_frame": (FirstFrame, None),
    "last_frame": (LastFrame, None),
}
