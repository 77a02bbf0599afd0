"""The errors that the failures of a server stand for."""

from rallypoint.errors import (
    AuthenticationError,
    StoreError,
    StoreLimitError,
    StoreTimeoutError,
    StoreValueError,
)
from rallypoint.net import protocol as p

_ERRORS: dict[str, type[StoreError]] = {
    p.FAIL_TIMEOUT: StoreTimeoutError,
    p.FAIL_VALUE: StoreValueError,
    p.FAIL_LIMIT: StoreLimitError,
    p.FAIL_DENIED: AuthenticationError,
}


def error_of(failure: p.Failure) -> StoreError:
    """Return the error of a call that failed; one of a newer server's kind is a StoreError."""
    return _ERRORS.get(failure.code, StoreError)(failure.text)
