import asyncio
import contextlib
import json
import os
import re
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from openapi_spec_validator import validate
from starlette.applications import Starlette
from starlette.middleware import Middleware
from tests.certificates import make_certificates
from tests.web.crowd import Crowd
from tests.web.fakes import FakeServer
from tests.web.serving import Served, served

from rallypoint.core.state import Settings
from rallypoint.net.tokens import Keyring
from rallypoint.web.app import STATIC, TYPES, AccessMiddleware, Pages, document
from rallypoint.web.guard import Guard

pytestmark = pytest.mark.integration
TWO = Settings(2, 2)


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served() as started, Crowd(started.port, "a/b", TWO) as crowd:
        crowd.join("n1", "n2")
        deadline = time.monotonic() + 10
        while ask(started, "/api/v1/runs/a/b").json()["phase"] != "sealed":
            assert time.monotonic() < deadline
        yield started


def ask(server: Served, path: str, **headers: str) -> httpx.Response:
    return httpx.get(f"{server.url}{path.removeprefix('/')}", headers=headers)


def test_the_document_is_as_its_schema_says(server: Served) -> None:
    schema = json.loads((files("rallypoint") / "schemas" / "status.v1.json").read_text("utf-8"))
    document = ask(server, "/api/v1/status").json()
    jsonschema.validate(document, schema)
    assert [run["run_id"] for run in document["runs"]] == ["a/b"]
    assert ask(server, "/api/v1/status?run=a/b").json()["runs"][0]["round"] == 1


def test_server_and_runs_have_their_own_documents(server: Served) -> None:
    assert ask(server, "/api/v1/server").json()["run_count"] == 1
    (line,) = ask(server, "/api/v1/runs").json()
    assert (line["run_id"], line["nodes"]) == ("a/b", 2)


def test_unknown_run_is_not_found_and_not_created(server: Served) -> None:
    for path in ("/api/v1/runs/nope", "/api/v1/status?run=nope"):
        answer = ask(server, path)
        assert answer.status_code == 404
        assert "nope" in answer.json()["error"]
    assert ask(server, "/api/v1/server").json()["run_count"] == 1


@pytest.mark.parametrize("name", sorted(path.name for path in STATIC.iterdir()))
def test_every_file_of_the_page_is_served(server: Served, name: str) -> None:
    answer = ask(server, f"/static/{name}")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith(TYPES[name.rpartition(".")[2]])


@pytest.mark.parametrize("name", ["..%2fapp.py", "nope.js", "app.py", "%2e%2e/%2e%2e/app.py"])
def test_other_files_are_not_served(server: Served, name: str) -> None:
    assert ask(server, f"/static/{name}").status_code == 404


def test_every_answer_carries_the_headers(server: Served) -> None:
    for path in ("/", "/nope", "/api/v1/runs", "/static/app.js"):
        headers = ask(server, path).headers
        assert "script-src 'self'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert "server" not in headers


def test_pages_hold_no_inline_script_or_style() -> None:
    for name in ("index.html", "login.html"):
        text = (STATIC / name).read_text("utf-8")
        assert not re.search(r"<script(?![^>]*src=)|<style|\son\w+=|style=|https?://", text), name


def test_another_name_is_refused(server: Served) -> None:
    answer = ask(server, "/api/v1/runs", Host="evil.example")
    assert answer.status_code == 421
    assert "--http-name" in answer.text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_page_is_read_only(server: Served, method: str) -> None:
    for path in ("", "api/v1/status", "api/v1/runs/a/b", "metrics"):
        assert httpx.request(method, f"{server.url}{path}").status_code == 405


def test_metrics_are_prometheus_text(server: Served) -> None:
    text = ask(server, "/metrics").text
    assert 'rallypoint_nodes{place="participant"} 2.0' in text
    assert "rallypoint_rounds_sealed_total 1.0" in text


def test_single_health_check(server: Served) -> None:
    assert ask(server, "/healthz").text == "ok\n"


def call(method: str, path: str, fake: FakeServer | None = None, **more: Any) -> httpx.Response:
    """Ask a page as off loopback, where a token is asked for."""
    keys = Keyring(b"run:other secret\nread sesame")
    guard = Guard(lambda: keys)
    pages = Pages((fake or FakeServer()).server, guard)
    app = Starlette(routes=pages.routes(), middleware=[Middleware(AccessMiddleware, guard=guard)])

    async def main() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.request(method, path, **more)

    return asyncio.run(main())


