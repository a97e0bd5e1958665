"""A LoRA as plain numbers, the file of it in each dialect, and a small transformer to load it beside."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from model.checkpoints.header import read_header
from model.config import TransformerConfig
from model.dit import H3Transformer
from model.lora.cards import card_of
from model.lora.files import LoraFile
from model.lora.plan import plan_lora, targets_of
from model.lora.resident import ResidentLoras
from queue_schemas.published import published_files

FULL = TransformerConfig(
    hidden_size=64,
    num_heads=2,  # heads of 128 channels: diffusers' converter knows no others
    num_layers=2,
    num_refiner_layers=1,
    ffn_dim=96,
    text_dim=32,
    time_freq_dim=32,
    time_hidden_dim=64,
    time_embed_dim=20,
)
RANK, ALPHA = 4, 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraNumbers:
    """Factors of every linear in the blocks; those of q, k and v are separate."""

    pairs: Mapping[str, Mapping[str, tuple[Tensor, Tensor]]]
    """Module to part (an empty name for the whole) to down [r, I] and up [O, r]."""

    def delta(self, module: str) -> Tensor:
        """What is added to the weight at strength 1: [O, I]."""
        return torch.cat([up @ down for down, up in self.pairs[module].values()]) * (ALPHA / RANK)

    def times(self, factor: float) -> "LoraNumbers":
        scaled = {m: {p: (a, b * factor) for p, (a, b) in parts.items()} for m, parts in self.pairs.items()}
        return LoraNumbers(pairs=scaled)

    def fused(self, module: str) -> tuple[Tensor, Tensor]:
        pairs = self.pairs[module].values()
        return torch.cat([down for down, _ in pairs]), torch.block_diag(*(up for _, up in pairs))

    def write(self, path: Path, dialect: str, *, metadata: dict[str, str] | None = None) -> Path:
        tensors = WRITERS[dialect](self)
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, metadata=metadata)
        return path


def draw_lora(config: TransformerConfig, *, seed: int, adaln: bool = False) -> LoraNumbers:
    generator = torch.Generator().manual_seed(seed)
    hidden, width, ffn = config.hidden_size, config.attention_dim, config.ffn_dim

    def pair(rows: int, columns: int) -> tuple[Tensor, Tensor]:
        down = torch.randn(RANK, columns, generator=generator) * columns**-0.5
        return down, torch.randn(rows, RANK, generator=generator)

    blocks = [f"blocks.{i}" for i in range(config.num_layers)]
    refiners = [f"token_refiner.blocks.{i}" for i in range(config.num_refiner_layers)]
    pairs: dict[str, dict[str, tuple[Tensor, Tensor]]] = {}
    for block in blocks + refiners:
        pairs[f"{block}.attn.qkv_proj"] = {part: pair(width, hidden) for part in "qkv"}
        pairs[f"{block}.attn.out_proj"] = {"": pair(hidden, width)}
        pairs[f"{block}.mlp.fc1"] = {"": pair(2 * ffn, hidden)}
        pairs[f"{block}.mlp.fc2"] = {"": pair(hidden, ffn)}
    for block in blocks if adaln else ():
        pairs[f"{block}.adaln_proj.linear"] = {"": pair(18 * hidden, config.time_embed_dim)}
    return LoraNumbers(pairs=pairs)


def comfyui(lora: LoraNumbers, *, prefix: str = "diffusion_model.") -> dict[str, Tensor]:
    tensors = {}
    for module, parts in lora.pairs.items():
        down, up = lora.fused(module)
        tensors[f"{prefix}{module}.lora_A.weight"] = down
        tensors[f"{prefix}{module}.lora_B.weight"] = up
        tensors[f"{prefix}{module}.alpha"] = torch.tensor(ALPHA * len(parts))
    return tensors


def bare(lora: LoraNumbers) -> dict[str, Tensor]:
    """Without prefix and alpha: the factor is in `up`."""
    tensors = {}
    for module in lora.pairs:
        down, up = lora.fused(module)
        tensors[f"{module}.lora_A.weight"] = down
        tensors[f"{module}.lora_B.weight"] = up * (ALPHA / RANK)
    return tensors


def kohya(lora: LoraNumbers) -> dict[str, Tensor]:
    tensors = {}
    for module, parts in lora.pairs.items():
        down, up = lora.fused(module)
        flat = f"lora_unet_{module.replace('.', '_')}"
        tensors[f"{flat}.lora_down.weight"], tensors[f"{flat}.lora_up.weight"] = down, up
        tensors[f"{flat}.alpha"] = torch.tensor(ALPHA * len(parts))
    return tensors


def diffsynth(lora: LoraNumbers) -> dict[str, Tensor]:
    """On MiniMax' own shards: q, k and v of the first head, then of the next."""
    tensors = {}
    for name, tensor in bare(lora).items():
        rows = tensor
        if name.endswith("qkv_proj.lora_B.weight"):
            heads = tensor.shape[0] // (3 * FULL.head_dim)
            rows = tensor.view(3, heads, FULL.head_dim, -1).transpose(0, 1).reshape(tensor.shape)
        tensors[name.replace(".weight", ".default.weight")] = rows
    return tensors


