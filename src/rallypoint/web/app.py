"""The HTTP application: page, JSON API, events and metrics, all read-only.

Answers are the documents of `rendezvous.reports.status`. The page consists of static files and
gets its data from `/api/v1/events`. `Listener` serves the application in the server's event loop.
"""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs

import msgspec
import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from rallypoint.net.listener import is_loopback
from rallypoint.net.tokens import Keyring
from rallypoint.rendezvous.reports.status import (
    SCHEMA,
    RunLine,
    RunStatus,
    ServerStatus,
    Status,
    run_status,
)
from rallypoint.server.peer_credentials import (
    PeerCredentials,
    find_peer_credentials,
    may_talk,
    refusal,
)
from rallypoint.server.server import Server
from rallypoint.web.feed import Feed
from rallypoint.web.guard import COOKIE, COOKIE_SECONDS, HEADERS, Guard
from rallypoint.web.metrics import ServerCollector

STATIC = files("rallypoint.web") / "static"
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
OPEN_PATHS = ("/login", "/static/style.css", "/static/icon.svg", "/static/theme.js", "/healthz")
VIEWERS_LIMIT = 64
LOGIN_BYTES = 4096
NOT_KNOWN = 421


class AccessMiddleware:
    """Middleware that checks access, and adds the security headers to every answer.

    Args:
        app: the application.
        guard: checks the headers of a request.
        owners: on loopback, tells the user of a client; this user and root need no token.
    """

    def __init__(self, app: ASGIApp, guard: Guard, owners: PeerCredentials | None = None) -> None:
        self._app, self._guard, self._owners = app, guard, owners

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                extra = [(k.lower().encode(), v.encode()) for k, v in HEADERS.items()]
                message["headers"] = [*message.get("headers", []), *extra]
            await send(message)

        answer = self._refusal(scope["path"], Headers(scope=scope))
        if answer is not None and answer.status_code != NOT_KNOWN and await self._is_own(scope):
            answer = None
        app = self._app if answer is None else answer
        await app(scope, receive, send_with_headers)

    def _refusal(self, path: str, headers: Headers) -> Response | None:
        if not self._guard.knows_host(headers.get("host", "")):
            text = "unknown host name; allow it with rallypoint serve --http-name NAME\n"
            return PlainTextResponse(text, NOT_KNOWN)
        shown = headers.get("authorization", ""), headers.get("cookie", "")
        if path in OPEN_PATHS:
            return None
        if self._owners is not None and not self._guard.asks_token:
            return PlainTextResponse(refusal(None, "another user's process") + "\n", 403)
        if self._guard.may_look(*shown):
            return None
        if "text/html" in headers.get("accept", ""):
            return RedirectResponse("/login", 303)
        text = "token required: send the header Authorization: Bearer TOKEN\n"
        return PlainTextResponse(text, 401, {"WWW-Authenticate": "Bearer"})

    async def _is_own(self, scope: Scope) -> bool:
        """Return whether the client is this user or root, who need no token."""
        peer, own = scope.get("client"), scope.get("server")
        if self._owners is None or peer is None or own is None:
            return False
        found: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

        def told(uid: int | None) -> None:
            if not found.done():  # the client may be gone
                found.set_result(uid)

        self._owners.ask(tuple(peer), tuple(own), told)
        return may_talk(await found)


