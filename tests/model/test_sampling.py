"""Samplers, the audio carry and the loop, replaying ComfyUI's recorded network outputs bit for bit."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from diffusers import MiniMaxH3Scheduler
from safetensors.torch import load_file
from torch import Tensor

from model.denoise import Network, denoise, estimate_x0, move
from model.errors import GenerationCancelledError, OutputRejectedError
from model.latents import Latents
from model.noise import draw_noise
from model.sigmas import SigmaPlan, Timesteps, plan_sigmas
from queue_schemas.conventions import COMFYUI, DIFFUSERS, Conventions
from queue_schemas.events import ProgressEvent, Stage
from queue_schemas.geometry import LatentShape
from queue_schemas.jobs import Sampler, Schedule

GOLDEN = load_file(Path(__file__).parents[1] / "golden" / "sampler.safetensors")
SMALL = LatentShape(frames=2, height=4, width=6, audio=8)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
RUNS = [(Sampler.EULER, 4), (Sampler.RES_MULTISTEP, 6)]


def ours(video: Tensor, audio: Tensor) -> Latents:
    """From ComfyUI's [1, 24, T, lh, lw] and [1, 32, 2, Ta]."""
    return Latents(video=video[0], audio=audio[0].transpose(0, 1))


def recorded(prefix: str, part: str) -> Latents:
    return ours(GOLDEN[f"{prefix}.{part}_video"], GOLDEN[f"{prefix}.{part}_audio"])


def recorded_state(prefix: str) -> Latents:
    """From the flat [video | audio] state."""
    video, audio = GOLDEN[f"{prefix}.x_packed"].flatten().split([24 * 2 * 4 * 6, 64 * 8])
    return ours(video.view(1, 24, 2, 4, 6), audio.view(1, 32, 2, 8))


def same(got: Latents, want: Latents) -> bool:
    return torch.equal(got.video, want.video) and torch.equal(got.audio, want.audio)


