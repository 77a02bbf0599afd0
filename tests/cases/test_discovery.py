"""Finding each other: case-A1 to case-A10 of README.md."""

import errno
import logging
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from rallypoint.errors import (
    RendezvousConnectionError,
    RendezvousStateError,
    RendezvousTimeoutError,
    StoreConnectionError,
)
from rallypoint.net import protocol as p
from rallypoint.net.addresses import free_port
from rallypoint.rendezvous.api import RendezvousInfo
from rallypoint.rendezvous.client.coordinator import create_handler
from rallypoint.rendezvous.handler import DynamicRendezvousHandler
from rallypoint.rendezvous.parameters import RendezvousParameters
from rallypoint.server.embedded import EmbeddedServer
from rallypoint.server.options import Options
from rallypoint.store.tcp import TCPStore
from rallypoint.testing.store_handles import in_thread

LIMIT = 30.0
Make = Callable[..., DynamicRendezvousHandler]
SEED = int(os.environ.get("RALLYPOINT_SEED") or random.randrange(2**32))


@pytest.fixture(name="make")
def _make() -> Iterator[Make]:
    handlers: list[DynamicRendezvousHandler] = []

    def make(endpoint: str, least: int, most: int, run: str = "run", **config: Any) -> Any:
        config = {"join": LIMIT, "last_call": 0.1, "close": 5} | config
        local_addr = config.pop("local_addr", None)
        params = RendezvousParameters(
            "core", endpoint, run, least, most, local_addr=local_addr, config=config
        )
        handlers.append(create_handler(params))
        return handlers[-1]

    yield make
    ending = [in_thread(handler.shutdown) for handler in handlers]  # a host waits for the others
    for future in ending:
        future.result(LIMIT)


def hosts(handlers: list[DynamicRendezvousHandler]) -> int:
    """Return how many of them host."""
    return sum(handler._coordinator.server is not None for handler in handlers)  # type: ignore[attr-defined] # hosted ones


def join(handlers: list[DynamicRendezvousHandler]) -> "list[Future[RendezvousInfo]]":
    return [in_thread(handler.next_rendezvous) for handler in handlers]


# Joins the endpoint argv[1] as one of argv[2] nodes. Prints its rank, and the bootstrap address
# once all have listened or connected there.
NODE = """
import socket, sys
import rallypoint
count = int(sys.argv[2])
params = rallypoint.RendezvousParameters(
    "core", sys.argv[1], "run", count, count, config={"join": 30, "close": 10})
handler = rallypoint.get_rendezvous_handler(params)
info = handler.next_rendezvous()
place = info.bootstrap_store_info
if info.rank == 0:
    with socket.create_server((place.master_addr, place.master_port)):
        info.store.set("listening", b"")
        info.store.barrier("reached", count, 20)
else:
    info.store.get("listening", 20)
    socket.create_connection((place.master_addr, place.master_port), 10).close()
    info.store.barrier("reached", count, 20)
print(info.rank, info.world_size, place.master_addr, handler.shutdown())
"""


def run_nodes(
    count: int, endpoint: str, environment: dict[str, str] | None = None
) -> list[list[str]]:
    """Run several processes of NODE; return what each printed, by rank."""
    command = [sys.executable, "-c", NODE, endpoint, str(count)]
    processes = [
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | (environment or {}),
        )
        for _ in range(count)
    ]
    lines = []
    for process in processes:
        out, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (0, "")
        lines.append(out.split())
    return sorted(lines)


@pytest.mark.integration
@pytest.mark.cases("case-A1")
def test_exactly_one_node_hosts_an_alias_of_this_machine() -> None:
    lines = run_nodes(3, f"127.0.0.2:{free_port('127.0.0.2')}")
    assert [line[:2] for line in lines] == [["0", "3"], ["1", "3"], ["2", "3"]]
    assert len({line[2] for line in lines}) == 1  # and it was reached, see NODE
    assert sorted(line[3] for line in lines) == ["False", "False", "True"]


