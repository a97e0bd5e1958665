"""The denoising loop: noise in, clean latents out, one network evaluation a step.

The state is float32 and stays on its device; what rounds to the network's dtype, and where, is the
conventions' choice. The network is any function from latents and timesteps to velocities, so a recorded run
can stand in for the transformer and a cache can wrap it. Knows no rows, rotary tables or prompts.

Shapes: as in `latents.py`; K evaluations.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from model.base import OnProgress
from model.carry import carried_velocity, put_down, uncarry
from model.errors import GenerationCancelledError, OutputRejectedError
from model.latents import Latents
from model.sampling import take_step
from model.sigmas import SigmaPlan, Timesteps
from queue_schemas.conventions import Conventions
from queue_schemas.events import ProgressEvent, Stage
from queue_schemas.jobs import Sampler


class Network(Protocol):
    """What the loop needs of the transformer."""

    def __call__(self, latents: Latents, timesteps: Timesteps) -> Latents:
        """Return the data-ward velocities (x0 - noise) of both streams, shaped like `latents`, any dtype."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Denoised:
    """Clean latents and what they took."""

    latents: Latents
    """float32, on the device that the noise was on."""
    step_seconds: list[float]
    """[K]."""


@torch.no_grad()
def denoise(
    network: Network,
    *,
    noise: Latents,
    plan: SigmaPlan,
    sampler: Sampler,
    conventions: Conventions,
    compute_dtype: torch.dtype,
    on_progress: OnProgress,
    cancelled: Callable[[], bool],
) -> Denoised:
    """Walk `noise` down `plan` to sigma 0.

    `cancelled` is asked before every step; a progress event follows each. Raises GenerationCancelledError,
    and OutputRejectedError when the result is not finite.
    """
    state, previous_x0, step_seconds = noise.to(torch.float32), None, []
    for step in range(plan.steps):
        if cancelled():
            raise GenerationCancelledError(step=step)
        began = time.monotonic()
        x0 = estimate_x0(
            network, state, plan=plan, step=step, conventions=conventions, compute_dtype=compute_dtype
        )
        state = move(
            state, x0, previous_x0=previous_x0, plan=plan, step=step, sampler=sampler, conventions=conventions
        )
        previous_x0 = x0
        if state.video.is_cuda:
            torch.cuda.synchronize(state.video.device)  # for the clock below; nothing else waits
        step_seconds.append(time.monotonic() - began)
        on_progress(
            ProgressEvent(stage=Stage.DENOISE, step=step + 1, steps=plan.steps, seconds=step_seconds[-1])
        )
    if plan.carry is not None:
        state = Latents(video=state.video, audio=put_down(state.audio, plan.carry))
    refuse_non_finite(state)
    return Denoised(latents=state, step_seconds=step_seconds)


def estimate_x0(
    network: Network,
    state: Latents,
    *,
    plan: SigmaPlan,
    step: int,
    conventions: Conventions,
    compute_dtype: torch.dtype,
) -> Latents:
    """Evaluate the network once and return the clean state it implies, float32; carried audio stays so."""
    seen = state.to(compute_dtype) if conventions.latents_in_compute_dtype else state
    if plan.carry is not None:
        seen = Latents(video=seen.video, audio=uncarry(seen.audio, plan.carry, step=step))
    velocity = network(seen, plan.timesteps(step)).to(
        compute_dtype if conventions.velocity_in_compute_dtype else torch.float32
    )
    audio = velocity.audio
    if plan.carry is not None:
        audio = carried_velocity(audio, seen.audio, carry=plan.carry, step=step)
    return Latents(
        video=state.video + plan.video.x0_sigmas[step] * velocity.video.float(),
        audio=state.audio + plan.audio.x0_sigmas[step] * audio.float(),
    )


def move(
    state: Latents,
    x0: Latents,
    *,
    previous_x0: Latents | None,
    plan: SigmaPlan,
    step: int,
    sampler: Sampler,
    conventions: Conventions,
) -> Latents:
    """Return the state one step further down; `previous_x0` is the last step's, None at the first."""
    form = conventions.euler_form
    return Latents(
        video=take_step(
            sampler,
            state.video,
            x0=x0.video,
            previous_x0=None if previous_x0 is None else previous_x0.video,
            sigmas=plan.video.sigmas,
            step=step,
            euler_form=form,
        ),
        audio=take_step(
            sampler,
            state.audio,
            x0=x0.audio,
            previous_x0=None if previous_x0 is None else previous_x0.audio,
            sigmas=plan.audio.sigmas,
            step=step,
            euler_form=form,
        ),
    )


def refuse_non_finite(latents: Latents) -> None:
    """Raise OutputRejectedError unless every value is finite."""
    finite = torch.stack([latents.video.isfinite().all(), latents.audio.isfinite().all()]).tolist()
    for what, fine in zip(("video latents", "audio latents"), finite, strict=True):
        if not fine:
            raise OutputRejectedError(what)
