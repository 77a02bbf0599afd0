"""The agent's health over HTTP, for Kubernetes probes and others: GET /live and /ready.

/live   200 while the agent's loop works or waits (for other nodes, for a server that is away,
        for workers that stop); 503 once one action has taken `STUCK_SECONDS`, which is longer
        than any limit of an action.
/ready  200 while this node's workers run, else 503.

Both return the phase as JSON and nothing more, since they need no token, and reasons contain
node names and output of programs. Python's own server is enough for a small answer to a probe
now and then; not `HTTPServer`, which asks DNS for this machine's name.
"""

import http.server
import socket
import socketserver
import threading
import time
from http import HTTPStatus
from typing import Any, Self

import msgspec

from rallypoint.agent.policy.decisions import AgentState, Working
from rallypoint.deadline import Clock
from rallypoint.errors import ParameterError
from rallypoint.net.endpoints import Endpoint, join_endpoint

STUCK_SECONDS = 300.0
REQUEST_SECONDS = 5.0


class HealthServer:
    """Serves the agent's health.

    Args:
        endpoint: host and port to listen on (of a name, its first address); None: do not listen.
        clock: monotonic clock.
    """

    def __init__(self, endpoint: Endpoint | None, clock: Clock = time.monotonic) -> None:
        self._endpoint = endpoint
        self._clock = clock
        self._server: _Server | None = None
        self._busy_since: float | None = None
        self._phase = "starting"
        self._ready = False

    def show(self, state: AgentState) -> None:
        """Take over the loop's state; it carries out actions now."""
        self._phase = type(state.phase).__name__.lower()
        self._ready = isinstance(state.phase, Working)
        self._busy_since = self._clock()

    def idle(self) -> None:
        """Note that the loop waits for an event."""
        self._busy_since = None

    def answer(self, path: str) -> tuple[HTTPStatus, dict[str, Any]]:
        """Return the HTTP status and the JSON body for a path."""
        since = self._busy_since
        live = since is None or self._clock() - since < STUCK_SECONDS
        good = {"/live": live, "/healthz": live, "/ready": live and self._ready}
        if path not in good:
            return HTTPStatus.NOT_FOUND, {"error": "the paths are /live and /ready"}
        status = HTTPStatus.OK if good[path] else HTTPStatus.SERVICE_UNAVAILABLE
        return status, {"live": live, "ready": live and self._ready, "phase": self._phase}

    @property
    def port(self) -> int | None:
        """The port that the server listens on, None if it does not."""
        return None if self._server is None else int(self._server.server_address[1])

    def __enter__(self) -> Self:
        """Listen. Raises ParameterError when the port is unusable."""
        if self._endpoint is None:
            return self
        try:
            server = _Server(self._endpoint, _handler(self))
        except (OSError, UnicodeError) as error:  # UnicodeError: an invalid name
            why = getattr(error, "strerror", None) or str(error)
            raise ParameterError(
                f"--health-port {join_endpoint(*self._endpoint)}: cannot listen on it: {why}; give "
                "another port, or an address of this machine"
            ) from error
        self._server = server
        body = server.serve_forever
        threading.Thread(target=body, name="rallypoint-health", daemon=True).start()
        return self

    def __exit__(self, *_exc: object) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, place: Endpoint, handler: type[http.server.BaseHTTPRequestHandler]) -> None:
        found = socket.getaddrinfo(*place, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, _, _, _, address = found[0]
        super().__init__(address, handler)  # type: ignore[arg-type] # of either family

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        super().server_bind()


def _handler(health: HealthServer) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        timeout = REQUEST_SECONDS

        def do_GET(self) -> None:
            status, body = health.answer(self.path.partition("?")[0])
            content = msgspec.json.encode(body)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing: a probe comes every few seconds."""

    return Handler
