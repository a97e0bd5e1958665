"""The command with which a person sends a job to this node, exact to the last option.

An option that a client in this folder and environment would default to is left out; a password never shown.
"""

import shlex
from typing import Final

from broker.address import mask_secrets
from queue_schemas.environment import DEFAULT_FLEET, DEFAULT_REDIS_URL
from queue_schemas.programs import typed
from storage.local import LocalStore
from storage.uri import DEFAULT_STORAGE_URL, open_store
from worker.settings import Settings

_EXAMPLE: Final = "a red fox in snow"
_SMALL: Final = ("--width", "192", "--height", "128", "--frames", "39", "--steps", "4")
"""A film of random weights shows nothing at any size; on a CPU this one takes seconds."""


def submit_command(settings: Settings, *, is_random: bool) -> tuple[str, str]:
    """Return the command, and a remark where the environment must hold what cannot be shown.

    `is_random` says that the weights are: the command then asks for a small film.
    """
    parts, remark = [typed("h3"), "submit", _EXAMPLE, *(_SMALL if is_random else ())], ""
    if mask_secrets(settings.redis_url) != settings.redis_url:
        remark = " (with H3_REDIS_URL set as it is for this node)"
    elif settings.redis_url != DEFAULT_REDIS_URL:
        parts += ["--redis", settings.redis_url]
    storage = shown_storage(settings.storage_url)
    if storage != shown_storage(DEFAULT_STORAGE_URL):
        parts += ["--storage", storage]
    if settings.fleet != DEFAULT_FLEET:
        parts += ["--fleet", settings.fleet]
    return shlex.join(parts), remark


def shown_storage(url: str) -> str:
    """Return where films go, as an absolute folder or an address without secrets."""
    store = open_store(url)
    return str(store.root) if isinstance(store, LocalStore) else store.url
