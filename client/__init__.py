"""Submit jobs, follow them, collect their records. Installs and imports without torch.

`from client import H3Client` loads Redis and storage; `import client` alone loads nothing.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from client.client import H3Client as H3Client

__all__ = ["H3Client"]


def __getattr__(name: str) -> Any:
    if name == "H3Client":
        from client.client import H3Client as loaded  # noqa: PLC0415 - rq alone takes a third of a second

        return loaded
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
