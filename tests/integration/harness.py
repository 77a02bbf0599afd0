"""Rallypoint as its users start it: agents and servers as processes of their own.

A `Fleet` starts processes, reads their stdout and stderr line by line (with the time, and into log
files), and ends all that is left. Nothing polls: `expect` is woken by the line that it waits for.
Every wait has a limit, and its failure shows the last output of the process.

All processes of a fleet carry a mark in their environment, which workers, reapers and servers
inherit. So `left` finds every process that outlived its agent, and no other process.
"""

import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, NamedTuple, Self

import psutil

from rallypoint.deadline import Deadline

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
LOOPBACK = "127.0.0.1"
LIMIT_SECONDS = 20.0
MARK = "TEST_FLEET"
_PORTS = (10_000, 32_000)  # below the ports of outgoing connections
_SHOWN_LINES = 25

# A worker that prints its rank and works until a file exists.
WORKER = """
import os, pathlib, sys, time
e = os.environ
print(f"work: round {e['RALLYPOINT_ROUND']} rank {e['RANK']} of {e['WORLD_SIZE']} "
      f"at {e['MASTER_ADDR']}:{e['MASTER_PORT']} restarts {e['TORCHELASTIC_RESTART_COUNT']} "
      f"pid {os.getpid()}", flush=True)
stop = pathlib.Path(sys.argv[1])
while not stop.exists():
    time.sleep(0.02)
"""


class Line(NamedTuple):
    """One line of output: its index in the stream, its time (monotonic), its text."""

    number: int
    at: float
    text: str


class Stream:
    """One output stream: a thread reads it, keeps the lines, and writes them to a log."""

    def __init__(self, pipe: IO[str], log: Path, changed: threading.Condition) -> None:
        self.lines: list[Line] = []
        self.ended = False
        self._pipe, self._log, self._changed = pipe, log, changed
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with self._pipe, self._log.open("w", encoding="utf-8") as log:
            for text in self._pipe:
                log.write(text)
                log.flush()
                with self._changed:
                    line = Line(len(self.lines), time.monotonic(), text.rstrip("\n"))
                    self.lines.append(line)
                    self._changed.notify_all()
        with self._changed:
            self.ended = True
            self._changed.notify_all()

    @property
    def text(self) -> str:
        """All lines so far."""
        return "\n".join(line.text for line in self.lines)

    def end(self, limit: float) -> bool:
        """Wait until the last holder of the stream has closed it."""
        self._thread.join(limit)
        return not self._thread.is_alive()


