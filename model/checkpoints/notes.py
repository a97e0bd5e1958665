"""Sentences about what a header cannot tell, and about the traps that the files at hand are known for."""

from collections.abc import Iterator

from model.checkpoints.contents import Contents
from model.checkpoints.header import Header
from model.checkpoints.loras import FoundLora
from model.checkpoints.names import pattern_of
from model.quant.marker import QuantFormat


def notes_on(contents: Contents, header: Header) -> Iterator[str]:
    """Yield what is worth knowing of a model's file."""
    recognised, comparison = contents.recognised, contents.comparison
    if header.trailing_bytes:
        yield f"{header.trailing_bytes:,} bytes behind the last tensor belong to none; they are ignored"
    if recognised is None or comparison is None:
        return
    formats = {layer.marker.format for layer in contents.layers if layer.marker is not None}
    if recognised.family == "transformer":
        yield "fl2va and ref2va have the same names, shapes and dtypes: only hashes of content tell the task"
        if recognised.layout == "diffusers":
            yield "q, k and v are split here, and fc1 has its value rows before its gate rows"
        elif not contents.layers and recognised.depth == "full":
            yield (
                "MiniMax's own file has these names and shapes too, with the rows of attn.qkv_proj"
                " interleaved by head; only values tell, and a wrong order gives grey noise"
            )
    if QuantFormat.NVFP4 in formats:
        yield "that nvfp4's scales are swizzled is the format's rule; plain ones would have the same shape"
    if any("pre_quant_scale" in layer.tensors for layer in contents.layers):
        yield "AWQ factors are folded into this file's norms: its linears fit the norms of no other file"
    if len(comparison.missing) > len(comparison.shapes) // 4:
        yield "much of the model is missing: perhaps one shard of several"
    if comparison.decoder_alone:
        yield "it holds the decoder alone: jobs with keyframes or references are refused"
    if comparison.beyond:
        patterns = ", ".join(sorted({pattern_of(name) for name in comparison.beyond})[:3])
        yield f"{len(comparison.beyond)} tensors are known and yet of no use here: {patterns}"
    if header.metadata.get("weights") == "random":
        yield "its metadata says that the weights are random: made for tests"


def notes_on_lora(lora: FoundLora, header: Header) -> Iterator[str]:
    """Yield what is worth knowing of a LoRA."""
    if "baked_scale" in header.metadata:
        yield "its metadata says that the scale is already in the factors (baked_scale): alpha adds nothing"
    if lora.adaln_width is not None and lora.adaln_width > 64:
        yield f"its AdaLN pairs are {lora.adaln_width} wide: they fit the full layout, not the pruned one"
    if lora.others:
        yield "it also replaces or adds whole tensors: a plain LoRA loader drops those"
    if "diffsynth" in lora.dialects:
        yield "DiffSynth's names go with the official row order: qkv rows are interleaved by head"
