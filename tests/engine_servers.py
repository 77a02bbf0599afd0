"""Databases for tests: real servers on free loopback ports, data in temporary directories.

Each runs as its own process. A server that is not installed is an error, not a skip: `.ci/run`
installs it, and developers can leave these tests out with `-m "not engines"`.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

START_SECONDS = 20.0
PACKAGES = {"etcd": "etcd-server", "redis-server": "redis-server"}


def free_ports(count: int) -> list[int]:
    """Return free ports, all different."""
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


class Process:
    """A server that can be started, paused, killed and started again on the same data."""

    def __init__(self, command: list[str], log: Path, ready: Callable[[], bool]) -> None:
        if shutil.which(command[0]) is None:
            pytest.fail(f"{command[0]} is missing: apt-get install {PACKAGES[command[0]]}")
        self.command = command
        self.log = log
        self._ready = ready
        self._running: subprocess.Popen[bytes] | None = None

    def start(self, wait: bool = True) -> None:
        with self.log.open("ab") as log:
            self._running = subprocess.Popen(
                self.command, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        if wait:
            self.wait_until_ready()

    def wait_until_ready(self) -> None:
        end = time.monotonic() + START_SECONDS
        while not self._ready():
            assert self._running is not None
            if self._running.poll() is not None or time.monotonic() > end:
                pytest.fail(f"{self.command[0]} did not start:\n{self.log.read_text()[-2000:]}")
            time.sleep(0.02)

    def signal(self, number: int) -> None:
        assert self._running is not None
        os.kill(self._running.pid, number)

    def kill(self) -> None:
        """Kill it, even while it is paused: what a power failure does."""
        if self._running is not None:
            self._running.kill()
            self._running.wait(10)
            self._running = None

    def pause(self) -> None:
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)


@contextmanager
def closed_afterwards(kind: type[Any]) -> Iterator[None]:
    """Close every object of a class that is created within the block."""
    made: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        real = kind.__init__

        def make(self: Any, *args: Any, **options: Any) -> None:
            real(self, *args, **options)
            made.append(self)

        patch.setattr(kind, "__init__", make)
        yield
    for each in made:
        each.close()


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 0.5).close()
    except OSError:
        return False
    return True


class Directory:
    """Return a temporary directory for a server, not one of pytest's, which pytest keeps."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="rallypoint-engine-"))

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


class EtcdServers:
    """An etcd cluster of one or more members.

    Args:
        members: how many.
        *options: further options of each.
        scheme: of the client's side, "https" with certificates among the options.
    """

    def __init__(self, members: int, *options: str, scheme: str = "http") -> None:
        self.home = Directory()
        ports = free_ports(2 * members)
        self.ports, peers = ports[:members], ports[members:]
        cluster = ",".join(f"m{n}=http://127.0.0.1:{peer}" for n, peer in enumerate(peers))
        self.members = [
            Process(
                [
                    "etcd", "--name", f"m{n}", "--data-dir", str(self.home.path / f"m{n}"),
                    "--listen-client-urls", f"{scheme}://127.0.0.1:{port}",
                    "--advertise-client-urls", f"{scheme}://127.0.0.1:{port}",
                    "--listen-peer-urls", f"http://127.0.0.1:{peer}",
                    "--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}",
                    "--initial-cluster", cluster, "--logger", "zap", *options,
                ],
                self.home.path / f"m{n}.log",
                lambda port=port: answers(port),  # type: ignore[misc]
            )
            for n, (port, peer) in enumerate(zip(self.ports, peers, strict=True))
        ]  # fmt: skip

    def start(self) -> "EtcdServers":
        for member in self.members:
            member.start(wait=False)
        for member in self.members:
            member.wait_until_ready()
        return self

    def stop(self) -> None:
        for member in self.members:
            member.kill()
        self.home.remove()

    def url(
        self, prefix: str, options: str = "", credentials: str = "", scheme: str = "etcd"
    ) -> str:
        hosts = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        at = f"{credentials}@" if credentials else ""
        return f"{scheme}://{at}{hosts}/{prefix}{options}"

    def leader(self) -> int:
        """Return the index of the member that leads the cluster."""
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            for number, port in enumerate(self.ports):
                status = self._status(port)
                if status and status["leader"] == status["header"]["member_id"]:
                    return number
            time.sleep(0.05)
        pytest.fail("no member of the cluster leads")

    @staticmethod
    def _status(port: int) -> dict[str, Any]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v3/maintenance/status", b"{}", method="POST"
        )
        try:
            with urllib.request.urlopen(request, timeout=1.0) as answer:  # noqa: S310 - loopback
                found: dict[str, Any] = json.load(answer)
        except OSError:  # killed, or paused
            return {}
        return found if "leader" in found else {}

    def guard(self) -> None:
        """Turn authentication on: root:s3cret, and worker:w0rker for the prefix `jobs`."""
        for command in (
            "user add root:s3cret", "user grant-role root root", "role add jobs",
            "role grant-permission jobs --prefix=true readwrite jobs/",
            "user add worker:w0rker", "user grant-role worker jobs", "auth enable",
        ):  # fmt: skip
            self.control(*command.split())

    def fill(self) -> None:
        """Write to a member with a small quota until it takes no more."""
        value = "x" * (100 << 10)
        for number in range(200):
            if "space exceeded" in self.control("put", f"fill/{number}", value):
                return
        pytest.fail("etcd was not filled")

    def make_room(self) -> None:
        """Free space and clear the NOSPACE alarm, as an operator does."""
        self.control("del", "--prefix", "fill/")
        found = self.control("get", "none", "-w", "json")
        self.control("compaction", str(json.loads(found)["header"]["revision"]))
        self.control("defrag")
        self.control("alarm", "disarm")

    def control(self, *arguments: str) -> str:
        """Run etcdctl against the first member."""
        done = subprocess.run(
            ["etcdctl", "--endpoints", f"http://127.0.0.1:{self.ports[0]}", *arguments],
            env=os.environ | {"ETCDCTL_API": "3"}, capture_output=True, text=True, timeout=30,
            check=False,
        )  # fmt: skip
        return done.stdout + done.stderr


class RedisServer:
    """A Redis server.

    Args:
        *options: further options.
    """

    def __init__(self, *options: str, tls: bool = False) -> None:
        self.home = Directory()
        (self.port,) = free_ports(1)
        plain, secure = (0, self.port) if tls else (self.port, 0)
        self.process = Process(
            [
                "redis-server", "--port", str(plain), "--bind", "127.0.0.1",
                *(["--tls-port", str(secure)] if tls else []),
                "--dir", str(self.home.path), "--save", "", "--appendonly", "yes",
                "--daemonize", "no", *options,
            ],
            self.home.path / "log",
            lambda: answers(self.port),
        )  # fmt: skip

    def start(self) -> "RedisServer":
        self.process.start()
        return self

    def stop(self) -> None:
        self.process.kill()
        self.home.remove()

    def url(
        self, prefix: str, options: str = "", credentials: str = "", scheme: str = "redis"
    ) -> str:
        at = f"{credentials}@" if credentials else ""
        return f"{scheme}://{at}127.0.0.1:{self.port}/{prefix}{options}"
