"""What answers every request without doing anything for it: the floor of a call.

python echo_server.py uvloop|blocking|messages|meeting

`messages` reads and writes our messages with msgspec on our event loop, so a client and a
server of Python cannot do with less; the others answer with the same bytes. `meeting` answers
all once as many have asked as the request says: a barrier, and nothing else.
"""

import asyncio
import socket
import sys
import threading
from typing import Any, cast

import line

ANSWER = b"a" * 40  # as long as our answer to a get of 32 bytes


class Echo(asyncio.Protocol):
    """One client on the event loop that our server runs on."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Answer."""
        self.transport.write(ANSWER)


def messages() -> type[Echo]:
    """Return what decodes a call and encodes a reply, and nothing in between."""
    import msgspec

    from rallypoint.net import protocol as p
    from rallypoint.rendezvous import wire

    decode = msgspec.msgpack.Decoder(wire.ClientBody).decode

    class Messages(Echo):
        def data_received(self, data: bytes) -> None:
            call = decode(data[4:])
            assert isinstance(call, p.Call)
            self.transport.write(p.frame(p.Reply(call.id, ANSWER[:32])))

    return Messages


def meeting() -> type[Echo]:
    """Return what keeps all waiting until the last one has come."""
    here: list[asyncio.Transport] = []

    class Meeting(Echo):
        def data_received(self, data: bytes) -> None:
            here.append(self.transport)
            if len(here) == int(data):
                for transport in here:
                    transport.write(ANSWER)
                here.clear()

    return Meeting


def on_uvloop(listener: socket.socket, protocol: type[Echo] = Echo) -> None:
    """Answer on an event loop."""
    import uvloop

    async def serve() -> None:
        server = await asyncio.get_running_loop().create_server(protocol, sock=listener)
        await server.serve_forever()

    uvloop.run(serve())


def blocking(listener: socket.socket) -> None:
    """Answer one client after the other, with blocking calls."""
    while True:
        client, _ = listener.accept()
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while client.recv(65536):
            client.sendall(ANSWER)


def start(how: str) -> dict[str, Any]:
    """Listen in a thread; return the port."""
    listener = socket.create_server(("127.0.0.1", 0))
    kinds = {
        "uvloop": on_uvloop,
        "blocking": blocking,
        "messages": lambda sock: on_uvloop(sock, messages()),
        "meeting": lambda sock: on_uvloop(sock, meeting()),
    }
    serve = kinds[how]
    threading.Thread(target=serve, args=(listener,), daemon=True).start()
    return {"port": listener.getsockname()[1]}


line.serve({"port": lambda: start(sys.argv[1])})
