"""Sigma grids and plans against ComfyUI's recorded tables and diffusers' scheduler."""

from pathlib import Path

import pytest
import torch
from diffusers import MiniMaxH3Scheduler
from safetensors.torch import load_file

from model.errors import ScheduleError
from model.sigmas import linear_sigmas, plan_sigmas, simple_sigmas
from queue_schemas import limits
from queue_schemas.conventions import COMFYUI, DIFFUSERS, Conventions
from queue_schemas.jobs import Schedule

GOLDEN = Path(__file__).parents[1] / "golden" / "sigmas.safetensors"
TOLERANCE = 1.2e-7  # one ulp below 1; equal to the last bit where the same libm computed both


@pytest.mark.parametrize(("name", "shift_video"), [("shift12_3", 12.0), ("shift6_3", 6.0)])
def test_comfyui_plans_match_its_recorded_tables_at_every_step_count(name: str, shift_video: float) -> None:
    golden = load_file(GOLDEN)

    for steps in range(1, 51):
        plan = plan_sigmas(
            Schedule.SIMPLE, steps=steps, shift_video=shift_video, shift_audio=3.0, conventions=COMFYUI
        )

        want = {part: golden[f"{name}.simple{steps}.{part}"] for part in ("video", "t_video", "t_audio")}
        got = {
            "video": plan.video.sigmas,
            "t_video": plan.video.timesteps,
            "t_audio": plan.audio.timesteps,
        }
        for part, values in want.items():
            torch.testing.assert_close(got[part], values, rtol=0, atol=TOLERANCE, msg=f"{steps} {part}")
        assert plan.video.sigmas[0] == 1
        assert plan.video.sigmas[-1] == 0


@pytest.mark.parametrize("shift", [12.0, 3.0, 6.0])
@pytest.mark.parametrize("steps", [1, 2, 7, 20, 49, 100])
def test_diffusers_plans_equal_its_scheduler_to_the_last_bit(steps: int, shift: float) -> None:
    scheduler = MiniMaxH3Scheduler(shift=shift)
    scheduler.set_timesteps(steps + 1)

    plan = plan_sigmas(
        Schedule.LINEAR, steps=steps, shift_video=shift, shift_audio=shift, conventions=DIFFUSERS
    )

    for stream in (plan.video, plan.audio):
        assert torch.equal(stream.sigmas, scheduler.sigmas)
        assert torch.equal(stream.timesteps, scheduler.timesteps)
    assert plan.steps == scheduler.num_inference_steps == steps


def test_both_audio_clocks_tell_the_network_the_same_times() -> None:
    carried = plan_sigmas(Schedule.LINEAR, steps=20, shift_video=12.0, shift_audio=3.0, conventions=COMFYUI)

    own = plan_sigmas(Schedule.LINEAR, steps=20, shift_video=12.0, shift_audio=3.0, conventions=DIFFUSERS)

    torch.testing.assert_close(carried.audio.timesteps, own.audio.timesteps, rtol=0, atol=3e-7)
    torch.testing.assert_close(carried.video.timesteps, own.video.timesteps, rtol=0, atol=TOLERANCE)
    assert own.carry is None
    assert carried.carry is not None
    assert torch.equal(carried.audio.sigmas, carried.video.sigmas)


def test_the_two_schedules_agree_where_the_table_holds_the_grid_and_differ_elsewhere() -> None:
    gaps = {
        steps: float((simple_sigmas(steps, shift=12.0) - linear_sigmas(steps, shift=12.0)).abs().max())
        for steps in (1, 2, 4, 5, 8, 10, 20, 30, 40, 49)
    }

    assert all(gaps[steps] == 0 for steps in (1, 2, 4, 5, 8, 10, 20, 40))
    assert gaps[30] == pytest.approx(4.3e-3, abs=1e-4)
    assert gaps[49] == pytest.approx(4.7e-3, abs=1e-4)


@pytest.mark.parametrize("schedule", list(Schedule))
@pytest.mark.parametrize("conventions", [COMFYUI, DIFFUSERS])
def test_every_accepted_step_count_and_shift_has_strictly_falling_sigmas(
    schedule: Schedule, conventions: Conventions
) -> None:
    for steps in (1, 38, 76, limits.STEPS_MAX):
        for shift in (1e-3, 1.0, limits.SHIFT_MAX):
            plan = plan_sigmas(
                schedule, steps=steps, shift_video=shift, shift_audio=3.0, conventions=conventions
            )

            assert plan.steps == steps
            for stream in (plan.video, plan.audio):
                assert (stream.sigmas.diff() < 0).all()
                assert (stream.timesteps.diff() > 0).all()


def test_a_grid_that_repeats_a_sigma_is_refused() -> None:
    with pytest.raises(ScheduleError, match="take fewer steps or a shift nearer to 1"):
        plan_sigmas(Schedule.LINEAR, steps=100, shift_video=1e8, shift_audio=3.0, conventions=DIFFUSERS)
