"""`H3Pipeline`: the hot model set; one job in, one film with its sound out.

Every stage is a plain call in order, so reading `generate` is reading what a job does. What the sources
disagree on is decided by the job's `Conventions` and nowhere else. Knows no files of outputs, no queue and no
HTTP.

Shapes: L text rows; latents as in `latents.py`; F frames of H × W pixels; N samples per channel.
"""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from model.attention import AttentionFn, available_attention, resolve_attention
from model.audio_vae import decode_waveform, fit_length, limit_loudness
from model.base import Generation, OnProgress, PipelineCard
from model.checkpoints.header import OpenCheckpoint
from model.denoise import denoise
from model.errors import DeviceUnavailableError, GenerationCancelledError, WrongCheckpointError
from model.loading.files import ResidentFiles, find_files
from model.loading.models import Models, OnLoad, load_models, load_video_decoder
from model.loading.plans import check_files
from model.loading.transfer import drop_page_cache
from model.lora.adaln import read_time_embedder
from model.lora.cards import registry_of
from model.lora.resident import ResidentLoras, plan_loras
from model.modulations import ModulationCache
from model.network import PackedNetwork
from model.noise import draw_noise
from model.packing import pack
from model.receipts import (
    checkpoint_set,
    device_facts,
    dtype_name,
    memory_line,
    peak_memory,
    reset_peak_memory,
)
from model.sigmas import SigmaPlan, plan_sigmas
from model.stage_clock import StageClock
from model.synthetic.h3_tiny import H3_TINY, ensure_h3_tiny
from model.text_encoder.presentation import present_t2va
from model.video_vae import VideoDecoder, decode_frames
from queue_schemas import geometry
from queue_schemas.benchmark import Backends, Tokens
from queue_schemas.conventions import PRESETS, Conventions
from queue_schemas.errors import NotImplementedWorkflowError
from queue_schemas.events import ProgressEvent, Stage
from queue_schemas.jobs import IMPLEMENTED_WORKFLOWS, Job, VaeDtype

VAE_DTYPES: Final = {VaeDtype.FLOAT16: torch.float16, VaeDtype.FLOAT32: torch.float32}
H3_TINY_DIR: Final = Path("outputs") / H3_TINY
"""Below the working folder, where a person sees it."""

log = logging.getLogger(__name__)


