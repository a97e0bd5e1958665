"""What a resident text encoder is, as far as its features depend on it."""

import torch

from model.conditioning.keys import EncoderIdentity
from model.quant.int8 import Int8Embedding
from model.quant.linear import QuantLinear
from model.receipts import DeviceFacts, dtype_name
from model.text_encoder.encoder import TextEncoder
from queue_schemas.benchmark import CheckpointSet


def encoder_identity(
    encoder: TextEncoder, checkpoint: CheckpointSet, *, tokenizer: str, facts: DeviceFacts
) -> EncoderIdentity:
    """Return the identity of the encoder of a set on this device; `tokenizer` is the tokenizer's own."""
    (file,) = (file for file in checkpoint.files if file.role == "text_encoder")
    assert file.sample_sha256 is not None, "checkpoint_set samples every file"
    quantised = (each for each in encoder.model.modules() if isinstance(each, QuantLinear | Int8Embedding))
    on_gpu = encoder.device.type == "cuda"
    return EncoderIdentity(
        header_sha256=file.header_sha256,
        sample_sha256=file.sample_sha256,
        formats=tuple(sorted({type(each).__name__ for each in quantised})),
        dtype=dtype_name(encoder.dtype),
        tokenizer=tokenizer,
        device=facts.device,
        backend=f"cuda {torch.version.cuda}" if on_gpu else _cpu_backend(),
        versions={"torch": torch.__version__, "transformers": facts.versions.get("transformers", "")},
    )


def _cpu_backend() -> str:
    """Both decide in which order a CPU sums."""
    return f"{torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads"
