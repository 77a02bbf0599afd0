"""The health endpoint for Kubernetes and others: GET /live and /ready over HTTP.

/live   200 as long as the agent's loop does its work. Waiting is work: for other nodes, for a
        server that is away, for workers in their grace. 503 once the loop is stuck in one
        action for `STUCK_SECONDS`, which no limit of ours allows.
/ready  200 while this node's workers run, else 503.

Both answer with the phase as JSON, and with nothing else: whoever reaches the port is told, no
token is asked for, and reasons name nodes and carry what programs wrote. Python's own server is
enough here: one small answer now and then, to a probe (`HTTPServer` itself asks the name service
about us).
"""

import http.server
import socket
import socketserver
import threading
import time
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self

import msgspec

from rallypoint.agent.policy.decisions import AgentState, Working
from rallypoint.deadline import Clock
from rallypoint.errors import ParameterError
from rallypoint.net.endpoints import Endpoint, join_endpoint

STUCK_SECONDS = 300.0
REQUEST_SECONDS = 5.0


class Health:
    """What is answered.

    Args:
        clock: monotonic clock.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._busy_since: float | None = None
        self._phase, self._ready = "starting", False

    def show(self, state: AgentState) -> None:
        """The loop has decided something, and acts now."""
        self._phase = type(state.phase).__name__.lower()
        self._ready = isinstance(state.phase, Working)
        self._busy_since = self._clock()

    def rests(self) -> None:
        """The loop waits for what comes next."""
        self._busy_since = None

    def answer(self, path: str) -> tuple[HTTPStatus, dict[str, Any]]:
        """Return the status and the body for a path."""
        since = self._busy_since
        live = since is None or self._clock() - since < STUCK_SECONDS
        good = {"/live": live, "/healthz": live, "/ready": live and self._ready}
        if path not in good:
            return HTTPStatus.NOT_FOUND, {"error": "there is /live and /ready"}
        status = HTTPStatus.OK if good[path] else HTTPStatus.SERVICE_UNAVAILABLE
        return status, {"live": live, "ready": live and self._ready, "phase": self._phase}


class HealthEndpoint(Health):
    """The same, served.

    Args:
        place: host and port to listen on, exactly; a name stands for its first address. None: not
            at all.
    """

    def __init__(self, place: Endpoint | None) -> None:
        super().__init__()
        self._place = place
        self._server: _Server | None = None

    @property
    def port(self) -> int | None:
        """The port that is listened on, None if none is."""
        return None if self._server is None else int(self._server.server_address[1])

    def __enter__(self) -> Self:
        """Listen. Raises ParameterError when the port cannot be had."""
        if self._place is None:
            return self
        try:
            server = _Server(self._place, _handler(self))
        except (OSError, UnicodeError) as error:  # the latter: what no name can be
            why = getattr(error, "strerror", None) or str(error)
            raise ParameterError(
                f"--health-port {join_endpoint(*self._place)}: cannot listen on it: {why}; give "
                "another port, or an address of this machine"
            ) from error
        self._server = server
        body = server.serve_forever
        threading.Thread(target=body, name="rallypoint-health", daemon=True).start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
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


def _handler(health: Health) -> type[http.server.BaseHTTPRequestHandler]:
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
            """Say nothing: a probe comes every few seconds."""

    return Handler
