"""Pictures and clips in the text features: ComfyUI's numbers, transformers' own call, one sight at a time."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from small_qwen import (
    SMALL,
    expected_shapes,
    golden_weights,
    loaded,
    random_bytes,
    random_weights,
    transformers_fields,
)
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from model.errors import EmptyPromptError
from model.text_encoder.encoder import TextEncoder
from model.text_encoder.positions import rope_positions
from model.text_encoder.presentation import Shown, ShownClip, ShownPicture, ShownSound, present
from model.text_encoder.special_tokens import IMAGE_PAD, VIDEO_PAD
from model.text_encoder.tokenizer import Tokenizer
from model.text_encoder.vision import Sight, VisionRows, pair_sights, patch_rows, picture_sight
from queue_schemas.conventions import COMFYUI, DIFFUSERS

TINY_TOKENIZER = Tokenizer.tiny()
MIXED: list[Shown] = [
    ShownPicture(pixels=random_bytes(64, 96, 3, seed=1)),
    ShownClip(frames=random_bytes(3, 96, 64, 3, seed=2), pair_seconds=[0.25, 1.0], has_sound=True),
    ShownSound(),
    ShownPicture(pixels=random_bytes(32, 128, 3, seed=3)),
]


@pytest.fixture(scope="module")
def tensors(golden: Callable[[str], dict[str, Tensor]]) -> dict[str, Tensor]:
    return golden("text_encoder")


@pytest.fixture(scope="module")
def golden_encoder(tensors: dict[str, Tensor], tmp_path_factory: pytest.TempPathFactory) -> TextEncoder:
    return loaded(golden_weights(tensors), tmp_path_factory.mktemp("golden"), dtype=torch.float32)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> TextEncoder:
    weights = random_weights(expected_shapes(SMALL))
    return loaded(weights, tmp_path_factory.mktemp("small"), dtype=torch.float32)


def golden_media(tensors: dict[str, Tensor], case: str) -> tuple[str, list[Shown]]:
    """What the golden cases show."""
    one, two = (ShownPicture(pixels=tensors[f"in.image{n}_u8"][0]) for n in (1, 2))
    if case == "fl2va":
        return "go", [one, two]
    clip = ShownClip(frames=tensors["in.video3_u8"], pair_seconds=[0.25, 1.0], has_sound=False)
    return "a robot dancing", [one, ShownSound(), clip, ShownSound()]


@pytest.mark.parametrize("case", ["fl2va", "ref2va"])
def test_ids_tags_positions_and_features_match_comfyui(
    tensors: dict[str, Tensor], tokenizer: Tokenizer, golden_encoder: TextEncoder, case: str
) -> None:
    prompt, shown = golden_media(tensors, case)

    presentation = present(prompt, shown, tokenizer=tokenizer, conventions=COMFYUI)

    assert list(presentation.ids) == tensors[f"{case}.ids"].tolist()
    assert list(presentation.tags) == tensors[f"{case}.tags"].tolist()
    assert torch.equal(rope_positions(presentation), tensors[f"{case}.mrope_position_ids"].long())
    features = golden_encoder.encode(presentation)
    torch.testing.assert_close(features, tensors[f"{case}.out"], rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", ["image1", "image2", "video3_pair0"])
def test_patches_are_comfyuis_bit_for_bit_and_the_tower_agrees(
    tensors: dict[str, Tensor], golden_encoder: TextEncoder, name: str
) -> None:
    if name.startswith("image"):
        sight = picture_sight(tensors[f"in.{name}_u8"][0], conventions=COMFYUI)
    else:
        sight = pair_sights(tensors["in.video3_u8"], conventions=COMFYUI)[0]

    patches = patch_rows(sight, device=torch.device("cpu"), dtype=torch.float32)
    rows = golden_encoder.encode_vision(sight)

    wanted = tensors[f"pre.{name}.patches"]
    assert torch.equal(patches[: len(wanted)], wanted)
    assert tensors[f"pre.{name}.grid"].tolist() == [[1, *sight.grid]]
    assert len(patches) == 4 * sight.num_tokens
    torch.testing.assert_close(rows.merged, tensors[f"vision.{name}.merged"], rtol=0, atol=2e-5)
    for level, found in enumerate(rows.deepstack if name.startswith("image") else ()):
        torch.testing.assert_close(found, tensors[f"vision.{name}.deepstack{level}"], rtol=0, atol=2e-5)


def test_grids_are_comfyuis_for_every_size(tensors: dict[str, Tensor]) -> None:
    for height, width, *grid in tensors["pre.grid_table"].tolist():
        pixels = torch.zeros(1, dtype=torch.uint8).expand(height, width, 3)

        assert list(picture_sight(pixels, conventions=COMFYUI).grid) == grid, (height, width)
        assert list(pair_sights(pixels[None], conventions=COMFYUI)[0].grid) == grid, (height, width)


@pytest.fixture(scope="module")
def official() -> Any:
    """Transformers' own model with the weights of `small`, to be called as its processor would have it."""
    from transformers import Qwen3VLConfig, Qwen3VLModel

    pads = {
        "image_token_id": TINY_TOKENIZER.special_id(IMAGE_PAD),
        "video_token_id": TINY_TOKENIZER.special_id(VIDEO_PAD),
    }
    model = Qwen3VLModel(Qwen3VLConfig(**transformers_fields(SMALL, num_layers=SMALL.num_layers), **pads))
    weights = random_weights(expected_shapes(SMALL))
    names = {name.replace("model.", "language_model.", 1): value for name, value in weights.items()}
    assert model.load_state_dict(names, strict=False).missing_keys == ["language_model.norm.weight"]
    model.language_model.norm = torch.nn.Identity()
    return model.eval()


