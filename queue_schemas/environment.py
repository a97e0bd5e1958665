"""Every `H3_*` environment name, with its meaning, and the defaults that nodes and clients must share.

Reading the environment is each process's `settings.py`.
"""

from collections.abc import Mapping
from typing import Final

from queue_schemas.errors import SchemaError, nearest_hint

DEFAULT_REDIS_URL: Final = "redis://127.0.0.1:6379/0"
DEFAULT_FLEET: Final = "h3"
ENVIRONMENT: Final[Mapping[str, str]] = {
    "H3_REDIS_URL": "redis://, rediss:// or unix:// address of the queue",
    "H3_STORAGE_URL": "where outputs and records go: a folder, file:///folder or s3://bucket/prefix?endpoint=...",
    "H3_MODELS_DIR": "ComfyUI models folder with diffusion_models/, text_encoders/, vae/",
    "H3_TOKENIZER_DIR": "folder with tokenizer.json; overrides the built-in Qwen vocabulary",
    "H3_CHECKPOINT": "name of the resident set",
    "H3_OUTPUT_DIR": "where the engine writes films before they are stored",
    "H3_CONDITIONING_MEMORY_GB": "host memory for text features of earlier prompts; 0 keeps none",
    "H3_CONDITIONING_DISK_GB": "disk for them; 0 keeps none",
    "H3_CONDITIONING_DIR": "folder for them; conditioning below H3_OUTPUT_DIR when not set",
    "H3_CONDITIONING_SHARED": "1: share them with other nodes through the store",
    "H3_PORT": "port of the engine on this machine",
    "H3_ENGINE_URL": "an engine that already runs; h3-worker run then starts none",
    "H3_NODE": "name of this node in the fleet; host name and engine port when not set",
    "H3_API_TOKEN": "token the engine demands when it listens beyond loopback",
    "H3_FLEET": "name of the fleet; it prefixes every key in Redis",
    "H3_VAE_DTYPE": "float16 or float32, default for whoever builds a job",
    "H3_VAE_TILE_SIZE": "pixels, default for whoever builds a job",
    "H3_HEAD_SLICE_BACKEND": "backend of kj_head_sliced attention",
    "H3_HEAD_SLICE_SIZE": "heads per slice of kj_head_sliced attention",
    "H3_STRICT_ENV": "1: an unknown H3_* name is an error, not a warning",
}


class EnvironmentNameError(SchemaError):
    """Raised for an unknown H3_* name under H3_STRICT_ENV=1, or a value of that which is neither 1 nor 0."""


def check_environment(environ: Mapping[str, str]) -> list[str]:
    """Return one warning per unknown `H3_*` name in `environ`, with the nearest known one.

    Raises EnvironmentNameError instead when H3_STRICT_ENV is 1, and for any other value of it but 0.
    """
    strict = environ.get("H3_STRICT_ENV") or "0"
    if strict not in ("0", "1"):
        raise EnvironmentNameError(f"H3_STRICT_ENV is {strict!r}; write 1 or 0")
    unknown = sorted(name for name in environ if name.startswith("H3_") and name not in ENVIRONMENT)
    warnings = [f"unknown environment name {name}{nearest_hint(name, ENVIRONMENT)}" for name in unknown]
    if warnings and strict == "1":
        raise EnvironmentNameError("; ".join(warnings))
    return warnings
