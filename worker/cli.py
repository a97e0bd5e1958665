"""The `h3-worker` command: one node (`run`), its engine alone (`serve`), one puller alone (`pull`).

Options name what the environment names too, and win over it. Secrets (Redis password, engine token) reach
child processes through the environment, never as arguments.
"""

import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

import typer

from queue_schemas.command_lines import run_command_line
from queue_schemas.programs import module_command
from worker.command import Output, reported, settings_with
from worker.errors import SettingsError
from worker.options import (
    AudioVae,
    Checkpoint,
    ConditioningDir,
    ConditioningDisk,
    ConditioningMemory,
    Device,
    DrainSeconds,
    DropCache,
    Embedded,
    EngineUrl,
    Fleet,
    Host,
    InputRoot,
    Json,
    Loras,
    ModelsDir,
    Node,
    OutputDir,
    PartialLora,
    Port,
    ProfileMemory,
    Pullers,
    Quiet,
    RedisPort,
    RedisUrl,
    ShareConditioning,
    StorageUrl,
    TextEncoder,
    TimeEmbedder,
    TokenizerDir,
    VideoVae,
)
from worker.settings import let_idle_threads_sleep, node_of

app = typer.Typer(
    name="h3-worker",
    help="A worker node: the hot engine, and the pullers that feed it from Redis.",
    epilog="Example: h3-worker run --embedded",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

_ENGINE_SECONDS = 600.0
"""How long a puller that was started alone waits for its engine to load."""


@app.command(epilog="Example: h3-worker run --embedded --storage outputs/store")
def run(
    *,
    redis: RedisUrl = None,
    storage: StorageUrl = None,
    engine_url: EngineUrl = None,
    fleet: Fleet = None,
    models_dir: ModelsDir = None,
    checkpoint: Checkpoint = None,
    tokenizer_dir: TokenizerDir = None,
    text_encoder: TextEncoder = None,
    video_vae: VideoVae = None,
    audio_vae: AudioVae = None,
    lora: Loras = None,
    allow_partial_lora: PartialLora = False,
    lora_time_embedder: TimeEmbedder = None,
    profile_memory: ProfileMemory = False,
    drop_cache: DropCache = False,
    device: Device = None,
    output_dir: OutputDir = None,
    input_root: InputRoot = None,
    conditioning_memory: ConditioningMemory = None,
    conditioning_disk: ConditioningDisk = None,
    conditioning_dir: ConditioningDir = None,
    share_conditioning: ShareConditioning = None,
    port: Port = None,
    node: Node = None,
    pullers: Pullers = 2,
    embedded: Embedded = False,
    redis_port: RedisPort = None,
    drain_seconds: DrainSeconds = 60.0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run a node: engine, pullers and, with --embedded, a redis-server. A JSON line says when it is ready.

    Without --models-dir it makes and serves h3-tiny, whose random weights make films of noise in seconds.
    """
    from worker.supervisor import NodePlan, Supervisor, check_plan  # noqa: PLC0415 - not needed by `serve`

    with reported(_with_result(as_json, quiet)) as output:
        settings = settings_with(
            output,
            redis_url=redis,
            redis_named=True if redis else None,
            storage_url=storage,
            engine_url=engine_url,
            fleet=fleet,
            models_dir=models_dir,
            checkpoint=checkpoint,
            tokenizer_dir=tokenizer_dir,
            output_dir=output_dir,
            conditioning_memory_gb=conditioning_memory,
            conditioning_disk_gb=conditioning_disk,
            conditioning_dir=conditioning_dir,
            conditioning_shared=share_conditioning,
            port=port,
            node=node,
        )
        files = {
            "--text-encoder": text_encoder,
            "--video-vae": video_vae,
            "--audio-vae": audio_vae,
            "--lora-time-embedder": lora_time_embedder,
            "--device": device,
            "--input-root": input_root,
        }
        command = module_command("worker.cli", "serve")
        command += [part for name, value in files.items() if value for part in (name, str(value))]
        command += [part for text in lora or () for part in ("--lora", text)]
        switches = {
            "--allow-partial-lora": allow_partial_lora,
            "--profile-memory": profile_memory,
            "--drop-cache": drop_cache,
            "--quiet": quiet,
        }
        command += [name for name, is_on in switches.items() if is_on]
        plan = NodePlan(
            settings=settings,
            engine_command=command,
            pullers=pullers,
            embedded=embedded,
            redis_port=redis_port,
            drain_seconds=drain_seconds,
            quiet=quiet,
        )
        check_plan(plan)
        Supervisor(plan, on_ready=output.emit, tell=output.tell).run()


@app.command(epilog="Example: h3-worker serve --models-dir /models/ComfyUI --port 8033")
def serve(
    *,
    models_dir: ModelsDir = None,
    checkpoint: Checkpoint = None,
    tokenizer_dir: TokenizerDir = None,
    text_encoder: TextEncoder = None,
    video_vae: VideoVae = None,
    audio_vae: AudioVae = None,
    lora: Loras = None,
    allow_partial_lora: PartialLora = False,
    lora_time_embedder: TimeEmbedder = None,
    profile_memory: ProfileMemory = False,
    drop_cache: DropCache = False,
    device: Device = None,
    output_dir: OutputDir = None,
    input_root: InputRoot = None,
    conditioning_memory: ConditioningMemory = None,
    conditioning_disk: ConditioningDisk = None,
    conditioning_dir: ConditioningDir = None,
    share_conditioning: ShareConditioning = None,
    host: Host = "127.0.0.1",
    port: Port = None,
    node: Node = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Load the models once and answer POST /generate and GET /ready until a signal."""
    from worker.embedded_redis import free_port  # noqa: PLC0415 - the other commands run without these
    from worker.engine import Engine  # noqa: PLC0415
    from worker.engine_log import EngineLog  # noqa: PLC0415
    from worker.output_root import check_output_root, remove_leftovers  # noqa: PLC0415
    from worker.serving import serve as serve_engine  # noqa: PLC0415

    def load(tell: Callable[[str], None]) -> Engine:
        tell("importing the runtime")
        let_idle_threads_sleep()
        from model.startup import load_pipeline  # noqa: PLC0415 - torch
        from worker.conditioning import conditioning_options  # noqa: PLC0415

        pipeline = load_pipeline(
            models_dir=settings.models_dir,
            checkpoint=settings.checkpoint,
            text_encoder=text_encoder,
            video_vae=video_vae,
            audio_vae=audio_vae,
            tokenizer_dir=settings.tokenizer_dir,
            loras=lora or (),
            allow_partial_lora=allow_partial_lora,
            lora_time_embedder=lora_time_embedder,
            device=device,
            on_progress=tell,
            profile_memory=profile_memory,
            drop_cache=drop_cache,
            conditioning=conditioning_options(settings),
        )
        return Engine(
            pipeline, output_root=settings.output_dir, node=node_of(settings), input_root=input_root
        )

    with reported(Output(as_json=as_json, quiet=quiet)) as output:
        settings = settings_with(
            output,
            models_dir=models_dir,
            checkpoint=checkpoint,
            tokenizer_dir=tokenizer_dir,
            output_dir=output_dir,
            conditioning_memory_gb=conditioning_memory,
            conditioning_disk_gb=conditioning_disk,
            conditioning_dir=conditioning_dir,
            conditioning_shared=share_conditioning,
            port=port,
            node=node,
        )
        check_output_root(settings.output_dir)
        if input_root is not None and not input_root.is_dir():
            raise SettingsError(f"--input-root {input_root} is no folder; name one that requests may read")
        remove_leftovers(settings.output_dir)
        settings = replace(settings, port=settings.port or free_port())  # the node is named by it
        logging.getLogger().addHandler(EngineLog(settings.output_dir, node=node_of(settings)))
        serve_engine(load, host=host, port=settings.port, api_token=settings.api_token)


@app.command(epilog="Example: h3-worker pull --engine-url http://127.0.0.1:8033")
def pull(
    *,
    redis: RedisUrl = None,
    storage: StorageUrl = None,
    engine_url: EngineUrl = None,
    fleet: Fleet = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Take jobs from Redis, one at a time, to the engine on this machine, until a signal."""
    from worker.pulling import pull_until_signal  # noqa: PLC0415 - `serve` speaks no Redis

    with reported(Output(as_json=as_json, quiet=quiet)) as output:
        settings = settings_with(
            output, redis_url=redis, storage_url=storage, engine_url=engine_url, fleet=fleet
        )
        pull_until_signal(settings, engine_seconds=_ENGINE_SECONDS)


@app.command(epilog="Example: h3-worker janitor --storage outputs/store")
def janitor(
    *,
    redis: RedisUrl = None,
    storage: StorageUrl = None,
    fleet: Fleet = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Recover what died: leases that ran out, due retries, dead letters. Several may run; one leads."""
    from broker.connection import connect  # noqa: PLC0415
    from worker.janitor import run_janitor  # noqa: PLC0415

    with reported(Output(as_json=as_json, quiet=quiet)) as output:
        settings = settings_with(output, redis_url=redis, storage_url=storage, fleet=fleet)
        connection = connect(settings.redis_url)
        run_janitor(connection, storage_url=settings.storage_url, fleet=settings.fleet)


@app.command(epilog="Example: h3-worker forget --checkpoint night --fleet h3")
def forget(
    *,
    redis: RedisUrl = None,
    fleet: Fleet = None,
    store: Annotated[bool, typer.Option("--store", help="Forget which store the fleet writes to.")] = False,
    checkpoint: Annotated[
        str | None, typer.Option("--checkpoint", metavar="NAME", help="Forget which files this name means.")
    ] = None,
    lora: Annotated[
        str | None, typer.Option("--lora", metavar="NAME", help="Forget which file this LoRA's name means.")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Forget what a fleet has agreed on: its store, or which files a name means.

    The first node of a fleet fixes both, and a node that differs is refused, so that one name never means
    two things. To move the store, or to give a name to other files: stop the nodes that go by it (h3 nodes),
    forget it, start the nodes anew. Films, records and queued jobs stay.
    """
    from broker.connection import connect  # noqa: PLC0415
    from worker.forgetting import forget_agreements  # noqa: PLC0415

    with reported(_with_result(as_json, quiet)) as output:
        if not (store or checkpoint or lora):
            raise SettingsError("say what to forget: --store, --checkpoint NAME, --lora NAME, or several")
        settings = settings_with(output, redis_url=redis, fleet=fleet)
        done = forget_agreements(
            connect(settings.redis_url), fleet=settings.fleet, store=store, checkpoint=checkpoint, lora=lora
        )
        for sentence in done:
            output.tell(sentence)
        output.emit({"fleet": settings.fleet, "done": done})


def _with_result(as_json: bool, quiet: bool) -> Output:
    """Of a command that has something to say to a program; the others' stdout may be a node's log."""
    return Output(as_json=as_json or not sys.stdout.isatty(), quiet=quiet)


def main() -> None:
    """Entry point of `h3-worker`."""
    raise SystemExit(run_command_line(app, sys.argv[1:], name="h3-worker"))


if __name__ == "__main__":
    main()
