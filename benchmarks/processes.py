"""Helper processes of a benchmark: one JSON line in, one JSON line out, always with a limit."""

import json
import os
import selectors
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

from environments import ENVIRONMENTS, ROOT, environ, python

CONTENDERS = Path(__file__).resolve().parent / "contenders"


class TookTooLong(Exception):
    """A helper did not answer within its limit."""


class Broken(Exception):
    """A helper answered with an error, or ended."""


class Helper:
    """A script of contenders/ in the environment of its contender.

    Args:
        environment: name of the environment (see `environments`).
        script: file name in contenders/.
        arguments: its command line.
    """

    def __init__(self, environment: str, script: str, *arguments: str) -> None:
        errors = ENVIRONMENTS / "helpers.log"
        self._errors = errors.open("ab")
        self._process = subprocess.Popen(
            [str(python(environment)), str(CONTENDERS / script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environ(),
            cwd=ROOT,
            bufsize=0,
        )
        self.name = f"{script} {' '.join(arguments)}"
        self._rest = b""

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def tell(self, **command: Any) -> None:
        """Send a command without waiting for its answer."""
        stdin = self._process.stdin
        assert stdin is not None
        try:
            stdin.write(json.dumps(command).encode() + b"\n")
        except BrokenPipeError as error:
            raise Broken(f"{self.name} has ended ({self._process.poll()})") from error

    def hear(self, limit: float) -> dict[str, Any]:
        """Return the next answer; TookTooLong after `limit` seconds, Broken on an error."""
        stdout = self._process.stdout
        assert stdout is not None
        deadline = time.monotonic() + limit
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise TookTooLong(f"{self.name}: no answer within {limit:g} s")
                data = os.read(stdout.fileno(), 1 << 20)
                if not data:
                    raise Broken(f"{self.name} has ended ({self._process.wait(5)})")
                self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise Broken(f"{self.name}: {answer['error']}")
        return answer

    def ask(self, limit: float, /, **command: Any) -> dict[str, Any]:
        """Send a command and return its answer."""
        self.tell(**command)
        return self.hear(limit)

    def end(self) -> None:
        """Ask it to end; kill it after 3 s."""
        if self._process.poll() is None and self._process.stdin is not None:
            self._process.stdin.close()
            try:
                self._process.wait(3)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(5)
        self._errors.close()

    def kill(self) -> None:
        """Kill it (SIGKILL)."""
        self._process.kill()
        self._process.wait(5)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.end()


class Program:
    """A server program with a command line of its own.

    Args:
        command: what to run.
        ready: text in its output that says it listens; "" waits for nothing.
        limit: seconds to wait for that.
    """

    def __init__(self, command: list[str], ready: str = "", limit: float = 20.0) -> None:
        self.command = command
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environ(), cwd=ROOT
        )
        self.line = self._wait(ready, limit) if ready else ""

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def _wait(self, ready: str, limit: float) -> str:
        deadline, seen = time.monotonic() + limit, b""
        out = self.process.stdout
        assert out is not None
        with selectors.DefaultSelector() as selector:
            selector.register(out, selectors.EVENT_READ)
            while ready.encode() not in seen:
                left = deadline - time.monotonic()
                data = os.read(out.fileno(), 65536) if selector.select(max(0.0, left)) else b""
                if not data:
                    self.end()
                    raise Broken(f"{self.command[0]}: not ready in {limit:g} s: {seen[-500:]!r}")
                seen += data
        return seen.decode(errors="replace")

    def end(self) -> None:
        """Terminate it; kill it after 5 s."""
        self.process.terminate()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(5)
        if self.process.stdout is not None:
            self.process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.end()


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used, all its threads, user and system."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        spent = [int((t / "schedstat").read_text().split()[0]) for t in threads]
    except OSError:  # this kernel has none: fall back to steps of 10 ms
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return sum(spent) / 1e9


def pin(pid: int, core: int) -> None:
    """Bind all threads of a process to one core (threads that it starts later inherit this)."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {core})


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process (VmRSS)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def say(text: str) -> None:
    """Write a line of progress to stderr."""
    print(text, file=sys.stderr, flush=True)
