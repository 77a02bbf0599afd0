import ssl
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from tests.certificates import make_certificates
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


def test_off_loopback_the_page_asks_for_the_token_and_speaks_tls(tmp_path: Path) -> None:
    made = make_certificates(tmp_path)
    trust = ssl.create_default_context(cafile=str(made.ca))
    files = ("--tls-cert", str(made.cert), "--tls-key", str(made.key))
    env = {"RALLYPOINT_TOKEN": "sesame"}
    with served(*files, http="0.0.0.0:0", env=env) as server:
        assert server.url.startswith("https://")
        place = f"{server.url}api/v1/runs"
        assert httpx.get(place, verify=trust).status_code == 401
        headers = {"Authorization": "Bearer sesame"}
        assert httpx.get(place, headers=headers, verify=trust).json() == []
