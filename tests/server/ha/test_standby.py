"""A standby server: what it tells to whom (takeovers: test_failover)."""

import asyncio
from collections.abc import Iterator

import pytest

from rallypoint.deadline import Deadline
from rallypoint.engines.contract import Entry
from rallypoint.engines.election import Leader, Term
from rallypoint.errors import AuthenticationError
from rallypoint.net.connection import ConnectionConfig, open_connection
from rallypoint.net.handshake import StandbyError
from rallypoint.net.listener import listen
from rallypoint.rendezvous.reports.status import ServerStatus
from rallypoint.server.ha.leadership import LeaderStatus
from rallypoint.server.ha.standby import StandbyServer
from rallypoint.server.options import Options
from rallypoint.testing.store_handles import in_thread

OURS = Term(7, Leader("me", "a:1"), Entry(7, b""))
THEIRS = Term(5, Leader("other", "b:2"), Entry(5, b""))


def words(status: LeaderStatus) -> tuple[str, str]:
    async def look() -> tuple[str, str]:
        sockets = listen("127.0.0.1", 0)
        server = StandbyServer(Options(), sockets, "etcd://h1/p", lambda: status)
        assert server.role == server.who_leads()[0] == server.status().role
        assert not server.leads
        for sock in sockets:
            sock.close()
        if server.peer_credentials is not None:
            server.peer_credentials.close()
        return server.who_leads()

    return asyncio.run(look())


def test_standby_names_the_leader() -> None:
    assert words(LeaderStatus(leader=THEIRS)) == ("stands by; b:2 leads, in epoch 5", "b:2")
    assert words(LeaderStatus()) == ("stands by; nobody is known to lead", "")
    text, leader = words(LeaderStatus(trouble="etcd://h1/p cannot be reached"))
    assert (text, leader) == (
        "stands by; nobody is known to lead (etcd://h1/p cannot be reached)",
        "",
    )
    text, leader = words(LeaderStatus(term=OURS, leader=OURS))
    assert (text, leader) == ("takes over, in epoch 7; it is reading etcd://h1/p", "")


@pytest.fixture(name="port")
def _port() -> Iterator[int]:
    ports: list[int] = []
    loop = asyncio.new_event_loop()

    async def serve() -> StandbyServer:
        sockets = listen("127.0.0.1", 0, b"secret")
        ports.append(sockets[0].getsockname()[1])
        server = StandbyServer(
            Options(token=b"secret"), sockets, "etcd://h1/p", lambda: LeaderStatus(leader=THEIRS)
        )
        await server.start()
        return server

    server = loop.run_until_complete(serve())
    serving = in_thread(loop.run_until_complete, server.serve())
    yield ports[0]
    loop.call_soon_threadsafe(server.stop)
    serving.result(20)
    loop.close()


def test_standby_names_the_leader_only_to_proved_clients(port: int) -> None:
    with pytest.raises(StandbyError) as caught:
        open_connection(
            ConnectionConfig("127.0.0.1", port, "run", b"secret"), Deadline(1), once=True
        )
    assert "b:2" in str(caught.value)
    with pytest.raises(AuthenticationError) as refused:
        open_connection(
            ConnectionConfig("127.0.0.1", port, "run", b"another"), Deadline(20), once=True
        )
    assert "b:2" not in str(refused.value)


def test_the_role_is_part_of_the_status() -> None:
    assert "role" in ServerStatus.__struct_fields__
