"""Targets: what they show, and what clients made of one share."""

from rallypoint.net.connection_config import ConnectionConfig
from rallypoint.net.endpoints import ServerList

ENDPOINTS = (("a", 1), ("::1", 2))


def test_one_server_is_its_own_route() -> None:
    target = ConnectionConfig("a", 1, "run")
    assert target.servers.endpoints == (("a", 1),)
    assert target.where == "a:1"


def test_several_servers_have_one_target() -> None:
    target = ConnectionConfig.at(ENDPOINTS, "run", b"secret")
    assert (target.host, target.port, target.where) == ("a", 1, "a:1,[::1]:2")
    assert "secret" not in repr(target)


def test_another_client_shares_what_is_known_of_who_leads() -> None:
    target = ConnectionConfig.at(ENDPOINTS, "run")
    twin = target.another()
    assert twin.client != target.client
    assert twin.servers is target.servers
    assert ConnectionConfig("a", 1, "run", servers=ServerList(ENDPOINTS)).where == target.where
