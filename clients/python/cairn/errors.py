"""Failures: one exception for each status code of the service, with what to do next.

A miss is not a failure: `Client.match` answers with fewer blocks, and `Client.fetch` with the
blocks that did not come. No failure of a cache should make a request fail: compute the blocks that
did not come.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from cairn import _native

if TYPE_CHECKING:
    from cairn.types import Fetched

__all__ = [
    "AbortedError",
    "Action",
    "AlreadyExistsError",
    "CancelledError",
    "Code",
    "DataLossError",
    "DeadlineExceededError",
    "Error",
    "FailedPreconditionError",
    "InternalError",
    "InvalidArgumentError",
    "NotFoundError",
    "OutOfRangeError",
    "PermissionDeniedError",
    "ResourceExhaustedError",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
    "UnknownError",
]


class Code(enum.IntEnum):
    """Status codes, with the numbers of gRPC."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class Action(enum.Enum):
    """The actions of a caller after an error. The request itself continues without the cache."""

    PROCEED = "proceed"
    TREAT_AS_SUCCESS = "treat_as_success"
    TREAT_AS_MISS = "treat_as_miss"
    RETRY_LATER = "retry_later"
    REOPEN = "reopen"
    FIX_REQUEST = "fix_request"
    STOP = "stop"


class Error(Exception):
    """A call that failed. Its class says the code."""

    code: Code = Code.UNKNOWN
    #: The slices that a fetch brought before it failed; None for other calls.
    fetched: Fetched | None = None

    @property
    def message(self) -> str:
        """The text without the code."""
        return str(self.args[0]) if self.args else ""

    @property
    def action(self) -> Action:
        """The next action."""
        return Action(_native.next_action(int(self.code)))

    def __str__(self) -> str:
        return f"{self.code.name}: {self.message}"


class CancelledError(Error):
    """The caller ended the call."""

    code = Code.CANCELLED


class UnknownError(Error):
    """A bug or a foreign server."""

    code = Code.UNKNOWN


class InvalidArgumentError(Error, ValueError):
    """The message names field, value and what was expected."""

    code = Code.INVALID_ARGUMENT


class DeadlineExceededError(Error, TimeoutError):
    """The node is slow or hangs."""

    code = Code.DEADLINE_EXCEEDED


class NotFoundError(Error):
    """The node does not know the session, lease or namespace."""

    code = Code.NOT_FOUND


class AlreadyExistsError(Error):
    """The part is stored, or somebody is storing it."""

    code = Code.ALREADY_EXISTS


class PermissionDeniedError(Error):
    """This identity may not do this."""

    code = Code.PERMISSION_DENIED


class ResourceExhaustedError(Error):
    """A budget is used up; the message says which."""

    code = Code.RESOURCE_EXHAUSTED


class FailedPreconditionError(Error):
    """The client is closed or belongs to another process, or a setting does not match the stored
    one."""

    code = Code.FAILED_PRECONDITION


class AbortedError(Error):
    """The call lost a race with another writer or with a drop."""

    code = Code.ABORTED


class OutOfRangeError(Error, ValueError):
    """Blocks, layers or offsets past the end."""

    code = Code.OUT_OF_RANGE


class UnimplementedError(Error):
    """The node is older than the call, or this client cannot do it."""

    code = Code.UNIMPLEMENTED


class InternalError(Error):
    """A bug in the node."""

    code = Code.INTERNAL


class UnavailableError(Error):
    """The node cannot be reached or is draining, or the circuit breaker is open."""

    code = Code.UNAVAILABLE


class DataLossError(Error):
    """Bytes do not match their checksum or do not follow the format."""

    code = Code.DATA_LOSS


class UnauthenticatedError(Error):
    """No valid certificate or token."""

    code = Code.UNAUTHENTICATED


_BY_CODE: dict[int, type[Error]] = {int(cls.code): cls for cls in Error.__subclasses__()}


def error_for(code: int, message: str) -> Error:
    """The exception of a code."""
    return _BY_CODE.get(code, UnknownError)(message)
