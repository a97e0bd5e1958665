"""`h3-tiny`: the whole resident set in ComfyUI's folder layout, a few megabytes of random weights.

Every format, name and shape rule is that of the published files (pruned bf16 transformer, bf16 text encoder,
fp16 video VAE, fp32 audio VAE); only the sizes are small. Films made with it are drifting coloured blotches.
"""

import logging
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from model import audio_vae, video_vae
from model.audio_vae import AudioDecoder
from model.config import TINY, H3Config
from model.dit import H3Transformer
from model.errors import SyntheticFolderError
from model.synthetic.encoder_tensors import Shapes, audio_encoder_shapes, video_encoder_shapes
from model.synthetic.weights import random_tensor
from model.text_encoder.encoder import expected_shapes
from model.text_encoder.tokenizer import write_tiny_tokenizer
from model.video_vae import VideoDecoder

H3_TINY: Final = "h3-tiny"
STAMP: Final = "recipe.txt"
RECIPE: Final = "2"
"""Raised whenever the bytes change; a folder written by another recipe is written again."""
SEED: Final = 20_260_801
VIDEO_ENCODER_WIDTHS: Final = (32, 64, 64, 96, 96, 128)
AUDIO_ENCODER_DIM: Final = 8
FLOAT32_PARTS: Final = (
    "video_patch_proj.", "audio_patch_proj.", "time_embedder.", "rope.", "adaln_t_table",
    "final_layer.video_out.", "final_layer.audio_out.",
)  # fmt: skip
"""Transformer tensors that every published unquantised file stores as F32."""

log = logging.getLogger(__name__)


def ensure_h3_tiny(folder: Path) -> Path:
    """Return `folder` with h3-tiny in it, written now (a second or two) unless it is there already.

    Raises SyntheticFolderError.
    """
    stamp = folder / STAMP
    if stamp.is_file() and stamp.read_text() == RECIPE:
        return folder
    if os.path.lexists(folder) and not (folder / STAMP).is_file():
        raise SyntheticFolderError(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as error:
        raise SyntheticFolderError(folder, error.strerror) from error
    try:
        partial.chmod(0o755)  # mkdtemp makes a private folder; this one is read by any engine
        write_h3_tiny(partial)
        _publish(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    log.info("wrote %s to %s", H3_TINY, folder)
    return folder


def write_h3_tiny(folder: Path, config: H3Config = TINY) -> None:
    """Write the four files, the tokenizer and the stamp below `folder`."""
    files = {
        f"diffusion_models/{H3_TINY}.safetensors": transformer_tensors(config),
        f"text_encoders/{H3_TINY}-qwen3vl.safetensors": text_encoder_tensors(config),
        f"vae/{H3_TINY}-video-vae.safetensors": video_vae_tensors(config),
        f"vae/{H3_TINY}-audio-vae.safetensors": audio_vae_tensors(config),
    }
    for name, tensors in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(dict(tensors), path, metadata={"weights": "random"})
        path.chmod(0o644)  # the library creates it for its owner alone
    write_tiny_tokenizer(folder / "tokenizer")
    (folder / STAMP).write_text(RECIPE)


def transformer_tensors(config: H3Config) -> dict[str, Tensor]:
    """Pruned layouts store AdaLN as F16, full ones as BF16; both keep the same float32 islands."""
    with torch.device("meta"):
        module = H3Transformer(config.transformer)

    def dtype(name: str) -> torch.dtype:
        if name.startswith(FLOAT32_PARTS):
            return torch.float32
        pruned_adaln = config.transformer.pruned and "adaln_proj" in name
        return torch.float16 if pruned_adaln else torch.bfloat16

    return {
        name: random_tensor(name, shape, seed=SEED).to(dtype(name)) for name, shape in _shapes(module).items()
    }


def text_encoder_tensors(config: H3Config) -> dict[str, Tensor]:
    return _draw(expected_shapes(config.text_encoder), torch.bfloat16)


def video_vae_tensors(config: H3Config) -> dict[str, Tensor]:
    with torch.device("meta"):
        shapes = _shapes(VideoDecoder(config.video_vae))
    shapes |= video_encoder_shapes(VIDEO_ENCODER_WIDTHS, latent_channels=config.video_vae.latent_channels)
    return _draw(shapes, torch.float16, fixed=video_vae.default_tensors(config.video_vae))


def audio_vae_tensors(config: H3Config) -> dict[str, Tensor]:
    with torch.device("meta"):
        shapes = _shapes(AudioDecoder(config.audio_vae))
    shapes |= audio_encoder_shapes(AUDIO_ENCODER_DIM, latent_channels=config.audio_vae.latent_channels)
    return _draw(shapes, torch.float32, fixed=audio_vae.default_tensors(config.audio_vae))


def _shapes(module: nn.Module) -> Shapes:
    return {name: tuple(value.shape) for name, value in module.state_dict().items()}


def _draw(
    shapes: Shapes, dtype: torch.dtype, *, fixed: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """Random tensors of `shapes`; `fixed` are constants of the release, such as the latents' statistics."""
    given = fixed or {}
    return {
        name: (given[name] if name in given else random_tensor(name, shape, seed=SEED)).to(dtype)
        for name, shape in shapes.items()
    }


def _publish(partial: Path, folder: Path) -> None:
    """Move the finished folder into place; whoever comes second keeps what the first one wrote."""
    if folder.exists():
        shutil.rmtree(folder)
    try:
        partial.rename(folder)
    except OSError:
        if not (folder / STAMP).is_file():
            raise
