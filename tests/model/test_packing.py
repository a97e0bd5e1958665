"""Row order, rotary coordinates, clocks and patches, against ComfyUI's numbers and known check values."""

from collections.abc import Callable

import pytest
import torch
from diffusers.modular_pipelines.minimax_h3.before_denoise import MiniMaxH3PrepareLayoutStep
from torch import Tensor

from model.coordinates import grid_axis
from model.packing import (
    ConditionShape,
    PackedLayout,
    Role,
    Segment,
    Stream,
    pack,
    pack_rows,
    row_timesteps,
    stream_rows,
)
from model.patches import patchify_audio, patchify_video, unpatchify_audio, unpatchify_video
from queue_schemas.geometry import LatentShape, latent_shape

SMALL = LatentShape(frames=2, height=4, width=6, audio=8)
KINDS = {
    0: (Stream.TEXT, False),
    1: (Stream.VIDEO, False),
    3: (Stream.VIDEO, False),
    4: (Stream.AUDIO, False),
    5: (Stream.AUDIO, True),
    6: (Stream.VIDEO, True),
}
"""ComfyUI's segment kinds in the golden file: stream, and whether the sampler moves it."""


def sized(role: Role, frames: int = 0, height: int = 0, width: int = 0, *, audio: int = 0) -> ConditionShape:
    return ConditionShape(
        role=role, shape=LatentShape(frames=frames, height=height, width=width, audio=audio)
    )


CONDITIONS = {
    "t2va_5f": [],
    "t2va_480x288_22f": [],
    "fl2va_first_39f": [Role.FIRST_FRAME],
    "fl2va_last_39f": [Role.LAST_FRAME],
    "fl2va_both_39f": [Role.FIRST_FRAME, Role.LAST_FRAME],
    "ref2va_mixed": [
        sized(Role.PICTURE, 1, 4, 12),
        sized(Role.PICTURE, 1, 12, 4),
        sized(Role.CLIP, 7, 6, 10, audio=37),
        sized(Role.CLIP, 2, 6, 6, audio=20),
        sized(Role.CLIP, 12, 4, 6),
        sized(Role.SOUND, audio=9),
    ],
}
"""Keyframes have the film's own size."""


@pytest.mark.parametrize("case", CONDITIONS)
def test_rows_and_coordinates_equal_comfyuis(golden: Callable[[str], dict[str, Tensor]], case: str) -> None:
    numbers = golden("layout")
    num_text, frames, height, width, audio = numbers[f"{case}.args"].tolist()
    conditions = [
        each if isinstance(each, ConditionShape) else sized(each, 1, height, width)
        for each in CONDITIONS[case]
    ]

    layout = pack(
        num_text,
        LatentShape(frames=frames, height=height, width=width, audio=audio),
        conditions=conditions,
    )

    segments = [(each.start, each.stop, each.stream, each.target) for each in layout.segments]
    assert segments == [
        (start, stop, *KINDS[kind]) for start, stop, kind in numbers[f"{case}.segments"].tolist()
    ]
    assert layout.position_ids.dtype == torch.float64
    assert torch.equal(layout.position_ids.float(), numbers[f"{case}.position_ids"].float())
    rows = torch.arange(layout.num_rows)
    for stream, name in ((Stream.VIDEO, "img"), (Stream.AUDIO, "audio")):
        places = stream_rows(layout, rows, stream)
        assert torch.equal(places, numbers[f"{case}.{name}_pos"].long())
        moved = numbers[f"{case}.{name}_update"].nonzero().squeeze(1)
        assert torch.equal(torch.arange(len(places))[layout.target_rows(stream)], moved)


