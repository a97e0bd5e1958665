"""The audio carry: audio travels as y = (sigma_video / sigma_audio) * x, so one schedule serves both streams.

On the video's sigmas y is a plain flow whose clean end is g = shift_video / shift_audio times the clean
audio; at sigma 1 it is the noise itself. An Euler step of y is exactly an audio step on audio's own grid; a
multistep one is not, because the log-sigma distances differ. The order and dtype of every rounding is
ComfyUI's (783545f), signs turned data-ward; in bfloat16 they cost the audio about 1 % of its scale after four
steps. Knows no sampler and no network.

Shapes: as in `latents.py`.
"""

from torch import Tensor

from model.sigmas import AudioCarry


def uncarry(carried: Tensor, carry: AudioCarry, *, step: int) -> Tensor:
    """Return the audio as the network sees it, in the dtype of `carried`."""
    return carried * carry.scale[step].to(carried.dtype)


def carried_velocity(velocity: Tensor, audio: Tensor, *, carry: AudioCarry, step: int) -> Tensor:
    """Return the data-ward velocity of y from that of x, in the dtype of `velocity`.

    `audio` is what the network saw. Each product and the sum round on their own, hence two statements.
    """
    pull = (carry.ratio - 1) * audio.to(velocity.dtype)
    return pull + carry.gain[step].to(velocity.dtype) * velocity


def put_down(carried: Tensor, carry: AudioCarry) -> Tensor:
    """Return the clean audio latents after the last step."""
    return carried * (1 / carry.ratio)
