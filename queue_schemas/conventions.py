"""`Conventions`: every choice on which ComfyUI and diffusers disagree, as one frozen value.

No other place decides any of them. `comfyui` is the product's oracle, `diffusers` that of the parity tests.
Torch-free, because the client counts what references cost before anything runs.
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
    condition_posterior: Literal["mean", "sample_fp16"]
    """What the video VAE's encoder gives: the mean, or a sample (a generator of its own, seed 42) through
    float16."""
    condition_noise: Literal["restarted_rows", "sequential_latents"]
    """`restarted_rows`: each visual condition's 0.1 % of noise starts the seed anew, as packed rows.
    `sequential_latents`: the conditions draw one after another before the film's own noise, as latents."""
    condition_mix_in_float64: bool
    """Mix a condition with its noise by 0.999 and 1 - 0.999 as doubles, not as float32."""
    keyframe_fit: Literal["crop_then_resize", "resize_then_crop"]
    """How a keyframe that must not be distorted fills the canvas."""
    lone_last_frame: Literal["cropped", "stretched"]
    """A last frame without a first: cropped to the canvas' shape, or stretched as a first frame is."""
    picture_scaling: Literal["match_or_max", "short_edge_2048"]
    """Reference pictures: shrunk to the film's area or to 2048 pixels as the job says, or always brought to a
    short edge of 2048, enlarging too."""
    small_clips_keep_size: bool
    """A reference clip smaller than its canvas keeps its size, rounded to 32, instead of being enlarged."""
    reference_order: Literal["by_kind", "request"]
    """Pictures, clips, sounds, each as asked; or all as asked. Labels and clocks follow it."""
    clip_seen: Literal["snapped", "whole"]
    """Whether the text encoder sees a clip after or before it is cut to 17n + 5 frames for the VAE."""
    sound_cut_to_film: bool
    """Cut a reference sound to the film's length."""
    sound_filter_in_float32: bool
    """Compute the taps that bring a sound to 32 kHz in float32, not in float64: up to 4e-5 apart."""
    sound_remainder: Literal["centre_crop", "zero_pad"]
    """What becomes of samples that do not fill an audio latent."""
    vision_bounds: Literal["per_pair", "whole_clip"]
    """Pixel bounds of what the vision tower sees: 3,136 to 12,845,056 a picture or pair of frames, or
    65,536 to 16,777,216 a picture and 4,096 to 25,165,824 a clip."""


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
    condition_posterior="mean",
    condition_noise="restarted_rows",
    condition_mix_in_float64=True,
    keyframe_fit="crop_then_resize",
    lone_last_frame="cropped",
    picture_scaling="match_or_max",
    small_clips_keep_size=True,
    reference_order="by_kind",
    clip_seen="snapped",
    sound_cut_to_film=False,
    sound_filter_in_float32=True,
    sound_remainder="centre_crop",
    vision_bounds="per_pair",
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
    condition_posterior="sample_fp16",
    condition_noise="sequential_latents",
    condition_mix_in_float64=False,
    keyframe_fit="resize_then_crop",
    lone_last_frame="stretched",
    picture_scaling="short_edge_2048",
    small_clips_keep_size=False,
    reference_order="request",
    clip_seen="whole",
    sound_cut_to_film=True,
    sound_filter_in_float32=False,
    sound_remainder="zero_pad",
    vision_bounds="whole_clip",
)
PRESETS = {ConventionsName.COMFYUI: COMFYUI, ConventionsName.DIFFUSERS: DIFFUSERS}
