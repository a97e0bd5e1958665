"""What the conditioner is shown: labels, blocks, tags and where each medium lies in the stream."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from model.text_encoder.positions import rope_positions
from model.text_encoder.presentation import Shown, ShownClip, ShownPicture, ShownSound, present
from model.text_encoder.special_tokens import IMAGE_PAD, VIDEO_PAD, VISION_END, VISION_START
from model.text_encoder.tokenizer import Tokenizer
from queue_schemas.conventions import COMFYUI, DIFFUSERS, Conventions
from queue_schemas.reference_geometry import (
    clip_frames,
    clip_size,
    pair_seconds,
    picture_size,
    seen_frames,
)

TINY = Tokenizer.tiny()
EITHER = pytest.mark.parametrize("conventions", [COMFYUI, DIFFUSERS], ids=["comfyui", "diffusers"])


def blank(*shape: int) -> Tensor:
    """Pixels that take no memory."""
    return torch.zeros(1, dtype=torch.uint8).expand(*shape, 3)


def picture(height: int = 256, width: int = 256) -> ShownPicture:
    return ShownPicture(pixels=blank(height, width))


def clip(num_frames: int, *, height: int = 64, width: int = 64, has_sound: bool = False) -> ShownClip:
    """A clip of which every twelfth frame is shown."""
    return ShownClip(
        frames=blank(len(seen_frames(num_frames)), height, width),
        pair_seconds=pair_seconds(num_frames),
        has_sound=has_sound,
    )


def spelled(prompt: str, shown: Sequence[Shown], conventions: Conventions) -> str:
    """The stream as text, each block as its number of tokens."""
    text = TINY.decode(present(prompt, shown, tokenizer=TINY, conventions=conventions).ids)
    for pad, mark in ((IMAGE_PAD, "i"), (VIDEO_PAD, "v")):
        text = text.replace(pad, mark)
    return text.replace(VISION_START, "[").replace(VISION_END, "]")


@EITHER
def test_media_are_labelled_per_kind_in_the_order_given_and_the_prompt_comes_last(
    conventions: Conventions,
) -> None:
    shown = [ShownSound(), picture(), clip(39, has_sound=True), clip(24), picture(), ShownSound()]

    found = spelled("Go <Picture 9>.", shown, conventions)

    image = f"[{'i' * 64}]"
    assert found == (
        f"<Audio 1>: <Picture 1>: {image}<Audio 2>: <Video 1>: <0.2 seconds>[vvvv]<1.2 seconds>[vvvv]"
        f"<Video 2>: <0.2 seconds>[vvvv]<Picture 2>: {image}<Audio 3>: Go <Picture 9>."
    )


def test_times_are_rounded_half_to_even_and_an_odd_last_frame_stands_for_itself() -> None:
    found = spelled("", [clip(124)], COMFYUI)

    assert (
        found == "<Video 1>: " + "".join(f"<{t}.2 seconds>[vvvv]" for t in range(5)) + "<5.0 seconds>[vvvv]"
    )


def test_a_medium_knows_its_rows_and_its_blocks_theirs() -> None:
    presentation = present(
        "go", [picture(), clip(39, has_sound=True), ShownSound()], tokenizer=TINY, conventions=COMFYUI
    )

    first, second, third = presentation.media
    assert [(m.label, m.sound_label) for m in presentation.media] == [
        ("<Picture 1>", None),
        ("<Video 1>", "<Audio 1>"),
        ("<Audio 2>", None),
    ]
    assert first.start == 0
    assert (first.stop, second.stop) == (second.start, third.start)
    assert third.stop == len(presentation.ids) - 2
    assert first.num_tokens == len("<Picture 1>: ") + 66
    pads = {TINY.special_id(IMAGE_PAD), TINY.special_id(VIDEO_PAD)}
    inside = [row for block in presentation.blocks for row in range(block.start, block.stop)]
    assert inside == [row for row, token in enumerate(presentation.ids) if token in pads]
    around = {row for block in presentation.blocks for row in range(block.start - 1, block.stop + 1)}
    assert [row for row, tag in enumerate(presentation.tags) if tag == 0] == sorted(around)
    assert set(presentation.tags) == {0, 1}


def test_the_stream_of_comfyuis_own_nodes_comes_out(
    golden: Callable[[str], dict[str, Tensor]], tokenizer: Tokenizer
) -> None:
    wanted = golden("pipeline")
    sizes = [
        picture_size(w, h, canvas=(96, 64), size="match", conventions=COMFYUI)
        for w, h in ((100, 70), (40, 40))
    ]
    shown: list[Shown] = [picture(height, width) for width, height in sizes]
    for available, width, height, has_sound in ((23, 50, 40, True), (6, 34, 33, False)):
        wide, high = clip_size(width, height, conventions=COMFYUI)
        kept, _ = clip_frames(available, film_frames=22, conventions=COMFYUI)
        shown.append(clip(kept, height=high, width=wide, has_sound=has_sound))

    presentation = present(
        "<Picture 1> meets <Video 1>", [*shown, ShownSound()], tokenizer=tokenizer, conventions=COMFYUI
    )

    assert list(presentation.ids) == wanted["ref2va.ids"].tolist()
    assert list(presentation.tags) == wanted["ref2va.tags"].tolist()


def test_an_empty_prompt_is_padded_only_where_nothing_at_all_is_shown() -> None:
    def ids(shown: list[Shown], conventions: Conventions) -> tuple[int, ...]:
        return present("", shown, tokenizer=TINY, conventions=conventions).ids

    assert ids([], COMFYUI) == (TINY.pad_id,)
    assert ids([], DIFFUSERS) == ()
    assert ids([ShownSound()], COMFYUI) == tuple(TINY.encode("<Audio 1>: "))


def test_a_block_moves_the_positions_by_its_longer_side() -> None:
    presentation = present("ab", [picture(256, 512)], tokenizer=TINY, conventions=DIFFUSERS)

    positions = rope_positions(presentation)

    (block,) = presentation.blocks
    inside = positions[:, block.start : block.stop] - block.start
    assert inside.unique(dim=1).shape == (3, 8 * 16)
    assert inside.amin(1).tolist() == [0, 0, 0]
    assert inside.amax(1).tolist() == [0, 7, 15]
    assert positions[:, block.stop :].tolist() == [[block.start + 16 + n for n in range(3)]] * 3


@pytest.mark.parametrize(
    "shown",
    [
        ShownPicture(pixels=torch.zeros(64, 64, 3)),
        ShownPicture(pixels=blank(3, 64, 64)),
        ShownPicture(pixels=torch.zeros(64, 64, 4, dtype=torch.uint8)),
        ShownClip(frames=blank(64, 64), pair_seconds=[0.25], has_sound=False),
        ShownClip(frames=blank(0, 64, 64), pair_seconds=[], has_sound=False),
        ShownClip(frames=blank(2, 64, 64), pair_seconds=[0.25, 1.0], has_sound=False),
    ],
    ids=range(6),
)
def test_what_is_no_picture_or_clip_is_refused(shown: Shown) -> None:
    with pytest.raises(ValueError, match=r"vision tower takes bytes|zip\(\)"):
        present("go", [shown], tokenizer=TINY, conventions=COMFYUI)