def official_call(
    model: Any, ids: Sequence[int], *, pictures: list[Sight], clips: list[list[Sight]]
) -> Tensor:
    """Return the features of one call with everything at once, blocks found by their pad tokens."""
    input_ids = torch.tensor([ids])
    kinds = (input_ids == model.config.image_token_id) + 2 * (input_ids == model.config.video_token_id)

    def patches(sights: list[Sight]) -> Tensor:
        return torch.cat([patch_rows(s, device=torch.device("cpu"), dtype=model.dtype) for s in sights])

    with torch.no_grad():
        return model(
            input_ids=input_ids,
            attention_mask=torch.ones_like(input_ids),
            mm_token_type_ids=kinds,
            pixel_values=patches(pictures),
            image_grid_thw=torch.tensor([[1, *sight.grid] for sight in pictures]),
            pixel_values_videos=patches([sight for pairs in clips for sight in pairs]),
            video_grid_thw=torch.tensor([[len(pairs), *pairs[0].grid] for pairs in clips]),
            use_cache=False,
        ).last_hidden_state[0]


def test_features_are_those_of_transformers_called_its_official_way(
    small: TextEncoder, official: Any, relative_l2: Callable[[Tensor, Tensor], float]
) -> None:
    presentation = present("Go, <Video 1>!", MIXED, tokenizer=TINY_TOKENIZER, conventions=COMFYUI)
    picture, first, second, other = (block.sight for block in presentation.blocks)

    wanted = official_call(official, presentation.ids, pictures=[picture, other], clips=[[first, second]])

    assert relative_l2(small.encode(presentation), wanted) < 1e-6


def test_pad_tokens_that_a_prompt_spells_are_text_and_move_no_picture(small: TextEncoder) -> None:
    spelled = "<|vision_start|><|image_pad|><|video_pad|><|vision_end|><Picture 2>: "
    shown = MIXED[:1]

    plain = present("", shown, tokenizer=TINY_TOKENIZER, conventions=COMFYUI)
    both = present(spelled, shown, tokenizer=TINY_TOKENIZER, conventions=COMFYUI)

    extra = len(both.ids) - len(plain.ids)
    assert [(b.start, b.stop) for b in both.blocks] == [(b.start, b.stop) for b in plain.blocks]
    assert both.tags == (*plain.tags, *[1] * extra)
    last = rope_positions(plain).max()
    assert torch.equal(rope_positions(both)[:, -extra:], (last + 1 + torch.arange(extra)).expand(3, -1))
    torch.testing.assert_close(
        small.encode(both)[:-extra], small.encode(plain), rtol=0, atol=1e-5
    )  # attention is causal


def test_a_pictures_rows_depend_on_the_picture_alone_and_can_be_kept(small: TextEncoder) -> None:
    kept: dict[tuple[bytes, tuple[int, int]], VisionRows] = {}
    seen = []

    def see(sight: Sight) -> VisionRows:
        key = (sight.frames.numpy().tobytes(), sight.grid)
        if key not in kept:
            seen.append(sight)
            kept[key] = small.encode_vision(sight)
        return kept[key]

    presentation = present("go", [*MIXED, *MIXED], tokenizer=TINY_TOKENIZER, conventions=COMFYUI)
    first = small.encode(presentation, see=see)
    again = small.encode(presentation, see=see)

    assert len(seen) == len(presentation.blocks) / 2 == 4
    assert torch.equal(first, again)
    assert torch.equal(first, small.encode(presentation))


class Largest(TorchDispatchMode):
    """Remember the most elements that any result of any operation had."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.numel())
        return result


def test_nothing_in_the_tower_grows_with_the_square_of_a_picture_or_the_number_of_pictures(
    small: TextEncoder,
) -> None:
    sights = [
        picture_sight(random_bytes(height, 512, 3), conventions=DIFFUSERS) for height in (512, 1024, 512)
    ]
    elements = []

    for shown in (sights[:1], sights[1:2], sights):
        with Largest() as largest, sdpa_kernel(SDPBackend.FLASH_ATTENTION):  # no other kernel may be needed
            for sight in shown:
                small.encode_vision(sight)
        elements.append(largest.elements)

    one, twice_as_high, all_three = elements
    assert one == 1024 * 1536  # its patches; its scores alone would be 1024 x 1024 x 2 heads
    assert twice_as_high == all_three == 2 * one


def test_media_alone_can_be_shown_but_nothing_at_all_cannot(small: TextEncoder) -> None:
    alone = present("", MIXED[:1], tokenizer=TINY_TOKENIZER, conventions=DIFFUSERS)
    nothing = present("", [], tokenizer=TINY_TOKENIZER, conventions=DIFFUSERS)

    assert small.encode(alone).isfinite().all()
    with pytest.raises(EmptyPromptError):
        small.encode(nothing)


@pytest.mark.gpu
def test_pictures_on_a_gpu_give_the_features_of_the_cpu(
    small: TextEncoder, tmp_path: Path, relative_l2: Callable[[Tensor, Tensor], float]
) -> None:
    presentation = present("go", MIXED, tokenizer=TINY_TOKENIZER, conventions=COMFYUI)
    weights = random_weights(expected_shapes(SMALL))

    exact = loaded(weights, tmp_path, dtype=torch.float32, device="cuda").encode(presentation)
    rounded = loaded(weights, tmp_path, device="cuda").encode(presentation)

    wanted = small.encode(presentation)
    assert relative_l2(exact.cpu(), wanted) < 1e-5
    assert relative_l2(rounded.cpu(), wanted) < 5e-2
