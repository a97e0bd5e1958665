"""Submit jobs, follow them, collect their records. Installs and imports without torch.

`from client import H3Client` (or `AsyncH3Client`) loads Redis and storage; `import client` loads nothing.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from client.async_client import AsyncH3Client as AsyncH3Client
    from client.client import H3Client as H3Client

__all__ = ["AsyncH3Client", "H3Client"]


def __getattr__(name: str) -> Any:
    if name == "H3Client":
        from client.client import H3Client as loaded  # noqa: PLC0415 - rq alone takes a third of a second

        return loaded
    if name == "AsyncH3Client":
        from client.async_client import AsyncH3Client as loaded_async  # noqa: PLC0415 - the same

        return loaded_async
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
