"""Pictures and clips in the text features: ComfyUI's numbers, transformers' own call, one sight at a time."""

from collections.abc import Callable

import pytest
import torch
from small_qwen import (
    SMALL,
    expected_shapes,
    golden_weights,
    loaded,
    random_weights,
)
from torch import Tensor

from model.text_encoder.encoder import TextEncoder
from model.text_encoder.positions import rope_positions
from model.text_encoder.presentation import (
    Shown,
    ShownClip,
    ShownPicture,
    ShownSound,
    present,
)
from model.text_encoder.tokenizer import Tokenizer
from model.text_encoder.vision import pair_sights, patch_rows, picture_sight
from queue_schemas.conventions import COMFYUI


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
