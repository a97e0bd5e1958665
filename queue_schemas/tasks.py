"""Names that client and worker must agree on without importing each other."""

from typing import Final

GENERATE_TASK: Final = "worker.tasks.generate"
"""The only task a puller runs; the client names it by this string."""
