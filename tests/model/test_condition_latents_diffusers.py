"""Under the diffusers preset, media lead to the latents of diffusers' own blocks, place by place."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import small_prepared as small
import torch
from conditioned import Conditioned, conditioned, denoised
from diffusers_twins import (
    audio_twins,
    run_step,
    text_components,
    video_encoder_like,
    video_vae_of_diffusers,
)
from PIL import Image
from small_qwen import SMALL, expected_shapes, loaded, random_weights

from media.prepared import PreparedClip, PreparedMedia, PreparedPicture
from model.audio_vae import encode_sound
from model.config import (
    AudioEncoderConfig,
    AudioVaeConfig,
    TransformerConfig,
    VideoEncoderConfig,
    VideoVaeConfig,
)
from model.latents import Latents
from model.packing import Stream, row_timesteps, stream_rows
from model.pipeline import plan_job
from model.text_encoder.tokenizer import Tokenizer
from model.video_vae import encode_clip
from model.video_vae.pixels import IMAGENET_MEAN, IMAGENET_STD
from queue_schemas.conventions import DIFFUSERS
from queue_schemas.jobs import Job, build_job

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning"),  # as diffusers builds its own
]

EVALUATIONS = 3
TRANSFORMER = TransformerConfig(
    hidden_size=48,
    num_heads=2,
    head_dim=32,
    num_layers=3,
    num_refiner_layers=2,
    ffn_dim=64,
    text_dim=SMALL.hidden_size,
    time_freq_dim=16,
    time_hidden_dim=32,
    time_embed_dim=24,
    rope_freq_dim=4,
)
VIDEO_VAE = VideoVaeConfig(
    encoder=VideoEncoderConfig(
        channels=(4, 4, 8, 8),
        blocks_per_level=1,
        space_strides=(2, 2, 2, 2),
        time_strides=(1, 2, 2, 1),
        num_groups=2,
    )
)
AUDIO_VAE = AudioVaeConfig(
    latent_dim=32,
    decoder_dim=32,
    decoder_rates=(5, 5, 4, 4, 2),
    decoder_kernel_sizes=(9, 9, 8, 8, 4),
    encoder=AudioEncoderConfig(dim=2, rates=(2, 4, 4, 5, 5), num_heads=2),
)


def sounding(place: str, **how: Any) -> PreparedClip:
    return small.clip(place, sound=small.sound(place, samples=4_100), **how)


# Pictures of 65,536 pixels or more, and clips of whole vision tokens, are seen as they are.
REFERENCES: dict[str, tuple[tuple[int, int], list[PreparedMedia]]] = {
    "one_picture": ((64, 64), [small.picture("references[0]", width=288, height=256)]),
    "nine_pictures": (
        (64, 32),
        [small.picture(f"references[{n}]", width=256 + 32 * (n % 3), height=256, seed=n) for n in range(9)],
    ),
    "picture_clip_sound": (
        (64, 64),
        [
            small.picture("references[0]", width=256, height=256),
            sounding("references[1]", frames=30, width=96, height=64),
            small.sound("references[2]", samples=7_000),
        ],
    ),
    "other_shapes": (
        (128, 32),
        [
            small.sound("references[0]", samples=5_601),
            small.clip("references[1]", frames=40, width=64, height=96),
            small.picture("references[2]", width=544, height=128),
            sounding("references[3]", frames=24, width=64, height=64),
            small.picture("references[4]", width=128, height=512),
        ],
    ),
}
KEYFRAMES: dict[str, tuple[tuple[int, int], list[PreparedMedia]]] = {
    "last_frame": ((256, 256), [small.picture("last_frame", width=256, height=256)]),
    "both_frames": (
        (288, 256),
        [
            small.picture("first_frame", width=288, height=256),
            small.picture("last_frame", width=288, height=256, seed=2),
        ],
    ),
}
CASES = REFERENCES | KEYFRAMES


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """The same weights twice."""

    ours: dict[str, Any]
    theirs: SimpleNamespace


@pytest.fixture(scope="module")
def models(make_twins: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Models:
    torch.set_num_threads(1)
    transformers, video_vae = make_twins(TRANSFORMER, 5), video_vae_of_diffusers(VIDEO_VAE, tiled=True)
    sound_encoder, audio_vae = audio_twins(AUDIO_VAE)
    audio_vae.register_to_config(
        latents_mean=sound_encoder.latents_mean.tolist(), latents_std=sound_encoder.latents_std.tolist()
    )
    theirs = text_components(tmp_path_factory.mktemp("theirs"))
    theirs.vae, theirs.audio_vae, theirs.transformer = video_vae, audio_vae, transformers.theirs
    theirs.pixel_mean, theirs.pixel_std, theirs.keyframe_encode_seed = IMAGENET_MEAN, IMAGENET_STD, 42
    theirs.vae_frames_per_chunk, theirs.vae_latents_per_chunk, theirs.audio_latent_channels = 17, 5, 32
    ours = {
        "transformer": transformers.ours,
        "tokenizer": Tokenizer.tiny(),
        "text_encoder": loaded(
            random_weights(expected_shapes(SMALL)), tmp_path_factory.mktemp("ours"), dtype=torch.float32
        ),
        "encode_film": partial(encode_clip, video_encoder_like(video_vae, VIDEO_VAE), conventions=DIFFUSERS),
        "encode_sound": partial(encode_sound, sound_encoder, conventions=DIFFUSERS),
    }
    return Models(ours=ours, theirs=theirs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Both:
    """One case before its first step and after its last, here and in diffusers."""

    job: Job
    found: Conditioned
    latents: Latents
    wanted: dict[str, Any] = field(default_factory=dict)


@pytest.fixture(scope="module", params=CASES)
def both(request: pytest.FixtureRequest, models: Models) -> Both:
    canvas, media = CASES[request.param]
    job = job_of(canvas, media)
    with torch.inference_mode():
        found = conditioned(job, media, **models.ours)
        latents = denoised(job, found)
    return Both(job=job, found=found, latents=latents, wanted=run_theirs(job, media, models.theirs))


def job_of(canvas: tuple[int, int], media: list[PreparedMedia]) -> Job:
    if media[0].place.endswith("_frame"):
        asked: dict[str, Any] = {each.place: f"references/{each.sha256}.png" for each in media}
    else:
        asked = {
            "references": [{"kind": each.kind, "source": f"references/{each.sha256}.bin"} for each in media]
        }
    film = {"width": canvas[0], "height": canvas[1], "frames": 124, "steps": EVALUATIONS, "seed": 11}
    return build_job(
        {"prompt": "<d>Hi</d>", "conventions": "diffusers", "checkpoint": "tiny", **film, **asked}
    )


def normalised(medium: PreparedMedia) -> Any:
    """The same medium as diffusers' setup step leaves it."""
    from diffusers.modular_pipelines.minimax_h3 import (
        MiniMaxH3AudioReference,
        MiniMaxH3ImageReference,
        MiniMaxH3VideoReference,
    )

    if isinstance(medium, PreparedPicture):
        return MiniMaxH3ImageReference(image=Image.fromarray(medium.pixels))
    if isinstance(medium, PreparedClip):
        sound = None if medium.sound is None else torch.from_numpy(medium.sound.samples)
        frames = np.concatenate(list(medium.frames.pieces()))
        return MiniMaxH3VideoReference(frames=frames, fps=24.0, audio=sound)
    return MiniMaxH3AudioReference(audio=torch.from_numpy(medium.samples))


