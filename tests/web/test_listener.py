import subprocess
import sys
import time

import httpx
import pytest
from tests.web.serving import served

pytestmark = pytest.mark.integration


def test_a_server_ends_at_once_though_someone_looks() -> None:
    with served() as server, httpx.stream("GET", f"{server.url}api/v1/events") as stream:
        lines = stream.iter_lines()
        assert next(lines) == "event: server"
        begun = time.monotonic()
    assert time.monotonic() - begun < 5


def test_a_page_off_loopback_needs_a_token() -> None:
    command = [sys.executable, "-m", "rallypoint", "serve", "--bind=127.0.0.1:0"]
    ended = subprocess.run(
        [*command, "--http=0.0.0.0:0"], capture_output=True, text=True, timeout=30, check=False
    )
    assert ended.returncode == 1
    assert "refusing to listen on 0.0.0.0 without a token" in ended.stderr


def test_a_port_that_is_taken_is_named() -> None:
    with served() as server:
        place = server.url.removeprefix("http://").rstrip("/")
        command = [sys.executable, "-m", "rallypoint", "serve", "--bind=127.0.0.1:0"]
        ended = subprocess.run(
            [*command, f"--http={place}"], capture_output=True, text=True, timeout=30, check=False
        )
    assert ended.returncode == 1
    assert f"cannot listen on {place}" in ended.stderr
