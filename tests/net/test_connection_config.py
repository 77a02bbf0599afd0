"""Targets: what they show, and what clients made of one share."""

from rallypoint.net.connection_config import Target
from rallypoint.net.endpoints import Route

PLACES = (("a", 1), ("::1", 2))


def test_one_server_is_its_own_route() -> None:
    target = Target("a", 1, "run")
    assert target.route.places == (("a", 1),)
    assert target.where == "a:1"


def test_several_servers_have_one_target() -> None:
    target = Target.at(PLACES, "run", b"secret")
    assert (target.host, target.port, target.where) == ("a", 1, "a:1,[::1]:2")
    assert "secret" not in repr(target)


def test_another_client_shares_what_is_known_of_who_leads() -> None:
    target = Target.at(PLACES, "run")
    twin = target.another()
    assert twin.client != target.client
    assert twin.route is target.route
    assert Target("a", 1, "run", route=Route(PLACES)).where == target.where
