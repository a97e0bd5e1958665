"""Names of attention backends, and which of them a device has.

`auto` is the only name that chooses; any other name gives exactly that backend or an error.
"""

import torch

from model.attention.base import AttentionFn
from model.attention.sdpa import sdpa
from model.errors import AttentionUnavailableError

AUTO = "auto"


def backends(device: torch.device) -> dict[str, AttentionFn]:
    """Return what runs on `device`, best first."""
    return {"sdpa": sdpa}


def available_attention(device: torch.device) -> list[str]:
    """Return the names a job may ask for on `device`, best first; `auto` is understood besides."""
    return list(backends(device))


def resolve_attention(name: str, device: torch.device) -> tuple[str, AttentionFn]:
    """Return the backend's own name and function; `auto` takes the best one.

    Raises AttentionUnavailableError when a named backend is not there.
    """
    found = backends(device)
    actual = next(iter(found)) if name == AUTO else name
    if actual not in found:
        raise AttentionUnavailableError(name, available=list(found))
    return actual, found[actual]