class Pages:
    """The handlers of all routes.

    Args:
        server: the server to show.
        guard: checks tokens at the login.
    """

    def __init__(self, server: Server, guard: Guard) -> None:
        self._server, self._guard = server, guard
        self.feed = Feed(server)
        self._registry = CollectorRegistry()
        self._registry.register(ServerCollector(server))

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/", self._page),
            Route("/login", self._login, methods=["GET", "POST"]),
            Route("/static/{name}", self._static),
            Route("/metrics", self._metrics),
            Route("/healthz", self._healthz),
            Route("/api/v1/status", self._status),
            Route("/api/v1/server", self._server_status),
            Route("/api/v1/runs", self._runs),
            Route("/api/v1/runs/{run_id:path}", self._one_run),
            Route("/api/v1/events", self._events),
            Route("/api/v1/openapi.json", self._openapi),
        ]

    async def _page(self, _request: Request) -> Response:
        return _file("index.html")

    async def _static(self, request: Request) -> Response:
        return _file(request.path_params["name"])

    async def _login(self, request: Request) -> Response:
        if request.method == "GET":
            return _file("login.html")
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > LOGIN_BYTES:
                return PlainTextResponse("too long\n", 413)
        given = parse_qs(body.decode("utf-8", "replace")).get("token", [""])[0]
        if not self._guard.is_token(given.strip()):
            return RedirectResponse("/login?wrong", 303)
        answer = RedirectResponse("/", 303)
        answer.set_cookie(
            COOKIE, self._guard.cookie, COOKIE_SECONDS, httponly=True, samesite="strict",
            secure=request.url.scheme == "https",
        )  # fmt: skip
        return answer

    async def _metrics(self, _request: Request) -> Response:
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)

    async def _healthz(self, _request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def _status(self, request: Request) -> Response:
        server = self._server.status()
        wanted = request.query_params.get("run")
        names = [line.run_id for line in server.runs] if wanted is None else [wanted]
        runs = [run for run in map(self._run, names) if run is not None]
        if wanted is not None and not runs:
            return self._no_run(wanted)
        return _json(Status(SCHEMA, f"the server at {server.endpoint}", server, tuple(runs)))

    async def _server_status(self, _request: Request) -> Response:
        return _json(self._server.status())

    async def _runs(self, _request: Request) -> Response:
        return _json(self._server.status().runs)

    async def _one_run(self, request: Request) -> Response:
        name = request.path_params["run_id"]
        found = self._run(name)
        return self._no_run(name) if found is None else _json(found)

    async def _events(self, request: Request) -> Response:
        if self.feed.viewers >= VIEWERS_LIMIT:
            return PlainTextResponse("too many viewers\n", 503, {"Retry-After": "10"})
        body = self.feed.events(request.query_params.get("run"))
        return StreamingResponse(body, media_type="text/event-stream")

    async def _openapi(self, _request: Request) -> Response:
        return _json(document())

    def _run(self, name: str) -> RunStatus | None:
        run = self._server.runs.get(name)
        return None if run is None else run_status(run.report())

    def _no_run(self, name: str) -> Response:
        code, text = 404, f"no run {name!r}"
        if not self._server.leads:
            code, text = 503, f"this server {self._server.role}"
        return Response(msgspec.json.encode({"error": text}), code, None, "application/json")


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


def _file(name: str) -> Response:
    suffix = name.rpartition(".")[2]
    path = STATIC / name
    if suffix not in TYPES or "/" in name or not path.is_file():
        return PlainTextResponse("no such file\n", 404)
    return Response(path.read_bytes(), media_type=TYPES[suffix])


def make_app(
    server: Server, guard: Guard, owners: PeerCredentials | None = None
) -> tuple[Starlette, Feed]:
    """Return the application and its feed; end the feed before the server stops."""
    pages = Pages(server, guard)
    doors = Middleware(AccessMiddleware, guard=guard, owners=owners)
    return Starlette(routes=pages.routes(), middleware=[doors]), pages.feed


_TEMPLATE = "#/components/schemas/{name}"
_UNAUTHORIZED = {"description": "token missing or wrong (only off loopback)"}


def document() -> dict[str, Any]:
    """Return the OpenAPI description of `/api/v1`, derived from the types of the answers."""
    kinds = [Status, ServerStatus, RunStatus, tuple[RunLine, ...]]
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_TEMPLATE)
    status, server, run, runs = schemas
    one = {"name": "run", "in": "query", "schema": {"type": "string"}, "description": "a run id"}
    path = {"name": "run_id", "in": "path", "required": True, "schema": {"type": "string"}}
    made = {
        "openapi": "3.1.0",
        "info": {
            "title": "Rallypoint",
            "version": "1",
            "description": "The runs of a Rallypoint server. Read-only.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"bearer": []}, {}],
        "paths": {
            "/api/v1/status": _get("status", "All runs, or one", status, [one]),
            "/api/v1/server": _get("server", "The server, and the list of its runs", server),
            "/api/v1/runs": _get("runs", "The list of runs", runs),
            "/api/v1/runs/{run_id}": _get("run", "One run", run, [path]),
            "/api/v1/events": _events(one),
        },
        "components": {
            "schemas": components,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(made))  # no tuples
    return plain


def _get(
    name: str, summary: str, schema: dict[str, Any], parameters: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    answers: dict[str, Any] = {
        "200": {"description": summary, "content": {"application/json": {"schema": schema}}},
        "401": _UNAUTHORIZED,
    }
    if parameters:
        answers["404"] = {"description": "there is no such run"}
        answers["503"] = {"description": "this server stands by; the error names the leader"}
    operation: dict[str, Any] = {"operationId": name, "summary": summary, "responses": answers}
    if parameters:
        operation["parameters"] = parameters
    return {"get": operation}


def _events(one: dict[str, Any]) -> dict[str, Any]:
    text = (
        "Server-sent events: `server` (ServerStatus) and, for the given run, `run` "
        "(RunStatus, without the node names in `rounds`) and `rounds` (with them)"
    )
    answer = {"description": text, "content": {"text/event-stream": {"schema": {"type": "string"}}}}
    operation = {
        "operationId": "events",
        "summary": "Changes as server-sent events",
        "parameters": [one],
        "responses": {
            "200": answer,
            "401": _UNAUTHORIZED,
            "503": {"description": "too many viewers"},
        },
    }
    return {"get": operation}


GOODBYE_SECONDS = 1


class _Quiet(uvicorn.Server):
    """A uvicorn server that leaves signals to the owner of the event loop."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture no signals."""
        yield


class Listener:
    """Serves the page over HTTP, with the tokens and the TLS files of the server.

    On loopback, it uses plain HTTP, and the server's own user needs no token.

    Args:
        server: the server to show.
        sockets: bound sockets to listen on (see `net.listener.listen`).
        names: further host names of this machine.
    """

    def __init__(
        self, server: Server, sockets: list[socket.socket], names: tuple[str, ...]
    ) -> None:
        local = all(is_loopback(str(sock.getsockname()[0])) for sock in sockets)
        nobody = Keyring(b"")
        asks = local and not server.options.insecure
        self._owners = find_peer_credentials(server.loop, sockets[0]) if asks else None
        is_open = local and self._owners is None
        guard = Guard(lambda: nobody if is_open else server.keyring, names)
        app, self._feed = make_app(server, guard, self._owners)
        tls = server.options.tls
        secure = tls.for_servers and not local
        config = uvicorn.Config(
            app,
            ssl_certfile=tls.cert if secure else None,
            ssl_keyfile=(tls.key or tls.cert) if secure else None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=GOODBYE_SECONDS,
            h11_max_incomplete_event_size=16 * 1024,
            limit_concurrency=256,
        )
        self._http = _Quiet(config)
        self._sockets = sockets
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to serve."""
        self._task = asyncio.ensure_future(self._http.serve(self._sockets))

    async def stop(self) -> None:
        """Disconnect the viewers and stop. Raises the error that broke the page, if any."""
        self._feed.end()
        self._http.should_exit = True
        if self._task is not None:
            await self._task
        if self._owners is not None:
            self._owners.close()