def run_theirs(job: Job, media: list[PreparedMedia], components: SimpleNamespace) -> dict[str, Any]:
    """Run diffusers' blocks from normalised media to unpacked latents: nothing of ours is in it."""
    from diffusers import MiniMaxH3Scheduler
    from diffusers.modular_pipelines.minimax_h3 import encoders
    from diffusers.modular_pipelines.minimax_h3 import modular_blocks_minimax_h3 as blocks

    if job.workflow == "ref2va":
        given: dict[str, Any] = {"normalized_references": [normalised(each) for each in media]}
        steps = (encoders.MiniMaxH3Ref2VATextEncoderStep(), encoders.MiniMaxH3Ref2VAReferenceEncoderStep())
        core, transformer = blocks.MiniMaxH3Ref2VACoreDenoiseStep(), "transformer_ref"
    else:
        given = {"keyframes": [normalised(each).image for each in media]}
        steps = (encoders.MiniMaxH3FL2VATextEncoderStep(), encoders.MiniMaxH3KeyframeVaeEncoderStep())
        core, transformer = blocks.MiniMaxH3FL2VACoreDenoiseStep(), "transformer"
    read = run_step(steps[0], components, prompt=job.prompt, **given)
    encoded = run_step(steps[1], components, **given)
    handed = {
        name: state.get(name)
        for state, name in (
            (read, "prompt_embeds"),
            (read, "text_token_tags"),
            (encoded, "condition_latents"),
            (encoded, "audio_condition_latents"),
        )
        if state.get(name) is not None
    }
    if job.workflow == "fl2va":
        given = {"keyframe_anchors": tuple(each.place.removesuffix("_frame") for each in media)}
    pipeline = core.init_pipeline()
    pipeline.update_components(
        scheduler=MiniMaxH3Scheduler(shift=12.0),
        audio_scheduler=MiniMaxH3Scheduler(shift=3.0),
        **{transformer: components.transformer},
    )
    state = pipeline(
        **handed,
        **given,
        height=job.height,
        width=job.width,
        num_frames=job.frames,
        num_inference_steps=job.steps + 1,
        generator=torch.Generator().manual_seed(job.seed),
    )
    kept = ("position_ids", "token_tags", "video_indices", "audio_indices", "text_indices")
    return {
        **handed,
        **{name: state.get(name) for name in (*kept, "row_timestep_plan", "condition_rows")},
        "latents": Latents(video=state.get("latents")[0], audio=state.get("audio_latents")),
    }


