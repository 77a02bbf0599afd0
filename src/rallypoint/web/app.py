"""The routes: page, JSON, events, metrics. Nothing here changes anything.

Every answer is made of the documents of `rendezvous.status`; the page is one HTML file, one
script and one style sheet of the package, and fills itself from `/api/v1/events`.
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


class Doors:
    """Asks the guard before anything else, and puts the headers on every answer.

    Args:
        app: answers those who may ask.
        guard: decides by their headers.
        owners: on loopback, tells whose process asks: this user's and root's may without a token.
    """

    def __init__(self, app: ASGIApp, guard: Guard, owners: PeerCredentials | None = None) -> None:
        self._app, self._guard, self._owners = app, guard, owners

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
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
            text = "this server is not known by that name (serve --http-name NAME allows one)\n"
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
        text = "show the server's token: Authorization: Bearer TOKEN\n"
        return PlainTextResponse(text, 401, {"WWW-Authenticate": "Bearer"})

    async def _is_own(self, scope: Scope) -> bool:
        """Return whether this user or root asks, which needs no token."""
        peer, own = scope.get("client"), scope.get("server")
        if self._owners is None or peer is None or own is None:
            return False
        found: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

        def told(uid: int | None) -> None:
            if not found.done():  # who asked may be gone
                found.set_result(uid)

        self._owners.ask(tuple(peer), tuple(own), told)
        return may_talk(await found)


class Pages:
    """What is answered on each path.

    Args:
        server: whose runs are shown.
        guard: says who may look.
    """

    def __init__(self, server: Server, guard: Guard) -> None:
        self._server, self._guard = server, guard
        self.feed = Feed(server)
        self._registry = CollectorRegistry()
        self._registry.register(ServerCollector(server))

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/", self.page),
            Route("/login", self.login, methods=["GET", "POST"]),
            Route("/static/{name}", self.static),
            Route("/metrics", self.metrics),
            Route("/healthz", self.healthz),
            Route("/api/v1/status", self.status),
            Route("/api/v1/server", self.server),
            Route("/api/v1/runs", self.runs),
            Route("/api/v1/runs/{run_id:path}", self.run),
            Route("/api/v1/events", self.events),
            Route("/api/v1/openapi.json", self.openapi),
        ]

    async def page(self, _request: Request) -> Response:
        """The live page."""
        return _file("index.html")

    async def static(self, request: Request) -> Response:
        """A file of the page."""
        return _file(request.path_params["name"])

    async def login(self, request: Request) -> Response:
        """The form that takes the token, and gives a cookie for it."""
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

    async def metrics(self, _request: Request) -> Response:
        """All figures in Prometheus' form."""
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)

    async def healthz(self, _request: Request) -> Response:
        """Whether the loop turns: an answer is the answer."""
        return PlainTextResponse("ok\n")

    async def status(self, request: Request) -> Response:
        """The whole document, of all runs or of one."""
        server = self._server.status()
        wanted = request.query_params.get("run")
        names = [line.run_id for line in server.runs] if wanted is None else [wanted]
        runs = [run for run in map(self._run, names) if run is not None]
        if wanted is not None and not runs:
            return self._no_run(wanted)
        return _json(Status(SCHEMA, f"the server at {server.endpoint}", server, tuple(runs)))

    async def server(self, _request: Request) -> Response:
        """How the server is."""
        return _json(self._server.status())

    async def runs(self, _request: Request) -> Response:
        """The list of runs."""
        return _json(self._server.status().runs)

    async def run(self, request: Request) -> Response:
        """One run."""
        name = request.path_params["run_id"]
        found = self._run(name)
        return self._no_run(name) if found is None else _json(found)

    async def events(self, request: Request) -> Response:
        """What happens, as server-sent events."""
        if self.feed.viewers >= VIEWERS_LIMIT:
            return PlainTextResponse("too many viewers\n", 503, {"Retry-After": "10"})
        body = self.feed.events(request.query_params.get("run"))
        return StreamingResponse(body, media_type="text/event-stream")

    async def openapi(self, _request: Request) -> Response:
        """The description of this API."""
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
    """Return the application and its feed, which must be ended before the server is."""
    pages = Pages(server, guard)
    doors = Middleware(Doors, guard=guard, owners=owners)
    return Starlette(routes=pages.routes(), middleware=[doors]), pages.feed


_TEMPLATE = "#/components/schemas/{name}"
_UNAUTHORIZED = {"description": "the server's token was not shown (off loopback only)"}


def document() -> dict[str, Any]:
    """Return the description."""
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
            "description": "What the runs of a Rallypoint server are doing. Read-only.",
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
        answers["503"] = {"description": "this server stands by; the error says who leads"}
    operation: dict[str, Any] = {"operationId": name, "summary": summary, "responses": answers}
    if parameters:
        operation["parameters"] = parameters
    return {"get": operation}


def _events(one: dict[str, Any]) -> dict[str, Any]:
    text = (
        "Server-sent events: `server` (ServerStatus), and of the run that is named `run` "
        "(RunStatus, without the names in `rounds`) and `rounds` (its `rounds` in full)"
    )
    answer = {"description": text, "content": {"text/event-stream": {"schema": {"type": "string"}}}}
    operation = {
        "operationId": "events",
        "summary": "What happens, pushed",
        "parameters": [one],
        "responses": {"200": answer, "401": _UNAUTHORIZED, "503": {"description": "too many"}},
    }
    return {"get": operation}


GOODBYE_SECONDS = 1


class _Quiet(uvicorn.Server):
    """Leaves signals to whoever runs the loop."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


class Listener:
    """The page of a server: plain on loopback and open to its user, else guarded as the server.

    Args:
        server: whose runs are shown; its tokens are asked for.
        sockets: bound sockets to listen on (see `net.listener.listen`).
        names: further names by which this machine may be called.
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
        """Begin to listen."""
        self._task = asyncio.ensure_future(self._http.serve(self._sockets))

    async def stop(self) -> None:
        """Let the viewers go and end; raises what broke it."""
        self._feed.end()
        self._http.should_exit = True
        if self._task is not None:
            await self._task
        if self._owners is not None:
            self._owners.close()
