"""Each failure is an error of its kind."""

import pytest

from rallypoint.errors import (
    AuthenticationError,
    StoreError,
    StoreLimitError,
    StoreTimeoutError,
    StoreValueError,
)
from rallypoint.net import protocol as p
from rallypoint.store.failures import error_of


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (p.FAIL_TIMEOUT, StoreTimeoutError),
        (p.FAIL_VALUE, StoreValueError),
        (p.FAIL_LIMIT, StoreLimitError),
        (p.FAIL_DENIED, AuthenticationError),
        ("of a newer server", StoreError),
    ],
)
def test_kinds(code: str, kind: type[Exception]) -> None:
    error = error_of(p.Failure(1, code, "so it is"))
    assert (type(error), str(error)) == (kind, "so it is")
