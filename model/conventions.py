"""`Conventions`: every choice on which ComfyUI and diffusers disagree, as one frozen value.

No other place decides any of them. `comfyui` is the product's oracle, `diffusers` that of the parity tests.
The choices that only references touch join this class together with references.
Sources: ComfyUI 783545f with the tiling of 19315e86; diffusers 0.42.1.
"""

from dataclasses import dataclass
from typing import Literal

from queue_schemas.jobs import ConventionsName


@dataclass(frozen=True, slots=True, kw_only=True)
class Conventions:
    """One choice per field; the comment says what the other value means."""

    audio_clock: Literal["carried", "own"]
    """`carried`: the sampler sees one schedule, audio travels scaled by sigma_video / sigma_audio.
    `own`: audio steps on its own grid."""
    audio_noise_layout: Literal["latent", "rows"]
    """Which way the flat noise fills the audio: [32, 2, Ta], or [2 * Ta, 32] rows."""
    timestep_via_1000: bool
    """Send sigma * 1000 through float32 and back, which may move it by one ulp, as ComfyUI does."""
    euler_form: Literal["velocity", "blend"]
    """`velocity`: x + (x - x0) / sigma * (next - sigma). `blend`: r x + (1 - r) x0 with r = next / sigma."""
    latents_in_compute_dtype: bool
    """Round the latents to the network's dtype before the float32 patch projection."""
    velocity_in_compute_dtype: bool
    """Round the float32 heads' output to the network's dtype."""
    time_embed_in_compute_dtype: bool
    """Round the time embedding before its second SiLU (full layout), not after it."""
    tile_seam: Literal["blended", "raw"]
    """Neighbour strips of the video VAE's tiles: after their own blending, or as decoded."""
    uint8_rounding: Literal["truncate", "round"]
    prompt_escapes: bool
    r"""Turn `\(` into `(`, `\)` into `)`, and tokenise the text after `embedding:` apart."""
    empty_prompt_pad: bool
    """An empty prompt becomes one pad token instead of no row at all."""
    audio_loudness_limit: bool
    """Attenuate a sound track whose five standard deviations exceed 1, as ComfyUI's decode node does."""


COMFYUI = Conventions(
    audio_clock="carried",
    audio_noise_layout="latent",
    timestep_via_1000=True,
    euler_form="velocity",
    latents_in_compute_dtype=True,
    velocity_in_compute_dtype=True,
    time_embed_in_compute_dtype=True,
    tile_seam="blended",
    uint8_rounding="truncate",
    prompt_escapes=True,
    empty_prompt_pad=True,
    audio_loudness_limit=True,
)
DIFFUSERS = Conventions(
    audio_clock="own",
    audio_noise_layout="rows",
    timestep_via_1000=False,
    euler_form="blend",
    latents_in_compute_dtype=False,
    velocity_in_compute_dtype=False,
    time_embed_in_compute_dtype=False,
    tile_seam="raw",
    uint8_rounding="round",
    prompt_escapes=False,
    empty_prompt_pad=False,
    audio_loudness_limit=False,
)
PRESETS = {ConventionsName.COMFYUI: COMFYUI, ConventionsName.DIFFUSERS: DIFFUSERS}
