"""Whole fl2va and ref2va runs to final latents, as ComfyUI recorded them: from latents, and from media."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import pytest
import small_prepared as small
import torch
from conditioned import conditioned, denoised
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from media.fitting import fit
from media.prepared import PreparedMedia
from model.attention import resolve_attention
from model.audio_vae import fill_latents
from model.coordinates import PIXEL_FRAMES_PER_LATENT
from model.denoise import denoise
from model.dit import H3Transformer
from model.latents import Latents
from model.network import ConditionRows, PackedNetwork
from model.noise import draw_noise
from model.packing import pack
from model.sigmas import plan_sigmas
from model.text_encoder.encoder import See
from model.text_encoder.presentation import Presentation
from model.text_encoder.tokenizer import Tokenizer
from model.text_encoder.vision import Sight, VisionRows, patch_rows
from queue_schemas.conventions import COMFYUI
from queue_schemas.geometry import LatentShape
from queue_schemas.jobs import Sampler, Schedule, build_job
from queue_schemas.reference_geometry import clip_frames, clip_size, picture_size

pytestmark = pytest.mark.usefixtures("one_thread")

Golden = Callable[[str], dict[str, Tensor]]
CPU = torch.device("cpu")


def run(network: PackedNetwork, noise: Latents, *, sampler: str, steps: int) -> Latents:
    return denoise(
        network,
        noise=noise,
        plan=plan_sigmas(
            Schedule.SIMPLE, steps=steps, shift_video=12.0, shift_audio=3.0, conventions=COMFYUI
        ),
        sampler=Sampler(sampler),
        conventions=COMFYUI,
        compute_dtype=network.transformer.compute_dtype,
        on_progress=lambda event: None,
        cancelled=lambda: False,
    ).latents


@pytest.fixture
def run_recorded(
    golden: Golden,
    golden_transformer: Callable[..., H3Transformer],
    recorded_conditions: Callable[[dict[str, Tensor], str], list[Any]],
    condition_rows: Callable[..., ConditionRows],
) -> Callable[..., Latents]:
    """Run a case of the transformer files from its seed and conditions."""
    inputs = golden("transformer_full")

    def start(recorded: Recorded, dtype: torch.dtype, *, device: torch.device = CPU) -> Latents:
        case, seed = recorded.case, recorded.seed
        given, text = recorded_conditions(inputs, f"{case}.in."), inputs[f"{case}.in.text"][0]
        _, frames, height, width = inputs[f"{case}.in.video"][0].shape
        audio = inputs[f"{case}.in.audio"].shape[3]
        shape = LatentShape(frames=frames, height=height, width=width, audio=audio)
        rows = condition_rows(given, film=shape, seed=seed, conventions=COMFYUI)
        network = PackedNetwork(
            golden_transformer(recorded.weights, dtype).to(device),
            text.to(device),
            layout=pack(
                len(text),
                shape,
                text_tags=inputs[f"{case}.in.text_tags"],
                conditions=[each.shape for each in given],
            ),
            shape=shape,
            attention=resolve_attention("auto", device)[1],
            conventions=COMFYUI,
            conditions=ConditionRows(video=rows.video.to(device), audio=rows.audio.to(device)),
        )
        noise = draw_noise(shape, seed=seed, conventions=COMFYUI).film.to(device)
        return run(network, noise, sampler=recorded.sampler, steps=recorded.steps).to(CPU)

    return start


class Recorded(NamedTuple):
    """A sampling run of ComfyUI's."""

    weights: str
    case: str
    sampler: str
    steps: int
    seed: int

    def end(self, golden: Golden, dtype: str) -> Latents:
        prefix = f"{self.weights}.{self.case}.{self.sampler}{self.steps}.{dtype}"
        numbers = golden("sampler")
        return ours(numbers[f"{prefix}.out_video"], numbers[f"{prefix}.out_audio"])


def ours(video: Tensor, audio: Tensor) -> Latents:
    """From ComfyUI's [1, 24, T, lh, lw] and [1, 32, 2, Ta]."""
    return Latents(video=video[0], audio=audio[0].transpose(0, 1))


def worst(found: Latents, wanted: Latents) -> float:
    return max(
        float((found.video - wanted.video).abs().max()), float((found.audio - wanted.audio).abs().max())
    )


RUNS = pytest.mark.parametrize(
    "recorded",
    [
        Recorded("pruned", "fl2va", "euler", 4, 2**53 - 1),
        Recorded("full", "ref2va", "euler", 3, 5),
        Recorded("full", "ref2va", "res_multistep", 5, 5),
    ],
    ids=lambda recorded: f"{recorded.case}-{recorded.sampler}",
)


@RUNS
def test_recorded_conditions_lead_to_comfyuis_latents_in_float32(
    golden: Golden, run_recorded: Callable[..., Latents], recorded: Recorded
) -> None:
    found = run_recorded(recorded, torch.float32)

    assert worst(found, recorded.end(golden, "fp32")) < 2e-5


@RUNS
def test_in_bfloat16_they_stay_as_close_as_bfloat16_does_to_float32(
    golden: Golden,
    run_recorded: Callable[..., Latents],
    relative_l2: Callable[[Tensor, Tensor], float],
    recorded: Recorded,
) -> None:
    found = run_recorded(recorded, torch.bfloat16)

    wanted, exact = recorded.end(golden, "bf16"), recorded.end(golden, "fp32")
    assert relative_l2(found.video, wanted.video) < 2 * relative_l2(wanted.video, exact.video)
    assert relative_l2(found.audio, wanted.audio) < 2 * relative_l2(wanted.audio, exact.audio)


