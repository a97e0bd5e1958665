"""Which file plays which role, in ComfyUI's folder layout.

A role is recognised by tensor names, never by file name: published names repeat across different contents.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from model.errors import CheckpointFileError, CheckpointMissingError
from model.loading.header import Header, read_header
from model.loading.tensors import wrapper_prefix

FOLDERS: Final[Mapping[str, str]] = {
    "transformer": "diffusion_models",
    "text_encoder": "text_encoders",
    "video_vae": "vae",
    "audio_vae": "vae",
}
OPTIONS: Final[Mapping[str, str]] = {
    "transformer": "--checkpoint",
    "text_encoder": "--text-encoder",
    "video_vae": "--video-vae",
    "audio_vae": "--audio-vae",
}
MARKS: Final[Mapping[str, tuple[str, ...]]] = {
    "transformer": ("video_patch_proj.weight", "audio_patch_proj.weight"),
    "text_encoder": ("visual.deepstack_merger_list.0.norm.weight", "model.layers.0.self_attn.q_proj.weight"),
    "video_vae": ("decoder.transformer_blocks.0.scale1", "post_quant_conv.weight"),
    "audio_vae": ("dec_in_proj.weight", "decoder.conv_pre.weight"),
}
"""Tensor names whose presence makes a file a candidate for a role."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidentFiles:
    """The checked headers of the files that make up one resident set."""

    name: str
    transformer: Header
    text_encoder: Header
    video_vae: Header
    audio_vae: Header
    tokenizer_dir: Path | None
    """None: the built-in Qwen vocabulary."""

    def headers(self) -> dict[str, Header]:
        return {role: getattr(self, role) for role in FOLDERS}


def find_files(
    models_dir: Path | None,
    *,
    checkpoint: str | None = None,
    text_encoder: str | None = None,
    video_vae: str | None = None,
    audio_vae: str | None = None,
    tokenizer_dir: Path | None = None,
) -> ResidentFiles:
    """Find one file per role: the named one, else the only one in the role's folder that holds such a model.

    A name is a path, or a file name below the role's folder with or without `.safetensors`.
    Raises CheckpointMissingError (which places were looked at) and CheckpointFileError.
    """
    named = {
        "transformer": checkpoint,
        "text_encoder": text_encoder,
        "video_vae": video_vae,
        "audio_vae": audio_vae,
    }
    found = {role: _find(role, models_dir, name) for role, name in named.items()}
    own_tokenizer = models_dir / "tokenizer" if models_dir else None
    if tokenizer_dir is None and own_tokenizer is not None and (own_tokenizer / "tokenizer.json").is_file():
        tokenizer_dir = own_tokenizer
    stem = found["transformer"].path.stem
    return ResidentFiles(name=_resident_name(stem), tokenizer_dir=tokenizer_dir, **found)


def plays(role: str, header: Header) -> bool:
    """Say whether a file holds the model of `role`."""
    prefix = wrapper_prefix(header.tensors)
    return all(prefix + mark in header.tensors for mark in MARKS[role])


def _find(role: str, models_dir: Path | None, name: str | None) -> Header:
    folder = models_dir / FOLDERS[role] if models_dir else None
    if name is not None:
        places = [Path(name)]
        if folder is not None:
            places += [folder / name, folder / f"{name}.safetensors"]
        chosen = next((place for place in places if place.is_file()), None)
        if chosen is None:
            raise CheckpointMissingError(role, looked_at=places)
        header = read_header(chosen)
        if not plays(role, header):
            raise CheckpointFileError(
                chosen, f"holds no H3 {role} (tensors {', '.join(MARKS[role])} are not there)"
            )
        return header
    if folder is None or not folder.is_dir():
        looked_at = [folder] if folder is not None else [Path(FOLDERS[role])]
        raise CheckpointMissingError(
            role,
            looked_at=looked_at,
            hint=f"set H3_MODELS_DIR or --models-dir, or name it with {OPTIONS[role]}",
        )
    return _only_candidate(role, folder)


def _only_candidate(role: str, folder: Path) -> Header:
    """The one file in `folder` that plays `role`; other models' files, common in ComfyUI, are passed over."""
    paths = sorted(folder.rglob("*.safetensors"))
    candidates, faults = [], []
    for path in paths:
        try:
            header = read_header(path)
        except CheckpointFileError as error:
            faults.append(error)
            continue
        if plays(role, header):
            candidates.append(header)
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        names = ", ".join(str(header.path.relative_to(folder)) for header in candidates)
        raise CheckpointMissingError(
            role, looked_at=[folder], hint=f"several fit ({names}); name one with {OPTIONS[role]}"
        )
    if faults:
        raise faults[0]
    raise CheckpointMissingError(
        role, looked_at=paths or [folder], hint=f"put the file there or name it with {OPTIONS[role]}"
    )


def _resident_name(stem: str) -> str:
    cleaned = "".join(char if char.isascii() and (char.isalnum() or char in "._-") else "-" for char in stem)
    return cleaned.lstrip("._-")[:100] or "checkpoint"
