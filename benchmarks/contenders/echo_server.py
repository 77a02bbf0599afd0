"""Servers that only reply: the least that a call can cost.

python echo_server.py uvloop|blocking|messages|meeting

`messages` decodes and encodes our messages with msgspec on our event loop: a client and a server
in Python cannot do less. `uvloop` and `blocking` reply with constant bytes. `meeting` replies to
all clients once as many have asked as the request says: a barrier and nothing else.
"""

import asyncio
import socket
import sys
import threading
from typing import Any, cast

import commands

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
    """Return a protocol that decodes a call and encodes a reply, with nothing in between."""
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
    """Return a protocol that replies to all clients once the last one has asked."""
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


commands.serve({"port": lambda: start(sys.argv[1])})
