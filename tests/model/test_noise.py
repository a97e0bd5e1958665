"""Initial noise against ComfyUI's recorded draws and diffusers' documented check values."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from diffusers import MiniMaxH3Scheduler
from safetensors.torch import load_file
from torch import Tensor

from model.noise import draw_noise, noise_condition
from model.patches import patchify_video
from queue_schemas.conventions import COMFYUI, DIFFUSERS
from queue_schemas.geometry import LatentShape, latent_shape

GOLDEN = Path(__file__).parents[1] / "golden" / "noise.safetensors"
SMALL = LatentShape(frames=2, height=4, width=6, audio=8)


@pytest.mark.parametrize("seed", [0, 1, 42, 2**53 - 1, 2**63 - 1])
def test_a_seed_draws_exactly_comfyuis_noise(seed: int) -> None:
    golden = load_file(GOLDEN)

    noise = draw_noise(SMALL, seed=seed, conventions=COMFYUI).film

    assert torch.equal(noise.video, golden[f"small.seed{seed}.video"][0])
    assert torch.equal(noise.audio, golden[f"small.seed{seed}.audio"][0].transpose(0, 1))


@pytest.mark.parametrize(("width", "height"), [(960, 544), (1344, 768)])
def test_a_full_size_draw_is_exactly_comfyuis(width: int, height: int) -> None:
    golden = load_file(GOLDEN)
    shape = latent_shape(frames=124, height=height, width=width)

    noise = draw_noise(shape, seed=42, conventions=COMFYUI).film

    flat = {"video": noise.video.flatten(), "audio": noise.audio.transpose(0, 1).flatten()}
    for part, values in flat.items():
        prefix = f"big.{width}x{height}x124.seed42.{part}"
        assert torch.equal(values[:64], golden[f"{prefix}_first"])
        assert torch.equal(values[-64:], golden[f"{prefix}_last"])
        # Sums in float64: any value moved or changed shows, the order of the summation does not.
        torch.testing.assert_close(
            values.double().sum()[None], golden[f"{prefix}_sum64"], rtol=1e-9, atol=1e-7
        )
        torch.testing.assert_close(
            values.double().abs().sum()[None], golden[f"{prefix}_abssum64"], rtol=1e-12, atol=0
        )


def test_diffusers_audio_noise_fills_rows_of_the_same_stream() -> None:
    shape = latent_shape(frames=124, height=544, width=960)

    comfyui = draw_noise(shape, seed=42, conventions=COMFYUI).film
    diffusers = draw_noise(shape, seed=42, conventions=DIFFUSERS).film

    assert torch.equal(comfyui.video, diffusers.video)
    rows = diffusers.audio.transpose(1, 2).reshape(-1, 32)
    assert torch.equal(rows.flatten(), comfyui.audio.transpose(0, 1).flatten())
    first = torch.tensor([1.92691529, 1.48728406, 0.90071720, -2.10552096])
    torch.testing.assert_close(diffusers.video.flatten()[:4], first, rtol=0, atol=1e-8)
    first = torch.tensor([1.31801796, 0.86390734, 0.66254854, 0.68267196])
    torch.testing.assert_close(rows[0, :4], first, rtol=0, atol=1e-8)


def test_noise_has_the_runtimes_one_layout_and_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()

    for conventions in (COMFYUI, DIFFUSERS):
        noise = draw_noise(SMALL, seed=3, conventions=conventions).film

        assert noise.video.shape == (24, 2, 4, 6)
        assert noise.audio.shape == (2, 32, 8)
        assert noise.audio.is_contiguous()
        assert noise.video.dtype == noise.audio.dtype == torch.float32
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("seed", [0, 7, 2**53 - 1])
def test_conditions_are_noised_exactly_as_comfyuis(
    golden: Callable[[str], dict[str, Tensor]], seed: int
) -> None:
    numbers = golden("noise")
    latents = [numbers[f"cond.seed{seed}.latent{n}"][0] for n in range(2)]
    shapes = [LatentShape(frames=each.shape[1], height=4, width=6, audio=0) for each in latents]

    noise = draw_noise(SMALL, seed=seed, conventions=COMFYUI, conditions=shapes)
    rows = [
        noise_condition(patchify_video(each), own, conventions=COMFYUI)
        for each, own in zip(latents, noise.conditions, strict=True)
    ]

    assert torch.equal(torch.cat(rows), numbers[f"cond.seed{seed}.rows"])
    alone = draw_noise(SMALL, seed=seed, conventions=COMFYUI)
    assert torch.equal(noise.film.video, alone.film.video)  # whose stream they leave alone
    assert torch.equal(noise.film.audio, alone.film.audio)


def test_conditions_draw_before_the_film_in_diffusers() -> None:
    generator = torch.Generator().manual_seed(11)
    shapes = [LatentShape(frames=t, height=4, width=w, audio=0) for t, w in ((1, 6), (2, 4))]
    latents = [torch.randn(24, s.frames, 4, s.width, generator=generator) for s in shapes]
    generator.manual_seed(5)
    wanted = [
        MiniMaxH3Scheduler().scale_noise(each, 0.999, torch.randn(each.shape, generator=generator))
        for each in latents
    ]
    video = torch.randn(24, 2, 4, 6, generator=generator)

    noise = draw_noise(SMALL, seed=5, conventions=DIFFUSERS, conditions=shapes)

    for each, own, expected in zip(latents, noise.conditions, wanted, strict=True):
        found = noise_condition(patchify_video(each), own, conventions=DIFFUSERS)
        assert torch.equal(found, patchify_video(expected))
    assert torch.equal(noise.film.video, video)