@pytest.mark.integration
@pytest.mark.cases("case-A2")
def test_round_forms_without_dns(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import socket, time\n"
        "def nobody(*_):\n"
        "    time.sleep(20)\n"
        "    raise socket.gaierror(socket.EAI_AGAIN, 'no name service')\n"
        "real = socket.getaddrinfo\n"
        "def only_numbers(host, *rest, **more):\n"
        "    if not host or host[0].isdigit():\n"
        "        return real(host, *rest, **more)\n"
        "    return nobody()\n"
        "socket.getfqdn = lambda name='': 'nope.invalid'\n"
        "socket.gethostname = lambda: 'nope.invalid'\n"
        "socket.gethostbyaddr = socket.gethostbyname = socket.getnameinfo = nobody\n"
        "socket.getaddrinfo = only_numbers\n"
    )
    began = time.monotonic()
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    lines = run_nodes(2, f"127.0.0.1:{free_port('127.0.0.1')}", {"PYTHONPATH": path})
    assert [line[2] for line in lines] == ["127.0.0.1"] * 2
    assert time.monotonic() - began < 20.0


@pytest.mark.cases("case-A3")
def test_missing_server_is_reported_within_5_seconds(make: Make, port: int) -> None:
    said, texts = threading.Event(), list[str]()

    class Watching(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            texts.append(record.getMessage())
            said.set()

    watching = Watching(logging.WARNING)
    logging.getLogger("rallypoint").addHandler(watching)
    try:
        handler = make(f"localhost:{port}", 2, 2, is_host=False)
        joining = in_thread(handler.next_rendezvous)
        assert said.wait(5.0)
    finally:
        logging.getLogger("rallypoint").removeHandler(watching)
    for words in (
        f"cannot reach localhost:{port} (resolved to ",
        "127.0.0.1",
        "no process is listening there",
        "This machine's addresses are ",
        f"`rallypoint serve --bind ADDRESS:{port}`",
        "is_host=true",
    ):
        assert words in texts[0]
    handler.shutdown()
    with pytest.raises(RendezvousStateError):
        joining.result(LIMIT)


@pytest.mark.cases("case-A4")
def test_unknown_host_name_is_resolved_again(
    make: Make, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, known_at, asked = socket.getaddrinfo, time.monotonic() + 1.5, []

    def lagging(host: Any, port: Any, *rest: Any, **more: Any) -> Any:
        if host != "head.svc":
            return real(host, port, *rest, **more)
        asked.append(host)
        if time.monotonic() < known_at:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return real("127.0.0.1", port, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", lagging)
    infos = join([make(f"head.svc:{server.port}", 2, 2) for _ in range(2)])
    assert sorted(info.result(LIMIT).rank for info in infos) == [0, 1]
    assert len(asked) > 4  # again for each attempt


@pytest.mark.cases("case-A5")
def test_round_forms_in_any_start_order(make: Make) -> None:
    print(f"RALLYPOINT_SEED={SEED}")
    rng = random.Random(SEED)
    for turn in range(20):
        port, size = free_port("127.0.0.1"), 4
        roles = [True] + [False] * (size - 1)
        rng.shuffle(roles)
        if turn % 2:
            roles.sort()  # the host last
        infos: list[Future[RendezvousInfo]] = []
        for host in roles:
            if host and infos and turn % 4 == 1:
                with pytest.raises(TimeoutError):
                    infos[0].result(0.05)  # the others are trying already
            infos += join([make(f"127.0.0.1:{port}", size, size, f"run{turn}", is_host=host)])
        assert sorted(info.result(LIMIT).rank for info in infos) == list(range(size))


@pytest.mark.cases("case-A5")
def test_twenty_agents_form_a_round_with_the_host_last(make: Make, port: int) -> None:
    others = [make(f"127.0.0.1:{port}", 20, 20, is_host=False) for _ in range(19)]
    infos = join(others)
    with pytest.raises(TimeoutError):
        infos[0].result(0.3)
    infos += join([make(f"127.0.0.1:{port}", 20, 20, is_host=True)])
    assert sorted(info.result(LIMIT).rank for info in infos) == list(range(20))


@pytest.mark.cases("case-A6")
def test_dead_ipv6_address_does_not_hide_a_live_ipv4_address(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = (socket.SOCK_STREAM, socket.IPPROTO_TCP, "")

    def both(_host: Any, port: Any, *_: Any, **__: Any) -> Any:
        return [  # 100::/64 is the discard prefix: packets vanish, or there is no route
            (socket.AF_INET6, *stream, ("100::1", port, 0, 0)),
            (socket.AF_INET, *stream, ("127.0.0.1", port)),
        ]

    monkeypatch.setattr(socket, "getaddrinfo", both)
    began = time.monotonic()
    TCPStore("head", server.port).close()
    assert time.monotonic() - began < 3.0


@pytest.mark.cases("case-A7")
def test_nodes_that_meet_only_themselves_start_no_workers(make: Make) -> None:
    size = 3
    handlers = [
        make(f"localhost:{free_port('127.0.0.1')}", size, size, join=1.0, is_host=True)
        for _ in range(size)
    ]
    for info in join(handlers):
        with pytest.raises(RendezvousTimeoutError, match=rf"1 of .*{size}.* joined"):
            info.result(LIMIT)


@pytest.mark.cases("case-A8")
def test_nodes_with_equal_host_names_are_separate_members(
    make: Make, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost.localdomain")
    infos = join([make(f"127.0.0.1:{server.port}", 3, 3) for _ in range(3)])
    assert sorted(info.result(LIMIT).rank for info in infos) == [0, 1, 2]
    assert {info.result().world_size for info in infos} == {3}


@pytest.mark.cases("case-A9")
def test_used_port_is_named_and_port_0_picks_a_free_one(make: Make, port: int) -> None:
    with socket.create_server(("127.0.0.1", port)):
        with pytest.raises(OSError, match=f"127.0.0.1:{port}: Address already in use") as caught:
            EmbeddedServer("127.0.0.1", port, Options())
        assert caught.value.errno == errno.EADDRINUSE
        with pytest.raises(StoreConnectionError, match=f"127.0.0.1:{port}.*0 for a free one"):
            TCPStore("127.0.0.1", port, is_master=True)
        with pytest.raises(RendezvousConnectionError, match=f"127.0.0.1:{port}"):
            make(f"127.0.0.1:{port}", 1, 1, is_host=True)
    with TCPStore("127.0.0.1", 0, is_master=True) as master:
        assert master.port > 0
        TCPStore(*master.master_addr_port).close()


@pytest.mark.cases("case-A10")
def test_second_run_on_the_same_port_is_separate(make: Make, server: EmbeddedServer) -> None:
    where = f"127.0.0.1:{server.port}"
    one = [make(where, 2, 2, "one") for _ in range(2)]
    two = [make(where, 2, 2, "two") for _ in range(2)]
    infos = [info.result(LIMIT) for info in join([*one, *two])]
    assert sorted(info.rank for info in infos) == [0, 0, 1, 1]
    infos[0].store.set("key", b"of one")
    assert not infos[2].store.check(["key"])
    for handler in one:
        handler.finish()
    one[0].shutdown()
    infos[2].store.set("key", b"of two")
    assert infos[3].store.get("key") == b"of two"
    assert two[0].report().phase == "sealed"
    assert not two[1].is_closed()


@pytest.mark.cases("case-A10")
def test_other_token_or_version_is_refused_with_a_reason(
    make: Make, serve: Callable[..., EmbeddedServer]
) -> None:
    server = serve(token=b"of-the-first")
    where = f"127.0.0.1:{server.port}"
    first = make(where, 1, 1, "one", token="of-the-first", is_host=False)
    first.next_rendezvous()
    for config in ({"token": "of-the-second"}, {}):
        second = make(where, 1, 1, "two", is_host=False, **config)
        with pytest.raises(RendezvousConnectionError, match="token"):
            second.next_rendezvous()
    hello = p.Hello(998, "two", b"c", b"n" * p.NONCE_BYTES, "rallypoint 9.9")
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as sock:
        sock.sendall(p.frame(hello))
        assert b"speaks 998; use the same version" in sock.recv(4096)
    assert first.report().phase == "sealed"
