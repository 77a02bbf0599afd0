"""Who may listen where."""

import pytest

from rallypoint.errors import ParameterError
from rallypoint.server.options import Options, check_exposure, is_loopback


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("fe80::1%eth0", False),
    ],
)
def test_is_loopback(address: str, loopback: bool) -> None:
    assert is_loopback(address) is loopback


def test_off_loopback_a_token_is_needed() -> None:
    with pytest.raises(ParameterError, match=r"10\.0\.0\.1 without a token.*RALLYPOINT_TOKEN"):
        check_exposure(["127.0.0.1", "10.0.0.1"], Options())
    check_exposure(["10.0.0.1"], Options(token=b"secret"))
    check_exposure(["10.0.0.1"], Options(insecure=True))
    check_exposure(["127.0.0.1", "::1"], Options())