def test_coordinates_at_960x544_are_the_known_ones() -> None:
    shape = latent_shape(frames=124, width=960, height=544)

    layout = pack(256, shape)

    h, w = grid_axis(shape.height, shape=shape), grid_axis(shape.width, shape=shape)
    assert (len(h), len(w), layout.num_rows) == (17, 30, 19_540)
    ends = torch.stack((h[0], h[-1], w[0], w[-1]))
    known = [3.955637556654704, 26.627378626481143, -5.254757252962289, 35.837773436098146]
    torch.testing.assert_close(ends, torch.tensor(known, dtype=torch.float64), atol=1e-13, rtol=0)
    audio, video = (
        stream_rows(layout, layout.position_ids, stream) for stream in (Stream.AUDIO, Stream.VIDEO)
    )
    assert audio[0].tolist() == [256, 0, w[0].item()]
    assert audio[-1].tolist() == [462, 0, w[-1].item()]
    starts = torch.tensor([256, 256 + 5 / 3, 256 + 25 / 3])
    assert torch.equal(video[[0, 510, 1020], 0].float(), starts)
    assert torch.equal(video[-1].float(), torch.stack((torch.tensor(456.0), h[-1], w[-1])).float())


def test_coordinates_at_1344x768_are_the_known_ones() -> None:
    shape = latent_shape(frames=345, width=1344, height=768)

    layout = pack(500, shape)

    h, w = grid_axis(shape.height, shape=shape), grid_axis(shape.width, shape=shape)
    assert (len(h), len(w), layout.num_rows) == (24, 42, 104_466)
    assert [round(x, 3) for x in (h[0].item(), h[-1].item())] == [3.905, 27.087]
    assert [round(x, 3) for x in (w[0].item(), w[-1].item())] == [-5.166, 36.158]


def test_tags_name_the_modality_and_vision_rows_keep_their_text_place() -> None:
    text_tags = torch.tensor([1, 0, 0, 1])

    layout = pack(4, SMALL, text_tags=text_tags)

    assert layout.tags.tolist() == [1, 0, 0, 1] + 16 * [2] + 12 * [0]
    assert layout.position_ids[:4].tolist() == [[0, 0, 0], [1, 0, 0], [2, 0, 0], [3, 0, 0]]


def test_tags_that_do_not_fit_the_text_are_refused() -> None:
    with pytest.raises(ValueError, match="4 text rows need as many tags"):
        pack(4, SMALL, text_tags=torch.ones(3, dtype=torch.int64))


def test_text_and_video_run_at_the_videos_timestep_and_audio_at_its_own() -> None:
    layout = pack(3, SMALL)

    timesteps, index = row_timesteps(layout, t_video=0.6, t_audio=0.25)

    assert timesteps.dtype == torch.float32
    assert timesteps.tolist() == torch.tensor([0.25, 0.6]).tolist()
    assert index.tolist() == 3 * [1] + 16 * [0] + 12 * [1]


def test_equal_timesteps_are_one() -> None:
    timesteps, index = row_timesteps(pack(3, SMALL), t_video=0.0, t_audio=0.0)

    assert timesteps.tolist() == [0.0]
    assert index.unique().tolist() == [0]


def test_conditions_run_at_clocks_of_their_own_as_soon_as_they_are_there() -> None:
    picture, sound = sized(Role.PICTURE, 1, 2, 2), sized(Role.SOUND, audio=1)

    def told(t_video: float, *conditions: ConditionShape) -> list[float]:
        layout = pack(1, SMALL, conditions=conditions)
        timesteps, index = row_timesteps(layout, t_video=t_video, t_audio=0.25)
        assert len(timesteps) == len(timesteps.unique())
        return timesteps[index].tolist()

    early, late, exact = 0.5, 0.9995, torch.tensor(0.999).item()
    film = [0.25] * 16 + [early] * 12
    assert told(early) == [early, *film]
    assert told(early, picture) == [early, exact, *film]
    assert told(early, picture, sound) == [early, exact, 1.0, 1.0, *film]
    assert told(late, picture)[:2] == [torch.tensor(late).item()] * 2  # never less clean than the film


def test_a_conditions_rows_are_told_and_a_clips_sound_is_among_them() -> None:
    conditions = [
        sized(Role.PICTURE, 1, 4, 4),
        sized(Role.CLIP, 2, 2, 4, audio=3),
        sized(Role.SOUND, audio=2),
        sized(Role.SOUND),
    ]

    layout = pack(5, SMALL, conditions=conditions)

    assert [layout.condition_rows(n) for n in range(4)] == [
        range(5, 9),
        range(9, 19),
        range(19, 23),
        range(0),
    ]
    assert layout.num_rows == 23 + SMALL.audio_tokens + SMALL.video_tokens


