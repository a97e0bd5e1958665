"""Which versions of which packages run here, as records and commands tell them."""

from collections.abc import Iterable
from contextlib import suppress
from importlib import metadata


def installed_versions(names: Iterable[str]) -> dict[str, str]:
    """Return the versions of installed distributions; one that is absent (a source tree) is left out."""
    found = {}
    for name in names:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found
