"""What model tests share: golden numbers, and a transformer with its diffusers twin from the same weights."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from model.config import TransformerConfig
from model.dit import H3Transformer, parameter_dtypes
from model.network import ConditionRows
from model.noise import draw_noise, noise_condition
from model.packing import ConditionShape, PackedLayout, Role, Stream, stream_rows
from model.patches import patchify_audio, patchify_video
from model.pipeline import H3Pipeline
from model.startup import load_pipeline
from model.synthetic.h3_tiny import write_h3_tiny
from model.text_encoder.tokenizer import Tokenizer, load_tokenizer
from queue_schemas.conventions import Conventions
from queue_schemas.geometry import LatentShape

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture(autouse=True, scope="session")
def two_threads() -> Iterator[None]:
    """One number of threads from the first fixture on: it decides the order of sums, and so the bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def one_thread(two_threads: None) -> Iterator[None]:
    """For models so small that a second thread only waits: ten times faster on busy cores."""
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(2)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A models folder with h3-tiny, which nobody changes."""
    folder = tmp_path_factory.mktemp("models") / "h3-tiny"
    write_h3_tiny(folder)
    return folder


@pytest.fixture(scope="module")
def pipeline(tiny: Path) -> H3Pipeline:
    return load_pipeline(models_dir=tiny, device="cpu")


@pytest.fixture(scope="session")
def golden() -> Callable[[str], dict[str, Tensor]]:
    """Load one file of tests/golden by its stem."""
    return lambda name: load_file(GOLDEN / f"{name}.safetensors")


@pytest.fixture(scope="session")
def golden_transformer(golden: Callable[[str], dict[str, Tensor]]) -> Callable[..., H3Transformer]:
    """Load the transformer of a golden file, `full` or `pruned`, cast as the dtype policy says."""

    def load(layout: str, dtype: torch.dtype = torch.float32) -> H3Transformer:
        pruned, tensors = layout == "pruned", golden(f"transformer_{layout}")
        config = TransformerConfig(
            hidden_size=32,
            num_heads=3,
            head_dim=16,
            num_layers=3,
            ffn_dim=40,
            text_dim=20,
            time_freq_dim=16,
            time_hidden_dim=24,
            time_embed_dim=4 if pruned else 12,
            time_table_rows=33 if pruned else None,
            rope_freq_dim=2,
        )
        with torch.device("meta"):
            transformer = H3Transformer(config, compute_dtype=dtype)
        weights = {
            name: tensors[f"weights.{name}"].to(own) for name, own in parameter_dtypes(config, dtype).items()
        }
        transformer.load_state_dict(weights, assign=True)
        return transformer.eval().requires_grad_(False)

    return load


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """The built-in one, which takes two seconds to make."""
    return load_tokenizer(None)


@pytest.fixture(scope="session")
def relative_l2() -> Callable[[Tensor, Tensor], float]:
    """Return ‖found - wanted‖ / ‖wanted‖, in float64."""

    def measure(found: Tensor, wanted: Tensor) -> float:
        found, wanted = found.double(), wanted.double()
        return float((found - wanted).norm() / wanted.norm())

    return measure


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """One keyframe or reference by its clean latents."""

    role: Role
    video: Tensor | None = None
    """[24, t, lh, lw]."""
    audio: Tensor | None = None
    """[2, 32, n]."""

    @property
    def shape(self) -> ConditionShape:
        frames, height, width = (0, 0, 0) if self.video is None else self.video.shape[1:]
        audio = 0 if self.audio is None else self.audio.shape[2]
        return ConditionShape(
            role=self.role, shape=LatentShape(frames=frames, height=height, width=width, audio=audio)
        )


def rows_of(
    given: Sequence[Given], *, film: LatentShape, seed: int, conventions: Conventions
) -> ConditionRows:
    """Return the rows that a request of these conditions begins with."""
    seen = [each for each in given if each.video is not None]
    noise = draw_noise(
        film, seed=seed, conventions=conventions, conditions=[each.shape.shape for each in seen]
    ).conditions
    video = [
        noise_condition(patchify_video(each.video), rows, conventions=conventions)
        for each, rows in zip(seen, noise, strict=True)
    ]
    audio = [patchify_audio(each.audio) for each in given if each.audio is not None]
    return ConditionRows(
        video=torch.cat((torch.empty(0, 96), *video)), audio=torch.cat((torch.empty(0, 32), *audio))
    )


@pytest.fixture(scope="session")
def recorded_conditions() -> Callable[[dict[str, Tensor], str], list[Given]]:
    """Return the conditions of a recorded case, in packed order; `prefix` ends before `keyframe0`."""

    def read(numbers: dict[str, Tensor], prefix: str) -> list[Given]:
        given = []
        for name in sorted(
            {key.removeprefix(prefix).split(".")[0] for key in numbers if key.startswith(prefix)}
        ):
            own = {
                key: numbers.get(f"{prefix}{name}.{key}") for key in ("latent", "audio_latent", "frame_index")
            }
            if own["latent"] is None and own["audio_latent"] is None:
                continue
            video = None if own["latent"] is None else own["latent"][0]
            audio = None if own["audio_latent"] is None else own["audio_latent"][0].transpose(0, 1)
            if own["frame_index"] is not None:
                role = Role.LAST_FRAME if own["frame_index"] else Role.FIRST_FRAME
            elif video is None:
                role = Role.SOUND
            else:
                role = Role.PICTURE if video.shape[1] == 1 else Role.CLIP
            given.append(Given(role=role, video=video, audio=audio))
        return given

    return read


@pytest.fixture(scope="session")
def condition_rows() -> Callable[..., ConditionRows]:
    """Return the rows that a request of some `Given` begins with, noised from its seed."""
    return rows_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Twins:
    """The same random weights twice: ours in ComfyUI's layout, and `MiniMaxH3Transformer3DModel`."""

    ours: H3Transformer
    theirs: Any

    def their_velocity(
        self,
        *,
        video_rows: Tensor,
        audio_rows: Tensor,
        text_embeds: Tensor,
        timesteps: Tensor,
        timestep_index: Tensor,
        layout: PackedLayout,
    ) -> tuple[Tensor, Tensor]:
        """Run diffusers' network on one request; `text_embeds` [L, text_dim] come before `condition_proj`."""
        everything = torch.arange(layout.num_rows)
        video, audio, text = (
            stream_rows(layout, everything, stream) for stream in (Stream.VIDEO, Stream.AUDIO, Stream.TEXT)
        )
        with torch.no_grad():
            found = self.theirs(
                hidden_states=video_rows[None],
                audio_hidden_states=audio_rows[None],
                encoder_hidden_states=text_embeds[None],
                timestep=timesteps,
                timestep_indices=timestep_index,
                token_tags=layout.tags,
                position_ids=layout.position_ids,
                video_indices=video,
                audio_indices=audio,
                text_indices=text,
                return_dict=False,
            )
        return found[0][0], found[1][0]