class Process:
    """A process and its output."""

    def __init__(
        self, name: str, argv: Sequence[str], folder: Path, env: Mapping[str, str]
    ) -> None:
        self.name = name
        self.started_at = time.monotonic()
        self._popen = subprocess.Popen(
            argv,
            cwd=folder,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # a Ctrl-C in the terminal of the tests must not reach them
        )
        self._changed = threading.Condition()
        out, err = self._popen.stdout, self._popen.stderr
        assert out is not None
        assert err is not None
        self.out = Stream(out, folder / f"{name}.stdout", self._changed)
        self.err = Stream(err, folder / f"{name}.stderr", self._changed)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._popen.pid

    def expect(self, pattern: str, after: Line | None = None, limit: float = LIMIT_SECONDS) -> Line:
        """Wait for a line of stdout that matches, after another line if given."""
        found: list[Line] = []

        def look() -> bool:
            start = 0 if after is None else after.number + 1
            lines = self.out.lines[start:]
            found[:] = [line for line in lines if re.search(pattern, line.text)][:1]
            return bool(found) or self.out.ended

        with self._changed:
            self._changed.wait_for(look, limit)
        assert found, f"no line with {pattern!r} in {limit:g} s\n{self.shown()}"
        return found[0]

    def expect_error(self, pattern: str, times: int = 1, limit: float = LIMIT_SECONDS) -> None:
        """Wait until `count` lines of stderr match."""

        def look() -> bool:
            found = [line for line in self.err.lines if re.search(pattern, line.text)]
            return len(found) >= times or self.err.ended

        with self._changed:
            seen = self._changed.wait_for(look, limit) and not self.err.ended
        assert seen, f"not {times} errors with {pattern!r} in {limit:g} s\n{self.shown()}"

    def round(self, size: int, after: Line | None = None, limit: float = LIMIT_SECONDS) -> Line:
        """Wait until the agent says that it has a seat in a round of `size` nodes."""
        return self.expect(rf"^rallypoint: round \d+: rank \d+ of {size} nodes? ", after, limit)

    def wait(self, limit: float = LIMIT_SECONDS) -> int:
        """Wait for its exit and the end of its output; return the exit code."""
        deadline = Deadline(limit)
        try:
            code = self._popen.wait(limit)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still runs after {limit:g} s\n{self.shown()}") from None
        for stream in (self.out, self.err):
            open_still = not stream.end(max(1.0, deadline.remaining()))
            assert not open_still, f"its output is held open by another process\n{self.shown()}"
        return code

    def finished(self, limit: float = LIMIT_SECONDS) -> None:
        """Wait for a successful end: exit code 0, nothing on stderr."""
        code = self.wait(limit)
        assert (code, self.err.text) == (0, ""), self.shown()

    def send(self, number: signal.Signals) -> float:
        """Send a signal to this process alone; return when (monotonic)."""
        at = time.monotonic()
        os.kill(self.pid, number)
        return at

    def kill(self) -> float:
        """Kill it (SIGKILL); return when (monotonic)."""
        at = self.send(signal.SIGKILL)
        self._popen.wait(LIMIT_SECONDS)
        return at

    def is_running(self) -> bool:
        """Return whether it still runs."""
        return self._popen.poll() is None

    def shown(self) -> str:
        """Return command and output, for a failed assertion."""
        parts = [f"--- {self.name} (pid {self.pid}, exit code {self._popen.poll()})"]
        for name, stream in (("stdout", self.out), ("stderr", self.err)):
            parts.append(f"{name}, last of {len(stream.lines)} lines:")
            parts += [
                f"  {line.at - self.started_at:7.3f} {line.text}"
                for line in stream.lines[-_SHOWN_LINES:]
            ]
        return "\n".join(parts)

    def close(self) -> None:
        """End it and the threads that read its output, whatever its state."""
        if self.is_running():
            self._popen.kill()
        self._popen.wait(LIMIT_SECONDS)