def test_the_text_encoder_is_shown_the_same(both: Both, relative_l2: Callable[..., float]) -> None:
    assert list(both.found.presentation.tags) == both.wanted["text_token_tags"].tolist()
    assert relative_l2(both.found.text, both.wanted["prompt_embeds"][0]) < 1e-6


def test_media_become_the_same_latents(both: Both) -> None:
    seen = [each.video for each in both.found.conditions if each.video is not None]
    for latents, wanted in zip(seen, both.wanted["condition_latents"], strict=True):
        # A sample falls to the other side of a rounding to float16 now and then.
        assert ((latents - wanted[0]).abs() > 1e-6).float().mean() < 0.01
        torch.testing.assert_close(latents, wanted[0], rtol=2e-3, atol=2e-3)
    heard = [each.audio for each in both.found.conditions if each.audio is not None]
    for sound, rows in zip(heard, both.wanted.get("audio_condition_latents", []), strict=True):
        torch.testing.assert_close(sound.transpose(1, 2).reshape(-1, 32), rows, rtol=0, atol=1e-5)


def test_rows_stand_in_the_same_order(both: Both) -> None:
    layout = both.found.network.layout
    rows = torch.arange(layout.num_rows)
    for stream in Stream:
        assert torch.equal(stream_rows(layout, rows, stream), both.wanted[f"{stream}_indices"]), stream


def test_rows_have_the_same_tags(both: Both) -> None:
    assert torch.equal(both.found.network.layout.tags, both.wanted["token_tags"])


def test_rows_have_the_same_coordinates(both: Both) -> None:
    assert torch.equal(both.found.network.layout.position_ids.float(), both.wanted["position_ids"].float())


def test_rows_are_told_the_same_timesteps_at_every_step(both: Both) -> None:
    plan = plan_job(both.job)
    for step, (timesteps, index) in enumerate(both.wanted["row_timestep_plan"]):
        own = plan.timesteps(step)
        found, own_index = row_timesteps(both.found.network.layout, t_video=own.video, t_audio=own.audio)
        assert torch.equal(found, timesteps), step
        assert torch.equal(own_index, index), step


def test_condition_rows_hold_the_same_noise(both: Both) -> None:
    conditions = both.found.network.conditions
    assert conditions is not None
    torch.testing.assert_close(conditions.video, both.wanted["condition_rows"], rtol=2e-3, atol=2e-3)


def test_the_film_ends_in_the_same_latents(both: Both, relative_l2: Callable[..., float]) -> None:
    for half in ("video", "audio"):
        found, wanted = getattr(both.latents, half), getattr(both.wanted["latents"], half)
        assert relative_l2(found, wanted) < 1e-5, half  # 1.8e-7 where this was written
        assert relative_l2(getattr(both.found.noise, half), wanted) > 0.5  # the network moved it far