def test_streams_in_several_runs_keep_their_order() -> None:
    kinds = [
        (Stream.TEXT, 2, None),
        (Stream.AUDIO, 1, 0),
        (Stream.VIDEO, 3, 0),
        (Stream.AUDIO, 2, None),
        (Stream.VIDEO, 4, None),
    ]
    segments, start = [], 0
    for stream, rows, condition in kinds:
        segments.append(Segment(stream=stream, start=start, stop=start + rows, condition=condition))
        start += rows
    nothing = torch.zeros(12, dtype=torch.int64)
    layout = PackedLayout(
        segments=tuple(segments),
        tags=nothing,
        clocks=nothing,
        position_ids=torch.zeros(12, 3, dtype=torch.float64),
    )
    text, audio, video = (torch.arange(n)[:, None] + base for n, base in ((2, 0), (3, 100), (7, 200)))

    packed = pack_rows(layout, text=text, audio=audio, video=video)

    assert packed.squeeze(1).tolist() == [0, 1, 100, 200, 201, 202, 101, 102, 203, 204, 205, 206]
    assert torch.equal(stream_rows(layout, packed, Stream.AUDIO), audio)
    assert torch.equal(stream_rows(layout, packed, Stream.VIDEO), video)
    assert layout.target_rows(Stream.VIDEO) == slice(3, 7)
    assert layout.target_rows(Stream.AUDIO) == slice(1, 3)


def test_a_video_row_holds_one_patch_of_every_channel() -> None:
    latents = torch.arange(48).reshape(2, 1, 4, 6)

    rows = patchify_video(latents)

    assert rows.shape == (6, 8)
    assert rows[1].tolist() == [2, 3, 8, 9, 26, 27, 32, 33]
    assert torch.equal(unpatchify_video(rows, LatentShape(frames=1, height=4, width=6, audio=0)), latents)


def test_video_rows_go_back_to_the_latents_they_came_from() -> None:
    latents = torch.randn(24, 7, 8, 10, generator=torch.Generator().manual_seed(1))

    rows = patchify_video(latents)

    assert rows.shape == (7 * 4 * 5, 96)
    assert torch.equal(unpatchify_video(rows, LatentShape(frames=7, height=8, width=10, audio=0)), latents)


def test_odd_latent_sides_are_refused() -> None:
    with pytest.raises(ValueError, match="multiples of 2; got 5 × 6"):
        patchify_video(torch.zeros(24, 2, 5, 6))


def test_audio_rows_are_the_left_channel_then_the_right() -> None:
    latents = torch.arange(2 * 32 * 5).reshape(2, 32, 5)

    rows = patchify_audio(latents)

    assert rows.shape == (10, 32)
    assert torch.equal(rows[3], latents[0, :, 3])
    assert torch.equal(rows[5], latents[1, :, 0])
    assert torch.equal(unpatchify_audio(rows), latents)


@pytest.mark.parametrize(("frames", "height", "width"), [(5, 64, 96), (22, 288, 480), (124, 544, 960)])
def test_rows_tags_and_coordinates_equal_diffusers(frames: int, height: int, width: int) -> None:
    shape = latent_shape(frames=frames, height=height, width=width)
    tags = torch.tensor([1, 0, 0, 1, 1])

    layout = pack(len(tags), shape, text_tags=tags)

    positions, row_tags, video_rows, audio_rows, text_rows, *_ = (
        MiniMaxH3PrepareLayoutStep.build_packed_sequence(
            tags, shape.frames, shape.height, shape.width, shape.audio, (1, 2, 2), 2, 2, 0
        )
    )
    assert torch.equal(layout.tags, row_tags)
    assert torch.equal(layout.position_ids.float(), positions.float())
    for stream, rows in ((Stream.TEXT, text_rows), (Stream.AUDIO, audio_rows), (Stream.VIDEO, video_rows)):
        assert torch.equal(stream_rows(layout, torch.arange(layout.num_rows), stream), rows)
