"""`H3Pipeline`: the hot model set; one job in, one film with its sound out.

Every stage is a plain call in order, so reading `generate` is reading what a job does. What the sources
disagree on is decided by the job's `Conventions` and nowhere else. Knows no files of outputs, no queue and no
HTTP.

Shapes: L text rows; latents as in `latents.py`; F frames of H × W pixels; N samples per channel.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from media.prepared import PreparedClip, PreparedMedia
from model.attention import available_attention, resolve_attention
from model.audio_vae import AudioEncoder, decode_waveform, encode_sound, fit_length, limit_loudness
from model.base import Generation, OnProgress, PipelineCard
from model.condition_receipts import make_receipts
from model.conditioning.cache import Conditioning, ConditioningCache, ConditioningOptions
from model.conditioning.identity import encoder_identity
from model.conditions import Condition, bind, encode_condition, in_packed_order, show, watching
from model.denoise import denoise
from model.denoiser import Denoiser
from model.dit.timesteps import TimeEmbedder
from model.errors import (
    GenerationCancelledError,
    TransformerTaskError,
    WrongCheckpointError,
)
from model.loading.files import ResidentFiles
from model.loading.models import Models, load_video_decoder, require_encoder
from model.receipts import (
    checkpoint_set,
    device_facts,
    dtype_name,
    peak_memory,
    reset_peak_memory,
    tensor_sha256,
)
from model.sigmas import SigmaPlan, plan_sigmas
from model.stage_clock import StageClock
from model.text_encoder.presentation import Presentation, present
from model.video_vae import VideoDecoder, VideoEncoder, decode_frames, encode_clip
from queue_schemas import geometry
from queue_schemas.benchmark import Backends, Tokens
from queue_schemas.conventions import PRESETS
from queue_schemas.events import ProgressEvent, Stage
from queue_schemas.jobs import ConventionsName, Job, VaeDtype
from queue_schemas.receipts import PromptReceipt

VAE_DTYPES: Final = {VaeDtype.FLOAT16: torch.float16, VaeDtype.FLOAT32: torch.float32}

log = logging.getLogger(__name__)


class H3Pipeline:
    """Owns the resident models of one device. One `generate` at a time; the engine sees to that."""

    def __init__(
        self,
        models: Models,
        files: ResidentFiles,
        *,
        device: torch.device,
        lora_time_embedder: TimeEmbedder | None = None,
        conditioning: ConditioningOptions | None = None,
    ) -> None:
        """`conditioning` says where text features are kept; by default nowhere."""
        self.models, self.files, self.device = models, files, device
        transformers = (models.transformer, models.ref2va_transformer)
        self.denoisers = [Denoiser(each, lora_time_embedder) for each in transformers if each is not None]
        self._checkpoint = checkpoint_set(files, tokenizer_identity=models.tokenizer.identity)
        self._facts = device_facts(device)
        identity = encoder_identity(
            models.text_encoder,
            self._checkpoint,
            tokenizer=models.tokenizer.identity,
            facts=self._facts,
        )
        self._conditioning = ConditioningCache(identity, conditioning or ConditioningOptions())
        self._auto_attention, _ = resolve_attention("auto", device)
        log.info("attention auto on %s is %s", device, self._auto_attention)

    def card(self) -> PipelineCard:
        return PipelineCard(
            checkpoint=self._checkpoint,
            backends=self._backends(self._auto_attention),
            attention_backends=available_attention(self.device),
            loras=self.denoisers[0].loras.cards,
            device=self._facts.device,
            driver=self._facts.driver,
            versions=self._facts.versions,
            num_threads=torch.get_num_threads(),
        )

    def check(self, job: Job) -> None:
        """Raise what `generate` would refuse this job for, before it costs anything."""
        if job.checkpoint != self.files.name:
            raise WrongCheckpointError(wanted=job.checkpoint, resident=self.files.name)
        resolve_attention(job.attention, self.device)
        self._denoiser(job).loras.check(job.loras)
        kinds = {medium.kind for medium in job.media}
        if kinds & {"image", "video"}:
            self._video_encoder()
        if "audio" in kinds:
            self._audio_encoder()
        plan_job(job)

    def count_tokens(self, text: str, *, conventions: ConventionsName) -> int:
        shown = present(text, (), tokenizer=self.models.tokenizer, conventions=PRESETS[conventions])
        return len(shown.ids)

    @torch.inference_mode()
    def generate(
        self,
        job: Job,
        media: Sequence[PreparedMedia] = (),
        *,
        on_progress: OnProgress,
        cancelled: Callable[[], bool],
        reuse_conditioning: bool = True,
    ) -> Generation:
        self.check(job)
        conventions, clock = PRESETS[job.conventions], StageClock(self.device, on_progress)
        ordered = in_packed_order(job, media, conventions=conventions)
        if any(isinstance(each, PreparedClip) and each.sound is not None for each in ordered):
            self._audio_encoder()  # whether a clip has sound, only its file tells
        attention_name, attention = resolve_attention(job.attention, self.device)
        reset_peak_memory(self.device)
        denoiser = self._denoiser(job)
        denoiser.loras.use(job.loras)
        plan = plan_job(job)

        decoder, reload_note = self._video_decoder(VAE_DTYPES[job.vae_dtype])
        with clock.stage(Stage.TEXT_ENCODE):
            stop_if(cancelled)
            presentation, conditioning = self._read(job, ordered, reuse=reuse_conditioning)
            text_embeds = conditioning.features
        conditions = []
        if ordered:
            with clock.stage(Stage.REFERENCE_ENCODE, steps=len(ordered)):
                conditions = self._encode(job, ordered, on_progress=on_progress, cancelled=cancelled)
        network, noise = bind(
            job,
            denoiser.transformer,
            text_embeds=text_embeds,
            presentation=presentation,
            conditions=conditions,
            attention=attention,
        )
        receipts = make_receipts(conditions, presentation.media, layout=network.layout)
        prompt = PromptReceipt(tokens=len(presentation.ids), features_sha256=tensor_sha256(text_embeds))
        with clock.stage(Stage.DENOISE, steps=job.steps):
            network.modulations = denoiser.modulations.of(
                plan,
                clocks=network.layout.clocks_in_use,
                conventions=conventions,
                loras=denoiser.loras.adaln_strengths(),
            )
            denoised = denoise(
                network,
                noise=noise,
                plan=plan,
                sampler=job.sampler,
                conventions=conventions,
                compute_dtype=denoiser.transformer.compute_dtype,
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
            tokens=Tokens(
                text=len(presentation.ids),
                video=shape.video_tokens,
                audio=shape.audio_tokens,
                conditions=sum(receipt.tokens for receipt in receipts),
            ),
            evaluations=len(denoised.step_seconds),
            backends=self._backends(attention_name),
            seconds=clock.seconds(denoise_steps=denoised.step_seconds),
            peak_device_bytes=peak_memory(self.device),
            conditioning_cache=conditioning.use,
            prompt=prompt,
            references=receipts,
            notes=reload_note,
        )

    def _denoiser(self, job: Job) -> Denoiser:
        """Return the transformer for a job's workflow. Raises TransformerTaskError."""
        if len(self.denoisers) > 1:
            return self.denoisers[job.workflow == "ref2va"]
        task = self.files.transformer_task
        if task is not None and job.workflow not in ("t2va", task):
            raise TransformerTaskError(workflow=job.workflow, task=task, resident=self.files.name)
        return self.denoisers[0]

    def _video_encoder(self) -> VideoEncoder:
        return require_encoder(self.models.video_encoder, "video VAE", header=self.files.video_vae)

    def _audio_encoder(self) -> AudioEncoder:
        return require_encoder(self.models.audio_encoder, "audio VAE", header=self.files.audio_vae)

    def _read(
        self, job: Job, media: Sequence[PreparedMedia], *, reuse: bool
    ) -> tuple[Presentation, Conditioning]:
        """Show media and prompt to the text encoder, unless it is known what it makes of them."""
        presentation = present(
            job.prompt,
            [show(medium) for medium in media],
            tokenizer=self.models.tokenizer,
            conventions=PRESETS[job.conventions],
        )
        conditioning = self._conditioning.read(
            presentation,
            self.models.text_encoder,
            reuse=reuse,
            watch=lambda see: watching(see, media, presentation=presentation),
        )
        log.info("job %s: conditioning cache: %s", job.job_id, conditioning.told)
        return presentation, conditioning

    def _encode(
        self,
        job: Job,
        media: Sequence[PreparedMedia],
        *,
        on_progress: OnProgress,
        cancelled: Callable[[], bool],
    ) -> list[Condition]:
        """Bring media through the VAEs, one by one; `cancelled` is asked before each 17 frames."""
        conventions, exact = PRESETS[job.conventions], job.vae_dtype is VaeDtype.FLOAT32

        def encode_film(pieces: Iterable[npt.NDArray[np.uint8]]) -> Tensor:
            watched = until_cancelled(pieces, cancelled)
            return encode_clip(self._video_encoder(), watched, conventions=conventions, exact=exact)

        def encode_audio(samples: Tensor) -> Tensor:
            return encode_sound(self._audio_encoder(), samples, conventions=conventions)

        found = []
        for number, medium in enumerate(media, start=1):
            stop_if(cancelled)
            condition = encode_condition(
                medium,
                film_frames=job.frames,
                conventions=conventions,
                encode_film=encode_film,
                encode_sound=encode_audio,
            )
            found.append(condition)
            on_progress(ProgressEvent(stage=Stage.REFERENCE_ENCODE, step=number, steps=len(media)))
        return found

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


def stop_if(cancelled: Callable[[], bool]) -> None:
    """Raise GenerationCancelledError for a job that was cancelled before its first step."""
    if cancelled():
        raise GenerationCancelledError(step=0)


def until_cancelled(
    pieces: Iterable[npt.NDArray[np.uint8]], cancelled: Callable[[], bool]
) -> Iterator[npt.NDArray[np.uint8]]:
    for piece in pieces:
        stop_if(cancelled)
        yield piece


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
