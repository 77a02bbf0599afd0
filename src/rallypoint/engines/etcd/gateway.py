"""The client of etcd: its JSON gateway (v3), over kept HTTP connections, to any of its members.

Every member answers every request. The client skips a member that is down, disconnected or
without a leader, and asks the next one; once all have failed it pauses, longer each time and
with jitter, until the caller's deadline. Failures are told apart by etcd's (gRPC) status codes.

A request that is sent again may have taken effect although no answer came. The caller of a write
must be able to tell (see `EtcdEngine.commit`).
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from rallypoint.deadline import Deadline
from rallypoint.engines.contract import pause
from rallypoint.engines.url import EngineAddress
from rallypoint.errors import (
    AuthenticationError,
    ParameterError,
    StoreConnectionError,
    StoreError,
    StoreLimitError,
)

try:
    import urllib3
    from urllib3.exceptions import HTTPError
except ImportError as error:
    raise ParameterError(
        "etcd needs the extra rallypoint[etcd], which is not installed: "
        f"pip install 'rallypoint[etcd]' ({error})"
    ) from error

REQUEST_SECONDS = 5.0  # for one try; etcd's own limit is about 7
CONNECT_SECONDS = 2.0
_IDLE_CONNECTIONS = 8  # kept for each member; more are opened on demand

# Status codes of gRPC
INVALID, NOT_FOUND, DENIED, EXHAUSTED = 3, 5, 7, 8
PRECONDITION, UNAUTHENTICATED = 9, 16
_TRY_ANOTHER = (1, 4, 13, 14)  # cancelled, deadline exceeded, internal, unavailable
_NO_SPACE = "NOSPACE"
_T = TypeVar("_T")


class GatewayError(StoreError):
    """A request that etcd refused; `code` is the gRPC status."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class _Refusal(msgspec.Struct):
    code: int = 2
    message: str = ""
    error: str = ""


class _Token(msgspec.Struct):
    token: str = ""


class _Alarm(msgspec.Struct):
    alarm: str = ""


class _Alarms(msgspec.Struct):
    alarms: list[_Alarm] = []


class _UnavailableError(Exception):
    """This member cannot answer; another one may."""


_encode = msgspec.json.Encoder().encode


