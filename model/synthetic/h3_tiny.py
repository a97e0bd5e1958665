"""`h3-tiny`: the whole resident set in ComfyUI's folder layout, a few megabytes of random weights.

Its files are those that `python -m model.synthetic` writes of four variants at tiny size; every format, name
and shape rule is that of the published ones. Films made with it are drifting coloured blotches.
"""

import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

from model.checkpoints.descriptions import describe
from model.errors import SyntheticFolderError
from model.synthetic.values import Values
from model.synthetic.writer import write_file
from model.text_encoder.tokenizer import write_tiny_tokenizer

H3_TINY: Final = "h3-tiny"
STAMP: Final = "recipe.txt"
RECIPE: Final = "2"
"""Raised whenever the bytes change; a folder written by another recipe is written again."""
FILES: Final = {
    "dit_pruned_bf16": f"diffusion_models/{H3_TINY}.safetensors",
    "te_qwen3vl_bf16": f"text_encoders/{H3_TINY}-qwen3vl.safetensors",
    "vae_video_fp16": f"vae/{H3_TINY}-video-vae.safetensors",
    "vae_audio_fp32": f"vae/{H3_TINY}-audio-vae.safetensors",
}
"""Variant to its file's place."""

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


def write_h3_tiny(folder: Path) -> None:
    """Write the four files, the tokenizer and the stamp below `folder`."""
    for variant, name in FILES.items():
        description = describe(variant, "tiny")
        write_file(folder / name, description, Values(description).bytes)
    write_tiny_tokenizer(folder / "tokenizer")
    (folder / STAMP).write_text(RECIPE)


def _publish(partial: Path, folder: Path) -> None:
    """Move the finished folder into place; whoever comes second keeps what the first one wrote."""
    if folder.exists():
        shutil.rmtree(folder)
    try:
        partial.rename(folder)
    except OSError:
        if not (folder / STAMP).is_file():
            raise