@pytest.mark.gpu
@RUNS
def test_a_gpu_leads_them_to_comfyuis_latents_too(
    golden: Golden, run_recorded: Callable[..., Latents], recorded: Recorded
) -> None:
    found = run_recorded(recorded, torch.float32, device=torch.device("cuda"))

    assert worst(found, recorded.end(golden, "fp32")) < 2e-5


def stand_in_film(pieces: Iterable[NDArray[np.uint8]]) -> Tensor:
    """The record's video VAE: block means of the first frame of each span, coloured channel by channel."""
    frames = torch.from_numpy(np.concatenate(list(pieces))).float() / 255 * 2 - 1  # [F, H, W, 3]
    starts = [0]
    while len(frames) > 1 and (start := starts[-1] + PIXEL_FRAMES_PER_LATENT[(len(starts) - 1) % 5]) < len(
        frames
    ):
        starts.append(start)
    blocks = frames[starts].unflatten(2, (-1, 16)).unflatten(1, (-1, 16)).mean(dim=(2, 4))  # [t, lh, lw, 3]
    channels = [blocks[..., c % 3] * (0.5 + c / 24) for c in range(24)]
    return torch.stack(channels)


def stand_in_sound(samples: Tensor) -> Tensor:
    """The record's audio VAE: means of 800 samples, times the channel's number."""
    whole = fill_latents(samples, hop=800, remainder="centre_crop")
    return torch.stack([whole.unflatten(1, (-1, 800)).mean(2) * (c + 1) for c in range(32)], dim=1)


class StandInText:
    """The record's text encoder: a sine for a token, a cosine of its patches' mean for a vision token."""

    def encode_vision(self, sight: Sight) -> VisionRows:
        patches = patch_rows(sight, device=CPU, dtype=torch.float32)
        means = patches.reshape(sight.num_tokens, -1).mean(1, keepdim=True)
        return VisionRows(merged=torch.cos(3 * means + 0.5 * torch.arange(20)), deepstack=())

    def encode(self, presentation: Presentation, *, see: See) -> Tensor:
        ids = torch.tensor(presentation.ids)[:, None]
        rows = torch.sin((ids % 97 + 1) * (torch.arange(20) + 1) * 0.37)
        for block in presentation.blocks:
            rows[block.start : block.stop] = see(block.sight).merged
        return rows


def fitted(pixels: Tensor, size: tuple[int, int]) -> NDArray[np.uint8]:
    return np.array(fit(Image.fromarray(pixels.numpy()), size, how="stretch")[0])


def recorded_media(numbers: dict[str, Tensor]) -> list[PreparedMedia]:
    """The record's files as `media` makes them ready."""
    pictures = [
        small.picture(
            f"references[{n}]",
            pixels=fitted(
                pixels,
                picture_size(
                    pixels.shape[1], pixels.shape[0], canvas=(96, 64), size="match", conventions=COMFYUI
                ),
            ),
        )
        for n, pixels in enumerate((numbers["in.ref0"][0], numbers["in.ref1"][0]))
    ]
    own = small.sound("references[2]", values=numbers["in.sound0"][0].numpy())
    clips = []
    for n, sound in ((0, own), (1, None)):
        frames = numbers[f"in.video{n}"]
        seen, _ = clip_frames(len(frames), film_frames=22, conventions=COMFYUI)
        size = clip_size(frames.shape[2], frames.shape[1], conventions=COMFYUI)
        pixels = np.stack([fitted(frame, size) for frame in frames[:seen]])
        clips.append(small.clip(f"references[{n + 2}]", pixels=pixels, sound=sound))
    voice = small.sound("references[4]", values=numbers["in.audio0"][0].expand(2, -1).numpy())
    return [*pictures, *clips, voice]


@pytest.mark.parametrize(("sampler", "steps"), [("euler", 4), ("res_multistep", 5)])
def test_recorded_media_lead_to_comfyuis_latents(
    golden: Golden,
    golden_transformer: Callable[..., H3Transformer],
    tokenizer: Tokenizer,
    sampler: str,
    steps: int,
) -> None:
    numbers = golden("pipeline")
    media = recorded_media(numbers)
    job = build_job(
        {
            "prompt": "<Picture 1> meets <Video 1>",
            **{"width": 96, "height": 64, "frames": 22, "seed": 4, "checkpoint": "golden"},
            **{"sampler": sampler, "steps": steps},
            "references": [{"kind": each.kind, "source": f"references/{each.sha256}.bin"} for each in media],
        }
    )

    found = conditioned(
        job,
        media,
        transformer=golden_transformer("pruned"),
        tokenizer=tokenizer,
        text_encoder=StandInText(),
        encode_film=stand_in_film,
        encode_sound=stand_in_sound,
    )

    assert list(found.presentation.ids) == numbers["ref2va.ids"].tolist()
    assert list(found.presentation.tags) == numbers["ref2va.tags"].tolist()
    torch.testing.assert_close(found.text, numbers["ref2va.text"][0], rtol=0, atol=1e-5)
    for n, each in enumerate(found.conditions):
        for name, latents in (("latent", each.video), ("audio_latent", each.audio)):
            wanted = numbers.get(f"ref2va.ref{n}.{name}")
            assert (latents is None) == (wanted is None)
            if latents is not None and wanted is not None:
                wanted = wanted[0] if name == "latent" else wanted[0].transpose(0, 1)
                torch.testing.assert_close(latents, wanted, rtol=0, atol=1e-6)
    layout = found.network.layout
    assert torch.equal(layout.position_ids.float(), numbers["ref2va.position_ids"].float())
    starts = [[each.start, each.stop] for each in layout.segments]
    assert starts == numbers["ref2va.segments"][:, :2].tolist()
    prefix = f"ref2va.{sampler}{steps}"
    assert worst(denoised(job, found), ours(numbers[f"{prefix}.video"], numbers[f"{prefix}.audio"])) < 3e-5
