"""The names of the rendezvous API are in its package, as in those of the field."""

import pytest

import rallypoint.rendezvous as rdzv
from rallypoint import errors

NAMES = (
    "RendezvousHandler",
    "RendezvousInfo",
    "RendezvousStoreInfo",
    "RendezvousParameters",
    "RendezvousTimeout",
    "RendezvousSettings",
    "RendezvousBackend",
    "StoreRendezvousBackend",
    "DynamicRendezvousHandler",
    "StaticTCPRendezvous",
    "RendezvousHandlerRegistry",
    "rendezvous_handler_registry",
    "get_rendezvous_handler",
    "create_handler",
    "get_registry",
    "parse_rendezvous_endpoint",
)


@pytest.mark.parametrize("name", NAMES)
def test_is_there(name: str) -> None:
    assert getattr(rdzv, name) is not None


def test_errors_are_the_ones_of_the_tree() -> None:
    assert rdzv.RendezvousClosedError is errors.RendezvousClosedError
    assert issubclass(rdzv.RendezvousTimeoutError, rdzv.RendezvousError)
