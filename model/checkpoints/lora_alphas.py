"""What a LoRA's metadata says of its factor, for pairs that have no alpha of their own. Imports no torch.

Sources: PEFT; kohya; the published turbo files.
"""

import json
import math
from typing import Final

from model.checkpoints.header import Header
from model.lora.errors import LoraFileError

ALPHA_KEYS: Final = ("alpha", "lora_alpha", "network_alpha", "ss_network_alpha")
BAKED_KEY: Final = "baked_scale"
"""A resized file with this entry has its factor multiplied into `up`."""
PEFT_KEY: Final = "lora_adapter_metadata"
"""Where diffusers keeps PEFT's configuration, as JSON."""


def default_alpha(header: Header) -> float | None:
    """Return the alpha of pairs that have none of their own; None for a factor of 1. Raises LoraFileError."""
    metadata = header.metadata
    if BAKED_KEY in metadata:
        return None
    found = {key: metadata[key] for key in ALPHA_KEYS if key in metadata}
    found |= _peft_alpha(header)
    for key, text in found.items():
        try:
            return checked_alpha(float(text))
        except ValueError:
            raise LoraFileError(header.path, f"metadata {key} is {text!r:.40}, no positive number") from None
    return None


def _peft_alpha(header: Header) -> dict[str, str]:
    if PEFT_KEY not in header.metadata:
        return {}
    try:
        fields = json.loads(header.metadata[PEFT_KEY])
        own = {str(key).rpartition(".")[2]: value for key, value in fields.items()}
    except (ValueError, AttributeError, RecursionError):
        raise LoraFileError(header.path, f"metadata {PEFT_KEY} is no JSON object") from None
    for key in ("alpha_pattern", "use_rslora", "use_dora"):
        if own.get(key):
            raise LoraFileError(header.path, f"metadata {PEFT_KEY} asks for {key}, which is not applied here")
    return {"lora_alpha": str(own["lora_alpha"])} if "lora_alpha" in own else {}


def checked_alpha(alpha: float) -> float:
    """Return `alpha` if it is a positive number; raise ValueError otherwise."""
    if not (math.isfinite(alpha) and alpha > 0):
        raise ValueError(f"{alpha} is no alpha")
    return alpha
