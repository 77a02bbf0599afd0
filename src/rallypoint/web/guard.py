"""Access control: the token, the Host header, and the security headers of the page.

* Every request except the login form needs the server's token, as a bearer token or as the
  cookie of the form. The cookie holds a MAC of the token, not the token. On loopback, the
  server's own user and root need no token (see `server.peer_credentials`).
* Under DNS rebinding, another site's name points to this machine, and the browser sends that name
  as Host. So unknown names are refused. IP addresses cannot be rebound and are accepted.
* The page may load only its own files, run no inline script, and not be framed.
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
        keys: returns the current tokens, since their file may change; none: no token is needed.
        names: further host names of this machine, besides its own and localhost.
    """

    def __init__(self, keys: Callable[[], Keyring], names: Iterable[str] = ()) -> None:
        self._keys = keys
        own = socket.gethostname().lower()
        self._names = {"localhost", own, *(name.lower() for name in names)}

    @property
    def asks_token(self) -> bool:
        """Whether a token is needed."""
        return bool(self._keys())

    @property
    def cookie(self) -> str:
        """The login cookie; it changes with the tokens."""
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
        """Return whether a text is a token that may see all runs, or no token is needed."""
        keys = self._keys()
        return not keys or keys.may_view(shown.encode())

    def may_look(self, authorization: str, cookies: str) -> bool:
        """Return whether these headers contain a token or the cookie."""
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
