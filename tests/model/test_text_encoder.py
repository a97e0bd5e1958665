"""Text features agree with ComfyUI's numbers and transformers' own model; files are matched strictly."""

import json
import math
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from small_qwen import SMALL, expected_shapes, golden_weights, loaded, random_weights, transformers_fields
from torch import Tensor

from model.checkpoints.header import read_header
from model.config import RELEASED, TINY, TextEncoderConfig
from model.errors import CheckpointMismatchError, EmptyPromptError, TokenizerMismatchError
from model.loading.plans import plan_text_encoder
from model.text_encoder.encoder import TextEncoder, config_from_shapes
from model.text_encoder.presentation import Presentation

HEADERS = Path(__file__).parents[1] / "golden" / "headers"
SOURCE = Path("te.safetensors")
LENGTHS = (1, 2, 33, 257)


def text_of(length: int, vocab_size: int = SMALL.vocab_size) -> Presentation:
    ids = torch.randint(vocab_size, (length,), generator=torch.Generator().manual_seed(length))
    return Presentation(tuple(ids.tolist()), (1,) * length)


@pytest.fixture(scope="module")
def deeper_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3-VL of seven layers with random weights, as transformers saves it."""
    from transformers import Qwen3VLConfig, Qwen3VLModel

    model = Qwen3VLModel(Qwen3VLConfig(**transformers_fields(SMALL, num_layers=7)))
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    model.load_state_dict(random_weights(shapes))
    folder = tmp_path_factory.mktemp("qwen")
    model.save_pretrained(folder)
    return folder


Load = Callable[..., TextEncoder]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Write a text encoder's file and load it."""

    def write_and_load(
        weights: Mapping[str, Tensor], *, dtype: torch.dtype = torch.bfloat16, device: str = "cpu"
    ) -> TextEncoder:
        return loaded(weights, tmp_path, dtype=dtype, device=device)

    return write_and_load


def both(folder: Path, load: Load, dtype: torch.dtype) -> tuple[TextEncoder, Any]:
    """Our cut encoder and transformers' whole model, from the same file."""
    from transformers import Qwen3VLModel

    theirs = Qwen3VLModel.from_pretrained(folder, dtype=dtype).eval()
    tensors = load_file(folder / "model.safetensors")
    beyond = ("language_model.norm.", "language_model.layers.5.", "language_model.layers.6.")
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith(beyond)}
    assert len(tensors) - len(kept) == 1 + 2 * 11
    return load(kept, dtype=dtype), theirs


def their_features(model: Any, presentation: Presentation) -> Tensor:
    """The residual stream after the fifth layer, before any final norm."""
    with torch.no_grad():
        found = model(input_ids=torch.tensor([presentation.ids]), output_hidden_states=True, use_cache=False)
    assert len(found.hidden_states) == 8
    return found.hidden_states[5][0]


@pytest.mark.parametrize("case", ["t2va", "empty"])
def test_features_match_comfyui(
    golden: Callable[[str], dict[str, Tensor]],
    relative_l2: Callable[[Tensor, Tensor], float],
    load: Load,
    case: str,
) -> None:
    tensors = golden("text_encoder")
    encoder = load(golden_weights(tensors), dtype=torch.float32)

    features = encoder.encode(
        Presentation(tuple(tensors[f"{case}.ids"].tolist()), tuple(tensors[f"{case}.tags"].tolist()))
    )

    wanted = tensors[f"{case}.out"]
    torch.testing.assert_close(features, wanted, rtol=0, atol=2e-5)
    assert relative_l2(features, wanted) < 1e-6


def test_features_are_transformers_hidden_states_at_the_tap_in_float32(
    deeper_folder: Path, load: Load, relative_l2: Callable[[Tensor, Tensor], float]
) -> None:
    ours, theirs = both(deeper_folder, load, torch.float32)

    for length in LENGTHS:
        features, wanted = ours.encode(text_of(length)), their_features(theirs, text_of(length))

        assert features.shape == (length, SMALL.hidden_size)
        assert relative_l2(features, wanted) < 1e-6


def test_features_are_transformers_hidden_states_bit_for_bit_in_bfloat16(
    deeper_folder: Path, load: Load
) -> None:
    ours, theirs = both(deeper_folder, load, torch.bfloat16)

    for length in LENGTHS:
        features = ours.encode(text_of(length))

        assert features.dtype == torch.bfloat16
        assert torch.equal(features, their_features(theirs, text_of(length)))


def test_rotary_frequencies_stay_float32_and_off_the_parameters_dtype(
    deeper_folder: Path, load: Load
) -> None:
    ours, theirs = both(deeper_folder, load, torch.bfloat16)

    buffers = dict(ours.model.named_buffers())

    assert len(buffers) == 4
    for name, wanted in theirs.named_buffers():
        assert buffers[name].dtype == torch.float32
        assert torch.equal(buffers[name], wanted)