class Recording:
    """A network that answers with a recorded run's outputs and keeps what it was shown."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.seen: list[Latents] = []
        self.timesteps: list[Timesteps] = []

    def __call__(self, latents: Latents, timesteps: Timesteps) -> Latents:
        step = len(self.seen)
        self.seen.append(latents)
        self.timesteps.append(timesteps)
        # ComfyUI's network output is noise-ward.
        return recorded(f"{self.run}.step{step}", "model_out").map(torch.neg)


def comfyui_plan(steps: int) -> SigmaPlan:
    return plan_sigmas(Schedule.SIMPLE, steps=steps, shift_video=12.0, shift_audio=3.0, conventions=COMFYUI)


def run(
    network: Network,
    *,
    steps: int,
    seed: int = 42,
    sampler: Sampler = Sampler.EULER,
    conventions: Conventions = COMFYUI,
    compute_dtype: torch.dtype = torch.float32,
    on_progress: Callable[[ProgressEvent], None] = lambda event: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Latents:
    schedule = Schedule.SIMPLE if conventions.audio_clock == "carried" else Schedule.LINEAR
    plan = plan_sigmas(schedule, steps=steps, shift_video=12.0, shift_audio=3.0, conventions=conventions)
    return denoise(
        network,
        noise=draw_noise(SMALL, seed=seed, conventions=conventions).film,
        plan=plan,
        sampler=sampler,
        conventions=conventions,
        compute_dtype=compute_dtype,
        on_progress=on_progress,
        cancelled=cancelled,
    ).latents


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize(("sampler", "steps"), RUNS)
def test_every_recorded_step_is_replayed_to_the_last_bit(sampler: Sampler, steps: int, dtype: str) -> None:
    name = f"pruned.t2va.{sampler.value}{steps}.{dtype}"
    plan = comfyui_plan(steps)
    assert torch.equal(plan.video.sigmas, GOLDEN[f"{name}.sigmas"])
    x0: Latents | None = None

    for step in range(steps - 1):
        state, network = recorded_state(f"{name}.step{step}"), Recording(name)
        network.seen = [state] * step  # so that it answers with this step's output
        previous_x0, x0 = (
            x0,
            estimate_x0(
                network,
                state,
                plan=plan,
                step=step,
                conventions=COMFYUI,
                compute_dtype=DTYPES[dtype],
            ),
        )
        moved = move(
            state,
            x0,
            previous_x0=previous_x0,
            plan=plan,
            step=step,
            sampler=sampler,
            conventions=COMFYUI,
        )

        assert same(network.seen[-1], recorded(f"{name}.step{step}", "model_in")), step
        assert same(moved, recorded_state(f"{name}.step{step + 1}")), step


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize(("sampler", "steps"), RUNS)
def test_a_whole_recorded_run_is_replayed_from_its_seed_to_the_last_bit(
    sampler: Sampler, steps: int, dtype: str
) -> None:
    name = f"pruned.t2va.{sampler.value}{steps}.{dtype}"
    network = Recording(name)

    latents = run(network, steps=steps, sampler=sampler, compute_dtype=DTYPES[dtype])

    for step, seen in enumerate(network.seen):
        assert same(seen, recorded(f"{name}.step{step}", "model_in")), step
    assert same(latents, recorded(name, "out"))
    assert network.timesteps[0] == (0.0, 0.0)


def smooth_network(latents: Latents, timesteps: Timesteps) -> Latents:
    """Some velocity that depends on everything it is given."""
    return Latents(
        video=torch.sin(latents.video * 1.7 + timesteps.video),
        audio=torch.cos(latents.audio * 1.3 - timesteps.audio),
    )


@pytest.mark.parametrize("steps", [1, 2, 8, 20, 49])
def test_the_diffusers_preset_equals_its_scheduler_to_the_last_bit(steps: int) -> None:
    video_scheduler, audio_scheduler = MiniMaxH3Scheduler(shift=12.0), MiniMaxH3Scheduler(shift=3.0)
    want = draw_noise(SMALL, seed=42, conventions=DIFFUSERS).film
    for scheduler in (video_scheduler, audio_scheduler):
        scheduler.set_timesteps(steps + 1)
    for video_t, audio_t in zip(video_scheduler.timesteps, audio_scheduler.timesteps, strict=True):
        velocity = smooth_network(want, Timesteps(float(video_t), float(audio_t)))
        want = Latents(
            video=video_scheduler.step(velocity.video, video_t, want.video, return_dict=False)[0],
            audio=audio_scheduler.step(velocity.audio, audio_t, want.audio, return_dict=False)[0],
        )

    got = run(smooth_network, steps=steps, conventions=DIFFUSERS)

    assert same(got, want)


def test_carried_and_own_audio_are_the_same_euler_path_in_float32() -> None:
    plan = plan_sigmas(Schedule.LINEAR, steps=20, shift_video=12.0, shift_audio=3.0, conventions=COMFYUI)
    common = {"compute_dtype": torch.float32, "on_progress": lambda _: None, "cancelled": lambda: False}
    noise = draw_noise(SMALL, seed=42, conventions=DIFFUSERS).film

    carried = denoise(
        smooth_network, noise=noise, plan=plan, sampler=Sampler.EULER, conventions=COMFYUI, **common
    ).latents
    own = run(smooth_network, steps=20, conventions=DIFFUSERS)

    torch.testing.assert_close(carried.audio, own.audio, rtol=0, atol=2e-5)
    torch.testing.assert_close(carried.video, own.video, rtol=0, atol=2e-5)


def test_two_res_multistep_steps_are_euler_and_more_are_not() -> None:
    for steps, equal in ((1, True), (2, True), (3, False)):
        euler = run(smooth_network, steps=steps)
        multistep = run(smooth_network, steps=steps, sampler=Sampler.RES_MULTISTEP)

        assert same(euler, multistep) is equal, steps


def test_a_seed_twice_is_bit_identical_and_another_seed_is_not() -> None:
    first, second = (run(smooth_network, steps=8) for _ in range(2))
    other = run(smooth_network, steps=8, seed=43)

    assert same(first, second)
    assert not torch.equal(first.video, other.video)


def test_each_step_ends_with_one_progress_event() -> None:
    events: list[ProgressEvent] = []

    run(smooth_network, steps=3, on_progress=events.append)

    assert [(event.stage, event.step, event.steps) for event in events] == [
        (Stage.DENOISE, step, 3) for step in (1, 2, 3)
    ]
    assert all(event.seconds > 0 for event in events)


def test_a_cancelled_run_stops_before_the_next_evaluation() -> None:
    events: list[ProgressEvent] = []

    with pytest.raises(GenerationCancelledError) as raised:
        run(smooth_network, steps=9, on_progress=events.append, cancelled=lambda: len(events) == 2)

    assert raised.value.step == 2
    assert len(events) == 2


@pytest.mark.parametrize("half", ["video", "audio"])
def test_latents_that_are_not_finite_are_refused_and_named(half: str) -> None:
    def broken(latents: Latents, timesteps: Timesteps) -> Latents:
        poisoned = getattr(latents, half).clone()
        poisoned.view(-1)[7] = torch.nan
        return replace(latents, **{half: poisoned})

    with pytest.raises(OutputRejectedError, match=f"{half} latents"):
        run(broken, steps=2)
