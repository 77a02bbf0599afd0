import pytest
from openapi_spec_validator import validate

from rallypoint.net.tokens import Keyring
from rallypoint.web.app import Pages
from rallypoint.web.guard import Guard
from rallypoint.web.openapi import document


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the validator's own
def test_the_description_is_valid() -> None:
    validate(document())


def test_every_route_of_the_api_is_described() -> None:
    from tests.web.fakes import FakeServer

    routes = {
        route.path.replace(":path", "")
        for route in Pages(FakeServer().server, Guard(lambda: Keyring(b""))).routes()
    }
    api = {path for path in routes if path.startswith("/api/")}
    assert api - {"/api/v1/openapi.json"} == set(document()["paths"])


def test_routes_with_parameters_have_their_errors() -> None:
    operations = [
        methods["get"] for path, methods in document()["paths"].items() if path != "/api/v1/events"
    ]
    assert {"parameters" in operation for operation in operations} == {True, False}
    for operation in operations:
        assert ({"404", "503"} <= set(operation["responses"])) == ("parameters" in operation)
