"""What a store client makes of the record in a welcome: the same, or its calls are in doubt."""

from collections.abc import Callable

import pytest

from rallypoint.deadline import Deadline
from rallypoint.errors import StoreConnectionError
from rallypoint.server.embedded import EmbeddedServer
from rallypoint.server.server import Server
from rallypoint.server.store_host import ClientRecord
from rallypoint.store.tcp import TCPStore
from rallypoint.testing.fakes import Proxy
from rallypoint.testing.store_handles import after_a_moment, in_thread

LIMIT_SECONDS = 20.0


def another_record(_server: Server, client: ClientRecord) -> None:
    """It was forgotten, and has come back once already: that answer was lost on the way."""
    client.record += 1


def record_of_another_server(_server: Server, client: ClientRecord) -> None:
    """The numbers of two servers may well be the same."""
    client.since -= 1


def another_epoch(server: Server, _client: ClientRecord) -> None:
    """It was started again, and has read back what it knew."""
    server.epoch += 1


def change(server: EmbeddedServer, how: Callable[[Server, ClientRecord], None]) -> None:
    def inside(inner: Server) -> None:
        (store,) = inner.stores.values()
        (client,) = store.clients.values()
        how(inner, client)

    server.call(inside, Deadline(LIMIT_SECONDS))


@pytest.mark.parametrize("how", [another_record, record_of_another_server])
def test_call_of_a_forgotten_client_is_in_doubt(
    server: EmbeddedServer, how: Callable[[Server, ClientRecord], None]
) -> None:
    with Proxy("127.0.0.1", server.port) as proxy:
        store = TCPStore("127.0.0.1", proxy.port, timeout=20)
        popping = after_a_moment(in_thread(store.queue_pop, "queue", True, 20.0))
        change(server, how)
        assert proxy.cut() == 1
        with pytest.raises(StoreConnectionError, match="whether QueuePop took effect is not known"):
            popping.result(20)
        store.close()


def test_call_is_repeated_at_a_server_that_knows_the_client(
    server: EmbeddedServer,
) -> None:
    with Proxy("127.0.0.1", server.port) as proxy:
        store = TCPStore("127.0.0.1", proxy.port, timeout=20)
        popping = after_a_moment(in_thread(store.queue_pop, "queue", True, 20.0))
        change(server, another_epoch)
        assert proxy.cut() == 1
        with TCPStore("127.0.0.1", server.port, timeout=20) as other:
            other.queue_push("queue", b"x")
        assert popping.result(20) == b"x"
        store.close()
