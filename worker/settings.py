"""Settings of a node's processes. The only file of this package that reads the environment."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from broker.address import show_address
from broker.errors import BrokerError
from broker.keys import check_fleet
from queue_schemas.environment import DEFAULT_FLEET, DEFAULT_REDIS_URL, check_environment
from queue_schemas.errors import SchemaError
from queue_schemas.names import NAME_PATTERN
from storage.errors import StorageError
from storage.uri import DEFAULT_STORAGE_URL, open_store
from worker.errors import SettingsError
from worker.machine import node_name

DEFAULT_OUTPUT_DIR: Final = Path("outputs/engine")
DEFAULT_PORT: Final = 8033
DEFAULT_CONDITIONING_MEMORY_GB: Final = 2.0
DEFAULT_CONDITIONING_DISK_GB: Final = 10.0
_MOST_GB: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the environment says; options of a command replace single fields. A bad value is refused here."""

    redis_url: str = field(default=DEFAULT_REDIS_URL, repr=False)  # may hold a password
    storage_url: str = DEFAULT_STORAGE_URL
    models_dir: Path | None = None
    tokenizer_dir: Path | None = None
    checkpoint: str | None = None
    output_dir: Path = DEFAULT_OUTPUT_DIR
    port: int = DEFAULT_PORT
    """0 lets the supervisor choose a free one."""
    engine_url: str | None = None
    """An engine that already runs on this machine; the node then starts none."""
    api_token: str | None = field(default=None, repr=False)
    fleet: str = DEFAULT_FLEET
    node: str | None = None
    """Name of this node; host name and engine port when not set."""
    conditioning_memory_gb: float = DEFAULT_CONDITIONING_MEMORY_GB
    conditioning_disk_gb: float = DEFAULT_CONDITIONING_DISK_GB
    """Bounds of the conditioning cache; 0 turns a level off."""
    conditioning_dir: Path | None = None
    """Its folder; `conditioning` below `output_dir` when not set."""
    conditioning_shared: bool = False
    redis_named: bool = False
    """Whether somebody said which queue to use; then a node must not start one of its own."""

    def __post_init__(self) -> None:
        try:
            show_address(self.redis_url)
            check_fleet(self.fleet)
            open_store(self.storage_url)
        except (BrokerError, StorageError) as error:
            raise SettingsError(str(error)) from None
        if not 0 <= self.port <= 65_535:
            raise SettingsError(f"port {self.port}: a port lies between 0 and 65535")
        if self.node is not None and not re.fullmatch(NAME_PATTERN, self.node):
            raise SettingsError(
                f"{self.node!r} is no node name: letters, digits, '.', '_' and '-', at most 100"
            )
        for bound in (self.conditioning_memory_gb, self.conditioning_disk_gb):
            if not 0 <= bound <= _MOST_GB:
                raise SettingsError(
                    f"the conditioning cache cannot have {bound:g} GB; give 0 to {_MOST_GB:,}"
                )
        if self.engine_url is not None:
            _check_engine_url(self.engine_url)
        if self.api_token is not None and not (self.api_token.isascii() and self.api_token.isprintable()):
            raise SettingsError("H3_API_TOKEN must be printable ASCII, since it travels in a header")


def read_settings(environ: Mapping[str, str] | None = None) -> tuple[Settings, list[str]]:
    """Return the settings and one warning per unknown `H3_*` name. Raises SettingsError."""
    environ = os.environ if environ is None else environ
    try:
        warnings = check_environment(environ)
    except SchemaError as error:
        raise SettingsError(str(error)) from None
    values: dict[str, str] = {name: value for name, value in environ.items() if value}
    settings = Settings(
        redis_url=values.get("H3_REDIS_URL", DEFAULT_REDIS_URL),
        storage_url=values.get("H3_STORAGE_URL", DEFAULT_STORAGE_URL),
        models_dir=_path(values.get("H3_MODELS_DIR")),
        tokenizer_dir=_path(values.get("H3_TOKENIZER_DIR")),
        checkpoint=values.get("H3_CHECKPOINT"),
        output_dir=_path(values.get("H3_OUTPUT_DIR")) or DEFAULT_OUTPUT_DIR,
        port=_port(values.get("H3_PORT")),
        engine_url=values.get("H3_ENGINE_URL"),
        api_token=values.get("H3_API_TOKEN"),
        fleet=values.get("H3_FLEET", DEFAULT_FLEET),
        node=values.get("H3_NODE"),
        conditioning_memory_gb=_gigabytes(
            values, "H3_CONDITIONING_MEMORY_GB", DEFAULT_CONDITIONING_MEMORY_GB
        ),
        conditioning_disk_gb=_gigabytes(values, "H3_CONDITIONING_DISK_GB", DEFAULT_CONDITIONING_DISK_GB),
        conditioning_dir=_path(values.get("H3_CONDITIONING_DIR")),
        conditioning_shared=_switch(values, "H3_CONDITIONING_SHARED"),
        redis_named="H3_REDIS_URL" in values,
    )
    return settings, warnings


