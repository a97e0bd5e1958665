"""The options that several `h3-worker` commands share, each spelled once. A default stands in brackets."""

from pathlib import Path
from typing import Annotated

import typer

from queue_schemas.environment import DEFAULT_FLEET, DEFAULT_REDIS_URL
from storage.uri import DEFAULT_STORAGE_URL
from worker.settings import (
    DEFAULT_CONDITIONING_DISK_GB,
    DEFAULT_CONDITIONING_MEMORY_GB,
    DEFAULT_OUTPUT_DIR,
    DEFAULT_PORT,
)

RedisUrl = Annotated[
    str | None,
    typer.Option("--redis", metavar="URL", help=f"Queue; default H3_REDIS_URL [{DEFAULT_REDIS_URL}]."),
]
StorageUrl = Annotated[
    str | None,
    typer.Option(
        "--storage",
        metavar="URL",
        help="Where films and records go: a folder or s3://bucket/prefix; default H3_STORAGE_URL"
        f" [{DEFAULT_STORAGE_URL}].",
    ),
]
Fleet = Annotated[
    str | None, typer.Option("--fleet", metavar="NAME", help=f"Fleet; default H3_FLEET [{DEFAULT_FLEET}].")
]
EngineUrl = Annotated[
    str | None,
    typer.Option(
        "--engine-url", metavar="URL", help="An engine that runs already; default H3_ENGINE_URL [none]."
    ),
]
ModelsDir = Annotated[
    Path | None,
    typer.Option(
        "--models-dir",
        metavar="FOLDER",
        help="ComfyUI's models folder; default H3_MODELS_DIR [none: h3-tiny is made and served].",
    ),
]
Checkpoint = Annotated[
    str | None,
    typer.Option(
        "--checkpoint",
        metavar="NAME|FILE",
        help="Transformer, or resident set; default H3_CHECKPOINT [the only one there is].",
    ),
]
TokenizerDir = Annotated[
    Path | None,
    typer.Option(
        "--tokenizer-dir",
        metavar="FOLDER",
        help="Folder with tokenizer.json; default H3_TOKENIZER_DIR [the built-in vocabulary].",
    ),
]
TextEncoder = Annotated[
    str | None,
    typer.Option("--text-encoder", metavar="NAME|FILE", help="Text encoder [the only one there is]."),
]
VideoVae = Annotated[
    str | None, typer.Option("--video-vae", metavar="NAME|FILE", help="Video VAE [the only one there is].")
]
AudioVae = Annotated[
    str | None, typer.Option("--audio-vae", metavar="NAME|FILE", help="Audio VAE [the only one there is].")
]
Loras = Annotated[
    list[str] | None,
    typer.Option("--lora", metavar="[NAME=]FILE", help="A LoRA that jobs may name; may be repeated."),
]
PartialLora = Annotated[
    bool, typer.Option("--allow-partial-lora", help="Load a LoRA of which some tensors have no place here.")
]
TimeEmbedder = Annotated[
    Path | None,
    typer.Option(
        "--lora-time-embedder",
        metavar="FILE",
        help="A full transformer file: fits LoRAs' AdaLN deltas to a pruned transformer.",
    ),
]
ProfileMemory = Annotated[
    bool, typer.Option("--profile-memory", help="Tell while loading what memory is held, and at most was.")
]
DropCache = Annotated[
    bool, typer.Option("--drop-cache", help="Free the page cache of the files once loaded (unified memory).")
]
Device = Annotated[
    str | None, typer.Option("--device", metavar="NAME", help="cpu, cuda, cuda:1 [a GPU if there is one].")
]
OutputDir = Annotated[
    Path | None,
    typer.Option(
        "--output-dir",
        metavar="FOLDER",
        help=f"Where films wait for storage; default H3_OUTPUT_DIR [{DEFAULT_OUTPUT_DIR}].",
    ),
]
InputRoot = Annotated[
    Path | None,
    typer.Option(
        "--input-root",
        metavar="FOLDER",
        help="Requests to the engine may name files below it by path [none: keys and https links only].",
    ),
]
ConditioningMemory = Annotated[
    float | None,
    typer.Option(
        "--conditioning-memory",
        metavar="GB",
        help="Host memory for text features of earlier prompts, 0 for none; default"
        f" H3_CONDITIONING_MEMORY_GB [{DEFAULT_CONDITIONING_MEMORY_GB:g}].",
    ),
]
ConditioningDisk = Annotated[
    float | None,
    typer.Option(
        "--conditioning-disk",
        metavar="GB",
        help="Disk for them, 0 for none; default H3_CONDITIONING_DISK_GB"
        f" [{DEFAULT_CONDITIONING_DISK_GB:g}].",
    ),
]
ConditioningDir = Annotated[
    Path | None,
    typer.Option(
        "--conditioning-dir",
        metavar="FOLDER",
        help="Folder for them; default H3_CONDITIONING_DIR [conditioning below the output folder].",
    ),
]
ShareConditioning = Annotated[
    bool | None,
    typer.Option(
        "--share-conditioning/--no-share-conditioning",
        help="Share them with other nodes through the store; default H3_CONDITIONING_SHARED [no].",
    ),
]
Node = Annotated[
    str | None,
    typer.Option("--node", metavar="NAME", help="This node's name; default H3_NODE [host name and port]."),
]
Port = Annotated[
    int | None,
    typer.Option(
        "--port",
        metavar="NUMBER",
        help=f"Port of the engine, 0 for a free one; default H3_PORT [{DEFAULT_PORT}].",
    ),
]
Host = Annotated[
    str,
    typer.Option(
        "--host",
        metavar="ADDRESS",
        help="Address to listen on; beyond loopback H3_API_TOKEN is demanded [127.0.0.1].",
        show_default=False,
    ),
]
Pullers = Annotated[
    int,
    typer.Option(
        "--pullers", metavar="NUMBER", help="Pullers of this node, 1 to 16 [2].", show_default=False
    ),
]
Embedded = Annotated[bool, typer.Option("--embedded", help="Start a redis-server of its own.")]
RedisPort = Annotated[
    int | None,
    typer.Option(
        "--redis-port",
        metavar="NUMBER",
        help="Port of the embedded redis-server, 0 for a free one [6379 if it is free, else a free one].",
    ),
]
DrainSeconds = Annotated[
    float,
    typer.Option(
        "--drain-seconds",
        metavar="SECONDS",
        help="How long running jobs may finish after a signal [60].",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print compact JSON lines, also on a terminal.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")]
