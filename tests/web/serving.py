"""`rallypoint serve --http` as a process."""

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Served:
    """Where a server listens, where its page is, and its process id."""

    port: int
    url: str
    pid: int


@contextlib.contextmanager
def served(
    *more: str, http: str = "127.0.0.1:0", env: Mapping[str, str] | None = None
) -> Iterator[Served]:
    """Start `rallypoint serve` with a page; end it afterwards."""
    command = [sys.executable, "-u", "-m", "rallypoint", "serve", "--bind", "127.0.0.1:0"]
    with subprocess.Popen(
        [*command, "--http", http, *more],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **(env or {})},
    ) as process:
        assert process.stdout is not None
        try:
            port = re.search(r":(\d+)", process.stdout.readline())
            url = re.search(r"https?://\S+", process.stdout.readline())
            assert port is not None
            assert url is not None
            yield Served(int(port[1]), url[0].replace("0.0.0.0", "127.0.0.1"), process.pid)
        finally:
            process.terminate()
            process.wait(10)