def child_environment(settings: Settings) -> dict[str, str]:
    """Return the environment for a child: this process's own, with `settings` written in.

    Secrets travel this way and never as arguments, which every user of the machine can read.
    """
    named: dict[str, str | None] = {
        "H3_REDIS_URL": settings.redis_url,
        "H3_STORAGE_URL": settings.storage_url,
        "H3_MODELS_DIR": _text(settings.models_dir),
        "H3_TOKENIZER_DIR": _text(settings.tokenizer_dir),
        "H3_CHECKPOINT": settings.checkpoint,
        "H3_OUTPUT_DIR": str(settings.output_dir),
        "H3_PORT": str(settings.port),
        "H3_ENGINE_URL": settings.engine_url,
        "H3_API_TOKEN": settings.api_token,
        "H3_FLEET": settings.fleet,
        "H3_NODE": settings.node,
        "H3_CONDITIONING_MEMORY_GB": str(settings.conditioning_memory_gb),
        "H3_CONDITIONING_DISK_GB": str(settings.conditioning_disk_gb),
        "H3_CONDITIONING_DIR": _text(settings.conditioning_dir),
        "H3_CONDITIONING_SHARED": str(int(settings.conditioning_shared)),
    }
    kept = {name: value for name, value in os.environ.items() if name not in named}
    return kept | {name: value for name, value in named.items() if value is not None}


def let_idle_threads_sleep() -> None:
    """Have OpenMP's threads sleep at barriers instead of spinning; call before torch is imported.

    A tiny model on two cores took 26 s instead of 0.3 s while one other process kept a core busy: every one
    of its thousands of barriers spun until that process was preempted. A value that is set already stays.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def node_of(settings: Settings) -> str:
    """Return the node's name: the chosen one, else the host's with the port of the engine."""
    if settings.node is not None:
        return settings.node
    port = urlsplit(settings.engine_url).port if settings.engine_url else settings.port
    return node_name(port)


def _path(value: str | None) -> Path | None:
    return Path(value).expanduser() if value else None


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _port(value: str | None) -> int:
    if value is None:
        return DEFAULT_PORT
    if not value.isdecimal() or not value.isascii() or len(value) > 5:
        raise SettingsError(f"H3_PORT is {value!r}; write a number, for example {DEFAULT_PORT}")
    return int(value)


def _gigabytes(values: Mapping[str, str], name: str, default: float) -> float:
    try:
        return float(values.get(name, default))
    except ValueError:
        raise SettingsError(
            f"{name} is {values[name]!r:.100}; write gigabytes, such as {default:g}"
        ) from None


def _switch(values: Mapping[str, str], name: str) -> bool:
    text = values.get(name, "0")
    if text not in ("0", "1"):
        raise SettingsError(f"{name} is {text!r:.100}; write 1 or 0")
    return text == "1"


def _check_engine_url(url: str) -> None:
    """Take host and port only, since the address is shown as it is; a refusal does not repeat it."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and (parts.port or True)
        usable = usable and "@" not in url and parts.path in ("", "/") and not (parts.query or parts.fragment)
    except ValueError:
        usable = False
    if not usable:
        raise SettingsError(
            f"the engine's address is host and port, as in http://127.0.0.1:{DEFAULT_PORT};"
            " what it demands of its callers goes into H3_API_TOKEN"
        )