class H3Pipeline:
    """Owns the resident models of one device. One `generate` at a time; the engine sees to that."""

    def __init__(
        self,
        models: Models,
        files: ResidentFiles,
        *,
        device: torch.device,
        loras: ResidentLoras | None = None,
    ) -> None:
        self.models, self.files, self.device = models, files, device
        self.loras = loras or ResidentLoras(models.transformer)
        self.modulations = ModulationCache(models.transformer)
        self._checkpoint = checkpoint_set(files, tokenizer_identity=models.tokenizer.identity)
        self._facts = device_facts(device)
        self._auto_attention, _ = resolve_attention("auto", device)
        log.info("attention auto on %s is %s", device, self._auto_attention)

    def card(self) -> PipelineCard:
        return PipelineCard(
            checkpoint=self._checkpoint,
            backends=self._backends(self._auto_attention),
            attention_backends=available_attention(self.device),
            loras=self.loras.cards,
            device=self._facts.device,
            driver=self._facts.driver,
            versions=self._facts.versions,
            num_threads=torch.get_num_threads(),
        )

    def check(self, job: Job) -> None:
        """Raise what `generate` would refuse this job for, before it costs anything."""
        if job.workflow not in IMPLEMENTED_WORKFLOWS:
            raise NotImplementedWorkflowError(job.workflow)
        if job.checkpoint != self.files.name:
            raise WrongCheckpointError(wanted=job.checkpoint, resident=self.files.name)
        resolve_attention(job.attention, self.device)
        self.loras.check(job.loras)
        plan_job(job)

    @torch.inference_mode()
    def generate(
        self,
        job: Job,
        media: Sequence[Any] = (),
        *,
        on_progress: OnProgress,
        cancelled: Callable[[], bool],
    ) -> Generation:
        self.check(job)
        conventions, clock = PRESETS[job.conventions], StageClock(self.device, on_progress)
        attention_name, attention = resolve_attention(job.attention, self.device)
        reset_peak_memory(self.device)
        self.loras.use(job.loras)
        plan = plan_job(job)

        decoder, reload_note = self._video_decoder(VAE_DTYPES[job.vae_dtype])
        with clock.stage(Stage.TEXT_ENCODE):
            network, num_text = self._condition(job, attention=attention, conventions=conventions)
        with clock.stage(Stage.DENOISE, steps=job.steps):
            network.modulations = self.modulations.of(
                plan,
                clocks=network.layout.clocks_in_use,
                conventions=conventions,
                loras=self.loras.adaln_strengths(),
            )
            denoised = denoise(
                network,
                noise=draw_noise(job.latent_shape, seed=job.seed, conventions=conventions).film.to(
                    self.device
                ),
                plan=plan,
                sampler=job.sampler,
                conventions=conventions,
                compute_dtype=self.models.transformer.compute_dtype,
                on_progress=on_progress,
                cancelled=cancelled,
            )
        with clock.stage(Stage.VIDEO_DECODE, steps=num_parts(job.frames)):
            frames = self._decode_video(
                job, denoised.latents.video, decoder=decoder, on_progress=on_progress, cancelled=cancelled
            )
        with clock.stage(Stage.AUDIO_DECODE):
            waveform = self._decode_audio(job, denoised.latents.audio)

        shape = job.latent_shape
        return Generation(
            frames=frames,
            waveform=waveform,
            sample_rate_hz=geometry.SAMPLE_RATE_HZ,
            tokens=Tokens(text=num_text, video=shape.video_tokens, audio=shape.audio_tokens),
            evaluations=len(denoised.step_seconds),
            backends=self._backends(attention_name),
            seconds=clock.seconds(denoise_steps=denoised.step_seconds),
            peak_device_bytes=peak_memory(self.device),
            notes=reload_note,
        )

    def _condition(
        self, job: Job, *, attention: AttentionFn, conventions: Conventions
    ) -> tuple[PackedNetwork, int]:
        """Encode the prompt and bind the transformer to it; also return the number of text rows."""
        presentation = present_t2va(job.prompt, tokenizer=self.models.tokenizer, conventions=conventions)
        num_text = len(presentation.ids)
        network = PackedNetwork(
            self.models.transformer,
            self.models.text_encoder.encode(presentation),
            layout=pack(num_text, job.latent_shape, text_tags=torch.tensor(presentation.tags)),
            shape=job.latent_shape,
            attention=attention,
            conventions=conventions,
        )
        return network, num_text

    def _decode_video(
        self,
        job: Job,
        latents: Tensor,
        *,
        decoder: VideoDecoder,
        on_progress: OnProgress,
        cancelled: Callable[[], bool],
    ) -> npt.NDArray[np.uint8]:
        """Decode [24, T, lh, lw] part by part into one host array [F, H, W, 3]."""
        conventions = PRESETS[job.conventions]
        frames = np.empty((job.frames, job.height, job.width, 3), dtype=np.uint8)
        parts = decode_frames(
            decoder,
            latents,
            seam=conventions.tile_seam,
            rounding=conventions.uint8_rounding,
            tile_pixels=job.vae_tile_size,
        )
        filled = 0
        for number, part in enumerate(parts, start=1):
            frames[filled : filled + len(part)] = part.numpy()
            filled += len(part)
            on_progress(ProgressEvent(stage=Stage.VIDEO_DECODE, step=number, steps=num_parts(job.frames)))
            if cancelled():
                raise GenerationCancelledError
        assert filled == job.frames
        return frames

    def _decode_audio(self, job: Job, latents: Tensor) -> npt.NDArray[np.float32]:
        """Decode [2, 32, Ta] to [2, N] on the host, exactly as long as the film."""
        waveform = decode_waveform(self.models.audio_decoder, latents)
        if PRESETS[job.conventions].audio_loudness_limit:
            waveform = limit_loudness(waveform)
        return fit_length(waveform, geometry.track_samples(job.frames)).cpu().numpy()

    def _video_decoder(self, dtype: torch.dtype) -> tuple[VideoDecoder, list[str]]:
        """The resident decoder, and a note when a job's other dtype had it read again from its file."""
        if self._video_vae_dtype == dtype:
            return self.models.video_decoder, []
        self.models.video_decoder = load_video_decoder(self.files.video_vae, device=self.device, dtype=dtype)
        return self.models.video_decoder, [f"the video VAE was read again, as {dtype_name(dtype)}"]

    @property
    def _video_vae_dtype(self) -> torch.dtype:
        return self.models.video_decoder.post_quant_conv.weight.dtype

    def _backends(self, attention: str) -> Backends:
        return Backends(
            attention=attention,
            transformer_dtype=dtype_name(self.models.transformer.compute_dtype),
            text_encoder_dtype=dtype_name(self.models.text_encoder.dtype),
            video_vae_dtype=dtype_name(self._video_vae_dtype),
            audio_vae_dtype=dtype_name(torch.float32),
        )


def num_parts(frames: int) -> int:
    """Return how many parts the video decoder yields for a film: one per 17 frames, and the last 5."""
    return -(-frames // geometry.FRAME_STRIDE)


def plan_job(job: Job) -> SigmaPlan:
    """Return the job's sigmas. Raises ScheduleError."""
    return plan_sigmas(
        job.schedule,
        steps=job.steps,
        shift_video=job.shift_video,
        shift_audio=job.shift_audio,
        conventions=PRESETS[job.conventions],
    )


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
) -> H3Pipeline:
    """Load a resident set; without any model file named, write h3-tiny below `outputs/` and load that.

    `loras` are `FILE` or `NAME=FILE`; one of which some tensors have no place here is refused unless allowed.
    `lora_time_embedder` is a full transformer file, by which LoRAs' AdaLN deltas fit a pruned one.
    `device` is a torch device name; by default the first CUDA device, else the CPU. The transformer and the
    text encoder compute in bfloat16 on a GPU and in float32 on a CPU, which has no fast bfloat16.
    `profile_memory` adds what is held to every line of progress; `drop_cache` has the system forget the
    files' pages afterwards, which unified memory gains.
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
    planned = plan_loras(
        files.loras,
        plans.transformer.module,
        registry=registry_of(models_dir),
        allow_partial=allow_partial_lora,
        time_embedder=time_embedder,
    )
    models = load_models(
        files,
        plans,
        device=place,
        vae_dtype=VAE_DTYPES[VaeDtype.FLOAT16],
        on_progress=tell,
    )
    resident = ResidentLoras(models.transformer, time_embedder)
    for plan, card in planned:
        tell(f"LoRA {card.name}")
        resident.load(plan, card)
    for header in files.headers().values() if drop_cache else ():
        with OpenCheckpoint(header.path, known=header) as file:
            drop_page_cache(file)
    tell("models loaded")
    return H3Pipeline(models, files, device=place, loras=resident)


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
