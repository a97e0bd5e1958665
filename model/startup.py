"""From names of files to a hot `H3Pipeline`: found, checked by their headers, then read onto one device."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch

from model.checkpoints.header import OpenCheckpoint
from model.conditioning.cache import ConditioningOptions
from model.errors import DeviceUnavailableError
from model.loading.files import find_files
from model.loading.models import OnLoad, load_models
from model.loading.plans import check_files
from model.loading.transfer import drop_page_cache
from model.lora.adaln import read_time_embedder
from model.lora.cards import registry_of
from model.lora.resident import plan_loras
from model.pipeline import VAE_DTYPES, H3Pipeline
from model.receipts import memory_line
from model.synthetic.h3_tiny import H3_TINY, ensure_h3_tiny
from queue_schemas.jobs import VaeDtype

H3_TINY_DIR: Final = Path("outputs") / H3_TINY
"""Below the working folder, where a person sees it."""


def load_pipeline(
    *,
    models_dir: Path | None = None,
    checkpoint: str | None = None,
    text_encoder: str | None = None,
    video_vae: str | None = None,
    audio_vae: str | None = None,
    tokenizer_dir: Path | None = None,
    loras: Sequence[str] = (),
    allow_partial_lora: bool = False,
    lora_time_embedder: Path | None = None,
    device: str | None = None,
    on_progress: OnLoad = lambda what: None,
    profile_memory: bool = False,
    drop_cache: bool = False,
    conditioning: ConditioningOptions | None = None,
) -> H3Pipeline:
    """Load a resident set; without any model file named, write h3-tiny below `outputs/` and load that.

    `loras` are `FILE` or `NAME=FILE`; one of which some tensors have no place here is refused unless allowed.
    `lora_time_embedder` is a full transformer file, by which LoRAs' AdaLN deltas fit a pruned one.
    `device` is a torch device name; by default the first CUDA device, else the CPU. The transformer and the
    text encoder compute in bfloat16 on a GPU and in float32 on a CPU, which has no fast bfloat16.
    `profile_memory` adds what is held to every line of progress; `drop_cache` has the system forget the
    files' pages afterwards, which unified memory gains. `conditioning` says where text features are kept.
    Raises ModelError, and InvalidRequestError for a registry of the user's own.
    """
    if uses_h3_tiny(
        models_dir=models_dir,
        checkpoint=checkpoint,
        text_encoder=text_encoder,
        video_vae=video_vae,
        audio_vae=audio_vae,
    ):
        on_progress(f"no model folder named: using the synthetic checkpoint {H3_TINY} in {H3_TINY_DIR}")
        models_dir, checkpoint = ensure_h3_tiny(H3_TINY_DIR), None
    files = find_files(
        models_dir,
        checkpoint=checkpoint,
        text_encoder=text_encoder,
        video_vae=video_vae,
        audio_vae=audio_vae,
        tokenizer_dir=tokenizer_dir,
        loras=loras,
    )
    time_embedder = None if lora_time_embedder is None else read_time_embedder(lora_time_embedder)
    place = choose_device(device)
    tell = (lambda what: on_progress(f"{what} [{memory_line(place)}]")) if profile_memory else on_progress
    tell("headers")
    compute_dtype = torch.bfloat16 if place.type == "cuda" else torch.float32
    plans = check_files(files, compute_dtype=compute_dtype)
    registry = registry_of(models_dir)
    planned = [
        plan_loras(
            files.loras,
            plan.module,
            registry=registry,
            allow_partial=allow_partial_lora,
            time_embedder=time_embedder,
        )
        for plan in plans.transformers
    ]
    models = load_models(
        files,
        plans,
        device=place,
        vae_dtype=VAE_DTYPES[VaeDtype.FLOAT16],
        on_progress=tell,
    )
    pipeline = H3Pipeline(
        models, files, device=place, lora_time_embedder=time_embedder, conditioning=conditioning
    )
    for denoiser, loras_of_it in zip(pipeline.denoisers, planned, strict=True):
        for lora_plan, card in loras_of_it:
            tell(f"LoRA {card.name}")
            denoiser.loras.load(lora_plan, card)
    for header in files.headers().values() if drop_cache else ():
        with OpenCheckpoint(header.path, known=header) as file:
            drop_page_cache(file)
    tell("models loaded")
    return pipeline


def uses_h3_tiny(
    *,
    models_dir: Path | None,
    checkpoint: str | None,
    text_encoder: str | None,
    video_vae: str | None,
    audio_vae: str | None,
) -> bool:
    """Say whether nobody named a model file, so that the synthetic checkpoint serves."""
    named = (models_dir, text_encoder, video_vae, audio_vae)
    return all(name is None for name in named) and checkpoint in (None, H3_TINY)


def choose_device(name: str | None) -> torch.device:
    """Return the named device, or the first CUDA device, or the CPU. Raises DeviceUnavailableError."""
    if name is None:
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise DeviceUnavailableError(name, reason="torch knows no such device") from None
    if device.type not in ("cpu", "cuda"):
        raise DeviceUnavailableError(name, reason="this runtime computes on cpu or cuda")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise DeviceUnavailableError(name, reason=f"{torch.cuda.device_count()} CUDA devices are visible")
    return device
