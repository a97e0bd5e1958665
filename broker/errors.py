"""Errors of the queue."""

from typing import ClassVar

from queue_schemas.errors import ErrorCode


class BrokerError(Exception):
    """Base of every error this package raises on purpose."""

    code: ClassVar[ErrorCode] = ErrorCode.INTERNAL


class QueueAddressError(BrokerError):
    """Raised when a Redis address cannot be one: unknown scheme, no host, bad port."""

    code = ErrorCode.INVALID_REQUEST


class QueueUnavailableError(BrokerError):
    """Raised when no usable Redis answers; the message names the address and what to try.

    `answers` says that one does and refuses: it takes no commands now.
    """

    code = ErrorCode.QUEUE_UNAVAILABLE

    def __init__(self, address: str, reason: str, *, remedy: str, answers: bool = False) -> None:
        fault = f"the Redis at {address} takes no commands" if answers else f"no Redis answers at {address}"
        super().__init__(f"{fault} ({reason}); {remedy}")
        self.address, self.reason, self.remedy, self.answers = address, reason, remedy, answers


class QueueEntryError(BrokerError):
    """Raised when a run cannot be a queue entry: bad id, too large, or queued by another fleet."""

    code = ErrorCode.INVALID_REQUEST
