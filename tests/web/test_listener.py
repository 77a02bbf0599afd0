import contextlib
import os
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from tests.certificates import make_certificates
from tests.web.crowd import Crowd
from tests.web.serving import served

from rallypoint.core.state import Settings

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


GARBAGE = (
    b"",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 64,
    b"\xff" * 70_000,
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"y" * 70_000,
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -1\r\n\r\n",
    b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99\r\n\r\ntok",
    b"GET /static/%ff%00 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"GET /api/v1/runs/%f0%28%8c HTTP/1.1\r\nHost: \xff\xfe\r\n\r\n",
    b"GET /api/v1/events?run=%00 HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: \xff=;;\r\n\r\n",
    b"GET /api/v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\n"
    b"Connection: Upgrade\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n",
)


def test_whatever_strangers_send_the_runs_go_on() -> None:
    settings = Settings(2, 2, grace_seconds=0.2)
    with served() as server, Crowd(server.port, "job", settings) as crowd:
        crowd.join("n1", "n2")
        host, _, port = server.url.removeprefix("http://").rstrip("/").partition(":")
        for data in GARBAGE * 3:
            with socket.create_connection((host, int(port)), 5) as sock:
                sock.settimeout(0.1)
                with contextlib.suppress(OSError):  # it may have hung up already
                    sock.sendall(data)
                    sock.recv(4096)
        (line,) = httpx.get(f"{server.url}api/v1/runs").json()
        assert (line["phase"], line["nodes"]) == ("sealed", 2)


def asked_as(user: int, url: str, *headers: str) -> str:
    """Ask as another user, with a program of that user."""
    host, _, port = url.removeprefix("http://").rstrip("/").partition(":")
    lines = ["GET /api/v1/runs HTTP/1.0", f"Host: {host}", *headers, "", ""]
    script = 'exec 3<>/dev/tcp/$1/$2; printf %s "$3" >&3; cat <&3'
    done = subprocess.run(
        ["bash", "-c", script, "-", host, port, "\r\n".join(lines)],
        user=user, capture_output=True, text=True, timeout=20, check=True,
    )  # fmt: skip
    return done.stdout


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="needs a second user")
def test_on_loopback_the_page_is_its_users() -> None:
    nobody = 65534
    with served() as server:
        refused = asked_as(nobody, server.url)
        assert "403" in refused.splitlines()[0]
        assert "uid 0 and of root only" in refused
        assert httpx.get(f"{server.url}api/v1/runs").json() == []
    with served("--insecure") as server:
        assert "200" in asked_as(nobody, server.url).splitlines()[0]
    with served(env={"RALLYPOINT_TOKEN": "sesame"}) as server:
        assert "401" in asked_as(nobody, server.url).splitlines()[0]
        shown = asked_as(nobody, server.url, "Authorization: Bearer sesame")
        assert "200" in shown.splitlines()[0]
        assert httpx.get(f"{server.url}api/v1/runs").json() == []
