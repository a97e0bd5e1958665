"""`ModulationCache`: a schedule's modulations, computed before its first step and kept for the next jobs.

They follow from the timesteps, one rounding convention and the LoRAs of AdaLN alone. The full layout's AdaLN
is 13 of the transformer's 33 billion weights: it is read once for a schedule, and not at all for one that is
here. One timestep takes 9.7 MB at the released size in bfloat16; a t2va step has two of them, one with
pictures and sounds as references four.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from model.dit import H3Transformer, Modulation
from model.lora.branch import Strengths
from model.packing import Clock, distinct_timesteps
from model.sigmas import SigmaPlan, Timesteps
from queue_schemas.conventions import Conventions

LIMIT_BYTES: Final = 1 << 30
"""Room for two t2va schedules of 28 steps; one of more than 55 is computed for each job."""

Modulations = Mapping[Timesteps, Modulation]


class ModulationCache:
    """Keeps what the last schedules needed, up to a number of bytes, where the transformer lies."""

    def __init__(self, transformer: H3Transformer, *, limit_bytes: int = LIMIT_BYTES) -> None:
        self._transformer, self._limit_bytes = transformer, limit_bytes
        self._kept: dict[tuple[object, ...], Modulations] = {}  # the one used last comes last

    def of(
        self, plan: SigmaPlan, *, clocks: Sequence[Clock], conventions: Conventions, loras: Strengths
    ) -> Modulations:
        """Return the modulation of each evaluation of a plan.

        `clocks` are those that a request's rows run at, `loras` those that change AdaLN now.
        """
        steps = tuple(plan.timesteps(step) for step in range(plan.steps))
        key = (steps, tuple(clocks), conventions.time_embed_in_compute_dtype, loras)
        found = self._kept.pop(key, None) or self._compute(steps, clocks, conventions)
        self._kept[key] = found
        while self.num_bytes > self._limit_bytes:
            del self._kept[next(iter(self._kept))]
        return found

    @property
    def num_bytes(self) -> int:
        return sum(each.num_bytes for schedule in self._kept.values() for each in schedule.values())

    def _compute(
        self, steps: tuple[Timesteps, ...], clocks: Sequence[Clock], conventions: Conventions
    ) -> Modulations:
        device = self._transformer.rope.inv_freq.device
        evaluations = [
            distinct_timesteps(clocks, t_video=step.video, t_audio=step.audio)[0].to(device) for step in steps
        ]
        return dict(zip(steps, self._transformer.modulate(evaluations, conventions), strict=True))
