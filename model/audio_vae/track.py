"""What happens to a decoded waveform before it is a film's track: the loudness rule, and the exact length.

In this order, as in ComfyUI: the rule measures the whole waveform, the trim comes with the film.

Shapes: a waveform [2, N].
"""

import torch.nn.functional as F
from torch import Tensor

from queue_schemas.geometry import AUDIO_HOP_SAMPLES


def limit_loudness(waveform: Tensor) -> Tensor:
    """Attenuate until five standard deviations over both channels are at most 1; never amplify.

    Source: ComfyUI's audio decode node. diffusers has no such rule.
    """
    spread = 5.0 * waveform.std()  # unbiased, over channels and samples
    return waveform / spread.clamp(min=1.0)


def fit_length(waveform: Tensor, num_samples: int) -> Tensor:
    """Cut the waveform to `num_samples`, or fill it up with silence.

    Latents come in steps of 800 samples, so a track is at most half a step (400) off its film. A whole step
    or more missing is no rounding but a wrong latent count, and refused.
    """
    missing = num_samples - waveform.shape[-1]
    if missing >= AUDIO_HOP_SAMPLES:
        raise ValueError(f"a waveform of {waveform.shape[-1]} samples is too short for {num_samples}")
    return F.pad(waveform, (0, max(missing, 0)))[..., :num_samples]