class Fleet:
    """Processes of one test; leaving the context ends whatever is left of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self.processes: list[Process] = []
        self.stop_file = folder / "stop"
        self.env: dict[str, str] = {}

    def __enter__(self) -> Self:
        (self.folder / "worker.py").write_text(WORKER, encoding="utf-8")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            for process in self.processes:
                print(process.shown())
        for process in self.processes:
            process.close()
        for stray in self.left():
            with contextlib.suppress(psutil.NoSuchProcess):
                stray.kill()
        for process in self.processes:
            process.out.end(LIMIT_SECONDS)
            process.err.end(LIMIT_SECONDS)

    # -- starting ---------------------------------------------------------------------------

    def start(self, name: str, *argv: str, env: Mapping[str, str] | None = None) -> Process:
        """Start a process."""
        process = Process(name, argv, self.folder, self.environment() | dict(env or {}))
        self.processes.append(process)
        return process

    def rallypoint(
        self, name: str, *argv: str, python: str = "", env: Mapping[str, str] | None = None
    ) -> Process:
        """Start a `rallypoint` command."""
        return self.start(name, python or sys.executable, "-m", "rallypoint", *argv, env=env)

    def agent(self, name: str, *argv: str, env: Mapping[str, str] | None = None) -> Process:
        """Start an agent with a worker that runs until `stop_file` exists, or with `argv`."""
        if not any(arg.endswith(".py") for arg in argv):
            argv = (*argv, "worker.py", str(self.stop_file))
        return self.rallypoint(name, "run", *argv, env=env)

    def server(self, *argv: str, env: Mapping[str, str] | None = None) -> tuple[Process, str]:
        """Start a server; return it and its endpoint."""
        argv = argv or ("--bind", f"{LOOPBACK}:0")
        process = self.rallypoint("server", "serve", *argv, env=env)
        return process, process.expect(r"^serving on ").text.split()[-1]

    def environment(self) -> dict[str, str]:
        """Return our environment without settings of Rallypoint or torchrun."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("RALLYPOINT_", "PET_", "TORCHELASTIC_", "COV_"))
        }
        paths = filter(None, kept.pop("PYTHONPATH", "").split(os.pathsep))
        if absolute := os.pathsep.join(str(Path(path).absolute()) for path in paths):
            kept["PYTHONPATH"] = absolute
        return kept | {"OMP_NUM_THREADS": "1", MARK: self.mark} | self.env

    # -- what is there ------------------------------------------------------------------------

    def release(self) -> None:
        """Let the workers finish."""
        self.stop_file.touch()

    def left(self) -> list[psutil.Process]:
        """Return all running processes that this fleet, or a process of it, has started."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                zombie = process.status() == psutil.STATUS_ZOMBIE
                if not zombie and process.environ().get(MARK) == self.mark:
                    found.append(process)
        return found

    def servers(self) -> list[psutil.Process]:
        """Return the server processes among `left` that agents have started."""
        return [process for process in self.left() if "--until-empty" in _cmdline(process)]

    def all_gone(self, limit: float = LIMIT_SECONDS) -> None:
        """Wait until nothing is left, servers included."""
        if strays := self.left():
            _gone, strays = psutil.wait_procs(strays, limit)
        assert not strays, f"left running: {[(p.pid, _cmdline(p)) for p in strays]}"


def _cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def free_port(host: str = LOOPBACK) -> int:
    """Return a free port, outside the range of outgoing connections."""
    for _ in range(100):
        port = random.randrange(*_PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((host, port))
            return port
    raise AssertionError("no free port was found in 100 attempts")


def endpoint() -> str:
    """Return an endpoint on loopback that nobody uses."""
    return f"{LOOPBACK}:{free_port()}"


def outer_address() -> str | None:
    """Return an IPv4 address of this machine that is not loopback, None if it has none."""
    for addresses in psutil.net_if_addrs().values():
        for found in addresses:
            if found.family == socket.AF_INET and not found.address.startswith("127."):
                return str(found.address)
    return None


class Proxy:
    """A TCP proxy that can be paused: bytes stop, connections stay open."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._flows = threading.Event()
        self._flows.set()
        self._ended = False
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server((LOOPBACK, 0))
        self.endpoint = f"{LOOPBACK}:{self._listener.getsockname()[1]}"
        self._start(self._accept)

    def _start(self, body: Callable[[], None]) -> None:
        threading.Thread(target=body, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed at the end
            while True:
                near, _ = self._listener.accept()
                self._flows.wait()
                try:
                    far = socket.create_connection(self._target, LIMIT_SECONDS)
                except OSError:  # nobody is there
                    near.close()
                    continue
                far.settimeout(None)
                self._sockets += [near, far]
                self._start(lambda a=near, b=far: self._pump(a, b))  # type: ignore[misc]
                self._start(lambda a=far, b=near: self._pump(a, b))  # type: ignore[misc]

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._flows.wait()
                sink.sendall(data)
        self._flows.wait()
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self) -> float:
        """Stop forwarding; return when (monotonic)."""
        at = time.monotonic()
        self._flows.clear()
        return at

    def mend(self) -> None:
        """Forward again."""
        self._flows.set()

    def reset(self) -> None:
        """End all connections; new ones can be made."""
        for end in self._sockets:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End it."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.mend()
        for end in self._sockets:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@contextlib.contextmanager
def proxy_to(target: str) -> Iterator[Proxy]:
    """Run a proxy to an endpoint."""
    proxy = Proxy(target)
    try:
        yield proxy
    finally:
        proxy.close()
