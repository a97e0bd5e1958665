"""Settings of the client, read once from the environment; flags override them.

Environment and flags are defaults for whoever builds a job; a job that exists is never altered.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from client.errors import ClientSettingsError
from queue_schemas.environment import DEFAULT_FLEET, DEFAULT_REDIS_URL, check_environment
from queue_schemas.jobs import VaeDtype
from storage.uri import DEFAULT_STORAGE_URL


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """Where the fleet is, and what a job gets where its builder says nothing."""

    redis_url: str = DEFAULT_REDIS_URL
    storage_url: str = DEFAULT_STORAGE_URL
    fleet: str = DEFAULT_FLEET
    checkpoint: str | None = None
    vae_dtype: VaeDtype | None = None
    vae_tile_size: int | None = None
    warnings: tuple[str, ...] = ()
    """Of `H3_*` names that are unknown or do nothing, each a sentence."""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Read `H3_*`; an empty value counts as not set. Raises ClientSettingsError, EnvironmentNameError."""
        environ = os.environ if environ is None else environ
        read = {name: value for name, value in environ.items() if value}
        return cls(
            redis_url=read.get("H3_REDIS_URL", DEFAULT_REDIS_URL),
            storage_url=read.get("H3_STORAGE_URL", DEFAULT_STORAGE_URL),
            fleet=read.get("H3_FLEET", DEFAULT_FLEET),
            checkpoint=read.get("H3_CHECKPOINT"),
            vae_dtype=_vae_dtype(read.get("H3_VAE_DTYPE")),
            vae_tile_size=_whole_number(read, "H3_VAE_TILE_SIZE", what="pixels such as 256"),
            warnings=(*check_environment(environ), *_head_slice_warnings(read)),
        )

    def job_defaults(self) -> dict[str, Any]:
        """Return the job fields that these settings supply; the schema checks their values."""
        fields = {"vae_dtype": self.vae_dtype, "vae_tile_size": self.vae_tile_size}
        return {name: value for name, value in fields.items() if value is not None}


def environment_without_settings(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment less every `H3_*` name, for a node that must not inherit the user's fleet."""
    environ = os.environ if environ is None else environ
    return {name: value for name, value in environ.items() if not name.startswith("H3_")}


def _vae_dtype(value: str | None) -> VaeDtype | None:
    if value is None:
        return None
    try:
        return VaeDtype(value)
    except ValueError:
        raise ClientSettingsError(f"H3_VAE_DTYPE is {value!r}; use {' or '.join(VaeDtype)}") from None


def _whole_number(read: Mapping[str, str], name: str, *, what: str) -> int | None:
    value = read.get(name)
    if value is None:
        return None
    if not re.fullmatch(r"[1-9][0-9]{0,8}", value):
        raise ClientSettingsError(f"{name} is {value!r}; give a whole number of {what}")
    return int(value)


def _head_slice_warnings(read: Mapping[str, str]) -> list[str]:
    """Check the names of an attention that no engine of this version has; say that they do nothing."""
    _whole_number(read, "H3_HEAD_SLICE_SIZE", what="heads such as 8")
    backend = read.get("H3_HEAD_SLICE_BACKEND")
    if backend is not None and not re.fullmatch(r"[a-z][a-z0-9_]*", backend):
        raise ClientSettingsError(f"H3_HEAD_SLICE_BACKEND is {backend!r}; name a backend such as sage2")
    names = [name for name in ("H3_HEAD_SLICE_BACKEND", "H3_HEAD_SLICE_SIZE") if name in read]
    return [f"{name} does nothing: this version has no kj_head_sliced attention" for name in names]
