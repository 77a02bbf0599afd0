"""Who may look: the token off loopback, the Host header, and what the page may do.

* Each request but the login form carries the server's token, as a bearer or as the cookie that
  the form gives. The cookie holds a MAC of the token, not the token. On loopback the processes
  of the server's own user and of root need none (see `server.peer`).
* A page of another site that makes its own name point to this machine (DNS rebinding) still
  sends its own name as Host: names that are not this machine's are refused. An IP address
  cannot be rebound, so any is taken.
* The page may load nothing but its own files, run no inline script, be framed by nobody.
"""

import hmac
import ipaddress
import socket
from collections.abc import Callable, Iterable
from http.cookies import CookieError, SimpleCookie

from rallypoint.net.tokens import Keyring

COOKIE = "rallypoint_view"
COOKIE_SECONDS = 7 * 86400
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """Decides on requests by their headers.

    Args:
        keys: the tokens of now, since their file may change; none: no token is asked for.
        names: names by which this machine may be called, beside its own and localhost.
    """

    def __init__(self, keys: Callable[[], Keyring], names: Iterable[str] = ()) -> None:
        self._keys = keys
        own = socket.gethostname().lower()
        self._names = {"localhost", own, *(name.lower() for name in names)}

    @property
    def asks_token(self) -> bool:
        """Whether there is a token to show."""
        return bool(self._keys())

    @property
    def cookie(self) -> str:
        """What the form gives to those who know a token; another one once tokens change."""
        secrets = b"\n".join(sorted(key.secret for key in self._keys().keys))
        return hmac.digest(secrets, b"rallypoint web 1", "sha256").hex() if secrets else ""

    def knows_host(self, header: str) -> bool:
        """Return whether a Host header names this machine."""
        host = header.strip().lower()
        if host.startswith("["):
            host = host[1:].partition("]")[0]
        elif host.count(":") <= 1:
            host = host.partition(":")[0]
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return host.rstrip(".") in self._names
        return True

    def is_token(self, shown: str) -> bool:
        """Return whether a text is a token that may see all runs (or none is needed)."""
        keys = self._keys()
        return not keys or keys.may_view(shown.encode())

    def may_look(self, authorization: str, cookies: str) -> bool:
        """Return whether these headers show the token."""
        if not self._keys():
            return True
        scheme, _, shown = authorization.partition(" ")
        if scheme.lower() == "bearer" and self.is_token(shown.strip()):
            return True
        try:
            jar = SimpleCookie(cookies)
        except CookieError:
            return False
        held = jar[COOKIE].value if COOKIE in jar else ""
        return hmac.compare_digest(held.encode(), self.cookie.encode())
