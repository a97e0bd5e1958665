"""The machine and the software, for `GET /ready` and the record. Imports no torch."""

import functools
import platform
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from queue_schemas.benchmark import Environment
from queue_schemas.versions import installed_versions

if TYPE_CHECKING:
    from model.base import PipelineCard  # brings numpy, which a puller does without

_HOST_CHARACTERS = 90  # with a port, a name that `queue_schemas.names.NAME_PATTERN` allows
_PACKAGES = ("h3-blackwell-runtime", "av", "numpy", "starlette", "uvicorn")


def host_name() -> str:
    return platform.node() or "unnamed"


def node_name(port: int | None) -> str:
    """Return the name of the node whose engine listens on `port`: several may share one host."""
    host = re.sub(r"[^A-Za-z0-9._-]", "-", host_name()).lstrip("._-")[:_HOST_CHARACTERS] or "unnamed"
    return f"{host}-{port}" if port else host


def describe_machine(card: "PipelineCard", *, node: str) -> Environment:
    """Return the environment block of everything that this engine makes."""
    return Environment(
        node=node,
        device=card.device,
        driver=card.driver,
        platform=platform.platform(),
        python=platform.python_version(),
        versions=installed_versions(_PACKAGES) | card.versions,
        git_commit=git_commit(),
        num_threads=card.num_threads,
    )


@functools.cache
def git_commit() -> str | None:
    """Return the commit of the source tree this runs from; None for an installed copy or without git."""
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "rev-parse", "HEAD"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None
