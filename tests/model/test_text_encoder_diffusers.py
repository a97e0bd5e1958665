"""Under the diffusers preset a request gives the tokens and features of diffusers' own text-encode steps."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from diffusers_twins import run_step, text_components
from PIL import Image
from small_qwen import SMALL, expected_shapes, loaded, random_bytes, random_weights
from torch import Tensor

from model.text_encoder.encoder import TextEncoder
from model.text_encoder.presentation import Shown, ShownClip, ShownPicture, ShownSound, present
from model.text_encoder.tokenizer import Tokenizer
from queue_schemas.conventions import DIFFUSERS
from queue_schemas.reference_geometry import pair_seconds, seen_frames

TOKENIZER = Tokenizer.tiny()
SOUND = torch.zeros(2, 3200)
CLIP_FRAMES = 30


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> TextEncoder:
    weights = random_weights(expected_shapes(SMALL))
    return loaded(weights, tmp_path_factory.mktemp("ours"), dtype=torch.float32)


@pytest.fixture(scope="module")
def components(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    return text_components(tmp_path_factory.mktemp("tokenizer"))


@contextmanager
def recorded_ids(components: SimpleNamespace) -> Iterator[list[list[int]]]:
    """Collect the ids that diffusers' steps hand to the model."""
    found: list[list[int]] = []

    def record(_: Any, __: Any, kwargs: dict[str, Any]) -> None:
        found.extend(kwargs["input_ids"].tolist())

    handle = components.text_encoder.model.register_forward_pre_hook(record, with_kwargs=True)
    yield found
    handle.remove()


def picture(seed: int, height: int = 256, width: int = 288) -> Tensor:
    return random_bytes(height, width, 3, seed=seed)


def clip(seed: int, height: int = 64, width: int = 96) -> Tensor:
    return random_bytes(CLIP_FRAMES, height, width, 3, seed=seed)


def shown_clip(frames: Tensor, *, has_sound: bool) -> ShownClip:
    return ShownClip(
        frames=frames[seen_frames(CLIP_FRAMES)], pair_seconds=pair_seconds(CLIP_FRAMES), has_sound=has_sound
    )


CASES: dict[str, list[tuple[str, Tensor | None]]] = {
    "image": [("image", picture(1))],
    "nine_images": [("image", picture(n, 256, 256 + 32 * (n % 3))) for n in range(9)],
    "clip_with_sound": [("sounding_clip", clip(1))],
    "all_kinds": [
        ("audio", None),
        ("sounding_clip", clip(2)),
        ("image", picture(3)),
        ("clip", clip(4, 96, 64)),
        ("audio", None),
        ("image", picture(5, 320, 256)),
    ],
}


def shown(kind: str, pixels: Tensor | None) -> Shown:
    if pixels is None:
        return ShownSound()
    return ShownPicture(pixels=pixels) if kind == "image" else shown_clip(pixels, has_sound=kind != "clip")


def reference(kind: str, pixels: Tensor | None) -> Any:
    """The same as diffusers' normalised reference."""
    from diffusers.modular_pipelines.minimax_h3 import (
        MiniMaxH3AudioReference,
        MiniMaxH3ImageReference,
        MiniMaxH3VideoReference,
    )

    if pixels is None:
        return MiniMaxH3AudioReference(audio=SOUND)
    if kind == "image":
        return MiniMaxH3ImageReference(image=Image.fromarray(pixels.numpy()))
    sound = SOUND if kind == "sounding_clip" else None
    return MiniMaxH3VideoReference(frames=np.asarray(pixels), fps=24.0, audio=sound)


@pytest.mark.parametrize("case", CASES)
def test_references_are_those_of_diffusers(
    ours: TextEncoder, components: SimpleNamespace, relative_l2: Callable[[Tensor, Tensor], float], case: str
) -> None:
    from diffusers.modular_pipelines.minimax_h3.encoders import MiniMaxH3Ref2VATextEncoderStep

    prompt = "<Picture 1> walks \\(slowly\\) <d>[English] Hi.</d>"
    media = [shown(*item) for item in CASES[case]]
    presentation = present(prompt, media, tokenizer=TOKENIZER, conventions=DIFFUSERS)

    with recorded_ids(components) as ids:
        state = run_step(
            MiniMaxH3Ref2VATextEncoderStep(),
            components,
            prompt=prompt,
            normalized_references=[reference(*item) for item in CASES[case]],
        )

    assert [list(presentation.ids)] == ids
    assert list(presentation.tags) == state.get("text_token_tags").tolist()
    features, wanted = ours.encode(presentation), state.get("prompt_embeds")[0]
    assert relative_l2(features, wanted) < 1e-6
    torch.testing.assert_close(features, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_keyframes_are_those_of_diffusers(
    ours: TextEncoder, components: SimpleNamespace, relative_l2: Callable[[Tensor, Tensor], float], count: int
) -> None:
    from diffusers.modular_pipelines.minimax_h3.encoders import MiniMaxH3FL2VATextEncoderStep

    frames = [picture(n) for n in range(count)]
    media = [ShownPicture(pixels=pixels) for pixels in frames]
    presentation = present("a robot", media, tokenizer=TOKENIZER, conventions=DIFFUSERS)

    with recorded_ids(components) as ids:
        state = run_step(
            MiniMaxH3FL2VATextEncoderStep(),
            components,
            prompt="a robot",
            keyframes=[Image.fromarray(pixels.numpy()) for pixels in frames] or None,
        )

    assert [list(presentation.ids)] == ids
    assert list(presentation.tags) == state.get("text_token_tags").tolist()
    features, wanted = ours.encode(presentation), state.get("prompt_embeds")[0]
    assert relative_l2(features, wanted) < 1e-6
    torch.testing.assert_close(features, wanted, rtol=0, atol=1e-5)