class Gateway:
    """A client of a cluster. Thread-safe; a forked child gets connections of its own.

    Args:
        address: the members of the cluster and the credentials.
    """

    def __init__(self, address: EngineAddress) -> None:
        self.address = address
        self._seconds = seconds = address.seconds("timeout", REQUEST_SECONDS)
        self._timeout = urllib3.Timeout(connect=min(CONNECT_SECONDS, seconds), read=seconds)
        self._tls = address.ssl_context()
        self._lock = threading.Lock()
        self._at = 0  # the member that answered last
        self._token = ""
        self._pid = 0
        self._pools: list[urllib3.HTTPConnectionPool] = []

    def close(self) -> None:
        """Close the connections that are not in use."""
        for pool in self._pools:
            pool.close()

    # -- requests -------------------------------------------------------------------------

    def call(self, path: str, body: Any, kind: type[_T], deadline: Deadline) -> _T:
        """Send a request and return its answer as `kind`.

        Raises StoreConnectionError if no member answers until the deadline (there is always
        one try), AuthenticationError, StoreLimitError, GatewayError.
        """
        data, failures, last = _encode(body), 0, ""
        while True:
            at = self._at
            try:
                return self._attempt(at, path, data, kind)
            except _UnavailableError as away:
                last = f"{self._label(at)}: {away}"
            failures += 1
            self._move_on(at)
            if deadline.expired():
                raise self._unreachable(deadline, failures, last)
            if failures % len(self.address.hosts) == 0:
                pause(failures // len(self.address.hosts), deadline)

    def _attempt(self, at: int, path: str, data: bytes, kind: type[_T]) -> _T:
        token = self._authenticated(at)
        try:
            return self._post(at, path, data, kind, token)
        except GatewayError as error:
            if error.code == UNAUTHENTICATED and token:
                self._token = ""  # the token has expired
                return self._post(at, path, data, kind, self._authenticated(at))
            if error.code == EXHAUSTED:
                raise self._full(at, token, error) from error
            raise

    def _post(self, at: int, path: str, data: bytes, kind: type[_T], token: str) -> _T:
        with _failures():
            answer = self._pool(at).request(
                "POST",
                f"/v3{path}",
                body=data,
                headers=_headers(token),
                timeout=self._timeout,
            )
            status, content = answer.status, answer.data
        if status == 200:
            return _decoded(content, kind)
        raise self._refused(at, status, content)

    def _refused(self, at: int, status: int, content: bytes) -> Exception:
        try:
            refusal = msgspec.json.decode(content, type=_Refusal)
        except msgspec.DecodeError:
            return _UnavailableError(f"answered HTTP {status}, not an answer of etcd")
        text = refusal.message or refusal.error
        if refusal.code in _TRY_ANOTHER:
            return _UnavailableError(text)
        where = f"etcd at {self._label(at)}: {text}"
        if refusal.code == DENIED:
            return AuthenticationError(f"{where} (user {self.address.user!r})")
        if refusal.code == INVALID and not self.address.user:
            where += " (no user was given: URL, or RALLYPOINT_ETCD_USER and _PASSWORD)"
            if self._asks_for_user(at):
                return AuthenticationError(where)
        return GatewayError(refusal.code, where)

    def _asks_for_user(self, at: int) -> bool:
        """Return whether authentication is on; without it etcd refuses no user."""
        data = _encode({"name": self.address.user, "password": ""})
        with _failures():
            answer = self._pool(at).request(
                "POST", "/v3/auth/authenticate", body=data, timeout=self._timeout
            )
        try:
            return msgspec.json.decode(answer.data, type=_Refusal).code in (INVALID, DENIED)
        except msgspec.DecodeError:
            return False

    def _full(self, at: int, token: str, error: GatewayError) -> Exception:
        """Tell a full database (permanent) from too many requests (temporary)."""
        try:
            alarms = self._post(at, "/maintenance/alarm", b"{}", _Alarms, token).alarms
        except StoreError:  # no permission to read alarms: assume the likelier reason
            alarms = [_Alarm(_NO_SPACE)]
        if any(each.alarm == _NO_SPACE for each in alarms):
            return StoreLimitError(
                f"{error}: its database is full (alarm {_NO_SPACE}); nothing was written. Free "
                "it (etcdctl compaction, defrag) or raise --quota-backend-bytes, then "
                "`etcdctl alarm disarm`"
            )
        return _UnavailableError(str(error))

    def _authenticated(self, at: int) -> str:
        address = self.address
        if not address.user or self._token:
            return self._token
        data = _encode({"name": address.user, "password": address.password})
        try:
            self._token = self._post(at, "/auth/authenticate", data, _Token, "").token
        except GatewayError as error:
            if error.code == PRECONDITION:  # authentication is off
                return ""
            raise AuthenticationError(
                f"{error} (user {address.user!r}; password from the URL, "
                "RALLYPOINT_ETCD_PASSWORD or RALLYPOINT_ETCD_PASSWORD_FILE)"
            ) from error
        return self._token

    # -- watching -------------------------------------------------------------------------

    @contextmanager
    def watch(self, key: bytes, deadline: Deadline) -> Iterator["Watch"]:
        """Watch a key from now on; raises the errors of `call`.

        A member without a leader ends the watch (the header requests that), so that no caller
        waits at a disconnected member.
        """
        self.call("/kv/range", {"key": key, "count_only": True}, _Token, deadline)
        at = self._at
        body = _encode({"create_request": {"key": key}})
        headers = _headers(self._token) | {"Grpc-Metadata-hasleader": "true"}
        try:
            with _failures():
                answer = self._pool(at).urlopen(
                    "POST",
                    "/v3/watch",
                    body=body,
                    headers=headers,
                    preload_content=False,
                    timeout=self._timeout,
                )
        except _UnavailableError as away:
            self._move_on(at)
            raise StoreConnectionError(f"etcd at {self._label(at)}: {away}") from away
        try:
            if answer.status != 200:
                refused = self._refused(at, answer.status, answer.read())
                raise StoreConnectionError(f"watching: {refused}") from refused
            watch = Watch(answer)
            watch.next(self._seconds)  # "created": from now on it sees every change
            yield watch
        finally:
            answer.close()  # the stream has no end, so close its connection

    # -- members --------------------------------------------------------------------------

    def _pool(self, at: int) -> urllib3.HTTPConnectionPool:
        with self._lock:
            if self._pid != os.getpid():
                self._pid = os.getpid()
                self._pools = [self._new_pool(*host) for host in self.address.hosts]
            return self._pools[at]

    def _new_pool(self, host: str, port: int) -> urllib3.HTTPConnectionPool:
        if self._tls is None:
            return urllib3.HTTPConnectionPool(host, port, maxsize=_IDLE_CONNECTIONS, retries=False)
        return urllib3.HTTPSConnectionPool(
            host, port, maxsize=_IDLE_CONNECTIONS, retries=False, ssl_context=self._tls
        )

    def _move_on(self, at: int) -> None:
        with self._lock:
            if self._at == at:
                self._at = (at + 1) % len(self.address.hosts)

    def _label(self, at: int) -> str:
        host, port = self.address.hosts[at]
        return f"{host}:{port}"

    def _unreachable(self, deadline: Deadline, failures: int, last: str) -> StoreConnectionError:
        return StoreConnectionError(
            f"{self.address} cannot be reached: {failures} tries in {deadline.elapsed():.1f} s; "
            f"the last one, {last}"
        )


class Watch:
    """The stream of one watch."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def next(self, seconds: float) -> bool:
        """Wait for a change; False after `seconds`, True also at the end of the stream."""
        connection = self._answer.connection
        if connection is None or connection.sock is None:
            return True
        connection.sock.settimeout(max(seconds, 0.001))
        try:
            self._answer.readline()
        except urllib3.exceptions.ReadTimeoutError:
            return False
        except (HTTPError, OSError, ValueError):
            return True  # the caller reads the key again
        return True


def _headers(token: str) -> dict[str, str]:
    return {"Authorization": token} if token else {}


def _decoded(content: bytes, kind: type[_T]) -> _T:
    try:
        # The gateway sends 64-bit numbers as text and bytes as base64.
        return msgspec.json.decode(content, type=kind, strict=False)
    except msgspec.DecodeError as error:
        raise _UnavailableError(f"not an answer of etcd: {error}") from error


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except (HTTPError, OSError) as error:
        raise _UnavailableError(f"{type(error).__name__}: {error}") from error