@pytest.fixture(scope="session")
def make_twins() -> Callable[[TransformerConfig, int], Twins]:
    """Build a float32 transformer of the full layout with random weights, and the equal diffusers one."""

    def make(config: TransformerConfig, seed: int) -> Twins:
        from diffusers.models.transformers.transformer_minimax_h3 import MiniMaxH3Transformer3DModel

        ours = H3Transformer(config, compute_dtype=torch.float32).eval()
        ours.load_state_dict(random_weights(ours, seed))
        theirs = MiniMaxH3Transformer3DModel(
            num_attention_heads=config.num_heads,
            attention_head_dim=config.head_dim,
            hidden_size=config.hidden_size,
            num_layers=config.num_layers,
            num_refiner_layers=config.num_refiner_layers,
            ffn_dim=config.ffn_dim,
            in_channels=config.latent_channels,
            audio_in_channels=config.audio_channels,
            patch_size=(1, config.patch, config.patch),
            text_dim=config.text_dim,
            freq_dim=config.time_freq_dim,
            time_embed_hidden_dim=config.time_hidden_dim,
            time_embed_dim=config.time_embed_dim,
            rope_freq_dim=config.rope_freq_dim,
            rope_theta=config.rope_theta,
        ).eval()
        theirs.load_state_dict(diffusers_names(ours.state_dict()))
        return Twins(ours=ours, theirs=theirs)

    return make


def random_weights(module: torch.nn.Module, seed: int) -> dict[str, Tensor]:
    """Draw weights that keep activations near 1 and make every one of them matter; frequencies stay."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, tensor in module.state_dict().items():
        noise = torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
        if name == "rope.inv_freq":
            weights[name] = tensor
        elif "norm" in name:
            weights[name] = 1 + 0.2 * noise
        elif tensor.dim() == 1:
            weights[name] = 0.2 * noise
        else:
            weights[name] = noise * tensor.shape[1] ** -0.5
    return weights


def diffusers_names(comfy: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename ComfyUI's tensors; fused q, k, v are split and fc1's halves swapped on the way."""
    renamed: dict[str, Tensor] = {}
    for name, tensor in comfy.items():
        if name == "rope.inv_freq":
            continue  # diffusers computes it
        theirs = in_diffusers(name)
        if "qkv_proj" in name:
            for letter, rows in zip("qkv", tensor.chunk(3), strict=True):
                renamed[theirs.replace("qkv_proj", f"to_{letter}")] = rows
        elif "mlp.fc1" in name:
            renamed[theirs] = tensor.roll(tensor.shape[0] // 2, dims=0)
        else:
            renamed[theirs] = tensor
    return renamed


def in_diffusers(name: str) -> str:
    """Translate part by part; `qkv_proj`, which diffusers splits, stays."""
    for ours, theirs in DIFFUSERS_PARTS:
        name = name.replace(ours, theirs)
    return name


@pytest.fixture(scope="session")
def diffusers_name() -> Callable[[str], str]:
    """Return diffusers' name of one of ComfyUI's; `qkv_proj`, which is three there, stays."""
    return in_diffusers


DIFFUSERS_PARTS = (
    ("token_refiner.blocks", "token_refiner.refiner_layers"),
    ("blocks.", "transformer_blocks."),
    ("token_refiner.refiner_layers", "token_refiner.refiner_blocks"),
    ("time_embedder.proj_in", "time_embedder.linear_1"),
    ("time_embedder.proj_out", "time_embedder.linear_2"),
    ("video_patch_proj", "proj_in"),
    ("audio_patch_proj", "audio_proj_in"),
    ("condition_proj", "context_embedder"),
    ("attn.q_norm", "attn.norm_q"),
    ("attn.k_norm", "attn.norm_k"),
    ("attn.out_proj", "attn.to_out.0"),
    ("mlp.fc1", "ff.net.0.proj"),
    ("mlp.fc2", "ff.net.2"),
    ("final_layer.norm", "norm_out.norm"),
    ("final_layer.adaln_proj.linear", "norm_out.linear"),
    ("final_layer.video_out", "proj_out"),
    ("final_layer.audio_out", "audio_proj_out"),
)
"""Applied in order: the refiner steps aside while `blocks.` is renamed."""