@pytest.mark.parametrize("path", ["/api/v1/runs/nope", "/api/v1/status?run=nope"])
def test_standby_server_names_the_leader(path: str) -> None:
    standby = FakeServer()
    standby.leads, standby.role = False, "stands by; h1:29400 leads, in epoch 7"
    answer = call("GET", path, standby, headers={"Authorization": "Bearer sesame"})
    assert answer.status_code == 503
    assert answer.json() == {"error": "this server stands by; h1:29400 leads, in epoch 7"}


def test_nothing_is_shown_without_the_token() -> None:
    for path in ("/", "/metrics", "/api/v1/status", "/api/v1/events", "/static/app.js"):
        answer = call("GET", path)
        assert answer.status_code == 401, path
        assert answer.headers["www-authenticate"] == "Bearer"


def test_everything_is_served_with_the_token() -> None:
    headers = {"Authorization": "Bearer sesame"}
    for path in ("/", "/metrics", "/api/v1/status", "/static/app.js"):
        assert call("GET", path, headers=headers).status_code == 200, path


def test_browser_gets_the_form_and_a_cookie() -> None:
    led = call("GET", "/", headers={"Accept": "text/html"})
    assert (led.status_code, led.headers["location"]) == (303, "/login")
    form = call("GET", "/login")
    assert 'name="token"' in form.text
    wrong = call("POST", "/login", data={"token": "nope"})
    assert wrong.headers["location"] == "/login?wrong"
    assert "set-cookie" not in wrong.headers
    right = call("POST", "/login", data={"token": " sesame "})
    cookie = right.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "sesame" not in cookie
    shown = {"Cookie": cookie.partition(";")[0]}
    assert call("GET", "/", headers=shown).status_code == 200


def test_endless_form_is_cut_off() -> None:
    assert call("POST", "/login", content=b"token=" + b"x" * 10_000).status_code == 413


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the validator's own
def test_the_description_is_valid() -> None:
    validate(document())


def test_every_route_of_the_api_is_described() -> None:
    from tests.web.fakes import FakeServer

    routes = {
        route.path.replace(":path", "")
        for route in Pages(FakeServer().server, Guard(lambda: Keyring(b""))).routes()
    }
    api = {path for path in routes if path.startswith("/api/")}
    assert api - {"/api/v1/openapi.json"} == set(document()["paths"])


def test_routes_with_parameters_have_their_errors() -> None:
    operations = [
        methods["get"] for path, methods in document()["paths"].items() if path != "/api/v1/events"
    ]
    assert {"parameters" in operation for operation in operations} == {True, False}
    for operation in operations:
        assert ({"404", "503"} <= set(operation["responses"])) == ("parameters" in operation)


pytestmark = pytest.mark.integration


def test_server_ends_at_once_with_viewers() -> None:
    with served() as server, httpx.stream("GET", f"{server.url}api/v1/events") as stream:
        lines = stream.iter_lines()
        assert next(lines) == "event: server"
        begun = time.monotonic()
    assert time.monotonic() - begun < 5


def test_page_on_other_addresses_needs_a_token() -> None:
    command = [sys.executable, "-m", "rallypoint", "serve", "--bind=127.0.0.1:0"]
    ended = subprocess.run(
        [*command, "--http=0.0.0.0:0"], capture_output=True, text=True, timeout=30, check=False
    )
    assert ended.returncode == 2
    assert "refusing to listen on 0.0.0.0 without a token" in ended.stderr


def test_used_port_is_named() -> None:
    with served() as server:
        place = server.url.removeprefix("http://").rstrip("/")
        command = [sys.executable, "-m", "rallypoint", "serve", "--bind=127.0.0.1:0"]
        ended = subprocess.run(
            [*command, f"--http={place}"], capture_output=True, text=True, timeout=30, check=False
        )
    assert ended.returncode == 1
    assert f"cannot listen on {place}" in ended.stderr


def test_page_on_other_addresses_needs_token_and_tls(tmp_path: Path) -> None:
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


def test_runs_continue_whatever_strangers_send() -> None:
    settings = Settings(2, 2, disconnect_grace_seconds=0.2)
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
def test_page_on_loopback_is_for_its_user() -> None:
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