def peft(lora: LoraNumbers, *, prefix: str = "transformer.", infix: str = "") -> dict[str, Tensor]:
    """As diffusers trains and saves: q, k, v apart, the value before the gate, no alpha."""
    tensors = {}
    for module, parts in lora.pairs.items():
        name = module
        for ours, theirs in DIFFUSERS_NAMES:
            name = name.replace(ours, theirs)
        for part, (down, up) in parts.items():
            own = name.replace("qkv_proj", f"to_{part}")
            scaled = up * (ALPHA / RANK)
            rows = scaled.roll(len(up) // 2, 0) if module.endswith("fc1") else scaled
            tensors[f"{prefix}{own}.lora_A{infix}.weight"] = down
            tensors[f"{prefix}{own}.lora_B{infix}.weight"] = rows
    return tensors


DIFFUSERS_NAMES = (
    ("token_refiner.blocks", "token_refiner.refiner_layers"),
    ("blocks.", "transformer_blocks."),
    ("token_refiner.refiner_layers", "token_refiner.refiner_blocks"),
    ("attn.out_proj", "attn.to_out.0"),
    ("mlp.fc1", "ff.net.0.proj"),
    ("mlp.fc2", "ff.net.2"),
)
WRITERS: Mapping[str, Callable[[LoraNumbers], dict[str, Tensor]]] = {
    "comfyui": comfyui,
    "bare": bare,
    "kohya": kohya,
    "diffsynth": diffsynth,
    "diffusers": peft,
    "diffusers without prefix": lambda lora: peft(lora, prefix=""),
    "peft's own": lambda lora: peft(lora, prefix="", infix=".default"),
    "peft's wrapper": lambda lora: peft(lora, prefix="base_model.model."),
}


def make_transformer(config: TransformerConfig = FULL, *, seed: int = 1) -> H3Transformer:
    transformer = H3Transformer(config, compute_dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(seed)
    weights = {
        name: tensor
        if name == "rope.inv_freq"
        else torch.randn(tensor.shape, generator=generator) * tensor.shape[-1] ** -0.5 + ("norm" in name)
        for name, tensor in transformer.state_dict().items()
    }
    transformer.load_state_dict(weights)
    return transformer


def load(transformer: H3Transformer, *paths: Path, allow_partial: bool = False) -> ResidentLoras:
    """Load LoRAs, each named after its file."""
    targets, loras = targets_of(transformer), ResidentLoras(transformer)
    for path in paths:
        file = LoraFile(name=path.stem, header=read_header(path))
        plan = plan_lora(file.header, targets, allow_partial=allow_partial)
        loras.load(plan, card_of(file, plan, published_files()))
    return loras