def test_the_released_config_has_exactly_the_902_tensors_of_comfyuis_file() -> None:
    table = json.loads((HEADERS / "te_qwen3vl_bf16_shapes.json").read_text(encoding="utf-8"))
    wanted = {
        name.replace("{i}", str(i)): tuple(entry["shape"])
        for name, entry in table["tensors"].items()
        for i in range(entry.get("repeat", 1))
    }

    found = expected_shapes(RELEASED.text_encoder)

    assert found == wanted
    assert len(found) == table["tensor_count"] == 902
    assert 2 * sum(map(math.prod, found.values())) == table["payload_bytes"]


@pytest.mark.parametrize("config", [RELEASED.text_encoder, TINY.text_encoder, SMALL])
@pytest.mark.parametrize("official", [False, True])
def test_shapes_alone_give_the_config_back(config: TextEncoderConfig, official: bool) -> None:
    shapes = expected_shapes(config)
    if official:
        shapes = {official_name(name): shape for name, shape in shapes.items()}

    assert config_from_shapes(shapes, source=SOURCE) == config


def official_name(comfyui: str) -> str:
    if comfyui.startswith("visual."):
        return "model." + comfyui
    return comfyui.replace("model.", "model.language_model.", 1)


def test_comfyuis_and_the_official_names_give_the_same_encoder(load: Load) -> None:
    weights = random_weights(expected_shapes(SMALL))
    official = {official_name(name): tensor for name, tensor in weights.items()}

    one = load(weights, dtype=torch.float32)
    other = load(official, dtype=torch.float32)

    assert torch.equal(one.encode(text_of(9)), other.encode(text_of(9)))


def test_a_file_that_does_not_match_is_refused_with_every_reason(load: Load) -> None:
    weights = random_weights(expected_shapes(SMALL))
    del weights["visual.merger.norm.bias"]
    weights["model.norm.weight"] = torch.ones(40)
    weights["model.layers.1.mlp.up_proj.weight"] = torch.ones(40, 96)
    weights["model.layers.2.mlp.up_proj.weight"] = torch.ones(96, 40, dtype=torch.int8)
    weights["language_model.embed_tokens.weight"] = weights["model.embed_tokens.weight"].clone()

    with pytest.raises(CheckpointMismatchError) as caught:
        load(weights)

    assert caught.value.missing == ["visual.merger.norm.bias"]
    assert caught.value.unexpected == [
        "language_model.embed_tokens.weight",
        "model.embed_tokens.weight",
        "model.norm.weight",
    ]
    assert [text.split(":")[0] for text in caught.value.wrong] == [
        "model.layers.1.mlp.up_proj.weight",
        "model.layers.2.mlp.up_proj.weight",
    ]


def test_a_released_file_cut_one_layer_too_early_is_refused(tmp_path: Path) -> None:
    shapes = expected_shapes(RELEASED.text_encoder)
    path = tmp_path / "te.safetensors"
    fields, end = {}, 0
    for name, shape in shapes.items():
        if not name.startswith("model.layers.49."):
            begin, end = end, end + 2 * math.prod(shape)
            fields[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(fields).encode()
    with path.open("wb") as file:  # 51 GB of holes
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)

    with pytest.raises(CheckpointMismatchError) as caught:
        plan_text_encoder(read_header(path))

    assert len(caught.value.missing) == 11
    assert all(name.startswith("model.layers.49.") for name in caught.value.missing)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({}, "8 missing"),
        ({"model.embed_tokens.weight": (300,)}, "model.embed_tokens.weight"),
        ({"model.layers.0.self_attn.q_norm.weight": (0,)}, "q_norm"),
    ],
)
def test_shapes_of_another_model_give_no_config(change: dict[str, tuple[int, ...]], complaint: str) -> None:
    shapes = {**expected_shapes(SMALL), **change} if change else {"decoder.weight": (3, 3)}

    with pytest.raises(CheckpointMismatchError, match=complaint):
        config_from_shapes(shapes, source=SOURCE)


def test_no_token_or_one_beyond_the_embedding_is_refused_before_the_network_runs(load: Load) -> None:
    encoder = load(random_weights(expected_shapes(SMALL)))

    with pytest.raises(EmptyPromptError, match="comfyui conventions"):
        encoder.encode(Presentation((), ()))
    with pytest.raises(TokenizerMismatchError, match=r"up to 300, .* 300 rows"):
        encoder.encode(Presentation((5, 300), (1, 1)))


def test_importing_is_free_and_building_is_silent() -> None:
    program = """
import sys
from model.config import TINY
from model.text_encoder.encoder import build_on_meta
assert "transformers" not in sys.modules
assert build_on_meta(TINY.text_encoder).language_model.norm(1) == 1
"""

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.gpu
def test_features_on_a_gpu_match_those_of_the_cpu(
    load: Load, relative_l2: Callable[[Tensor, Tensor], float]
) -> None:
    weights = random_weights(expected_shapes(SMALL))
    wanted = load(weights, dtype=torch.float32).encode(text_of(257))

    exact = load(weights, dtype=torch.float32, device="cuda").encode(text_of(257))
    rounded = load(weights, device="cuda").encode(text_of(257))

    assert exact.is_cuda
    assert relative_l2(exact.cpu(), wanted) < 1e-5
    assert relative_l2(rounded.cpu(), wanted) < 3e-2  # bf16 keeps 8 bits through five layers
