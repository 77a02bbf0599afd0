"""The TLS files of a process, as a client and as a server.

The next connection after a change reads the files again (`stamp`): certificates may be renewed
while nodes run. The module `tls_socket` is separate because most processes speak no TLS and `ssl`
is slow to import.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rallypoint.errors import AuthenticationError, ParameterError

PREFIX = "RALLYPOINT_TLS"
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")


class CertificateError(AuthenticationError):
    """This side or the other one has refused a certificate."""


@dataclass(frozen=True)
class TLS:
    """The TLS files of a process, client or server; all are PEM.

    Args:
        ca: trusted authorities; a client with this file speaks TLS.
        cert: own certificate and its chain; a server with this file speaks TLS, a client
            shows it to servers that request one.
        key: its private key; "" if it is in `cert`.
        verify_client: as a server, accept only clients with a certificate of `ca`.
        system: as a client, speak TLS and trust the system's authorities.
    """

    ca: str = ""
    cert: str = ""
    key: str = ""
    verify_client: bool = False
    system: bool = False

    def __post_init__(self) -> None:
        if self.key and not self.cert:
            raise ParameterError(f"tls_key={self.key!r} needs tls_cert, the certificate it is for")
        if self.verify_client and not self.ca:
            raise ParameterError("tls_verify_client needs tls_ca: who must have signed clients")

    @property
    def for_clients(self) -> bool:
        """Whether a client speaks TLS."""
        return bool(self.ca) or self.system

    @property
    def for_servers(self) -> bool:
        """Whether a server speaks TLS."""
        return bool(self.cert)

    def check_hosting(self) -> None:
        """Raise ParameterError if clients with these files would refuse a server with them."""
        if self.for_clients and not self.for_servers:
            raise ParameterError(
                "this node hosts the server, and its clients shall speak TLS: give tls_cert and "
                "tls_key too (`rallypoint certs` makes them)"
            )

    def environment(self) -> dict[str, str]:
        """Return the environment variables with which a child process has the same files."""
        names = {"_CA": self.ca, "_CERT": self.cert, "_KEY": self.key}
        found = {PREFIX + name: os.path.abspath(path) for name, path in names.items() if path}
        found |= {f"{PREFIX}_VERIFY_CLIENT": "1"} if self.verify_client else {}
        return found | ({PREFIX: "1"} if self.system else {})


NO_TLS = TLS()


def read_tls(given: Mapping[str, Any] | None = None) -> TLS:
    """Return the files of parameters; the environment has those that are not given.

    Args:
        given: may have `tls`, `tls_ca`, `tls_cert`, `tls_key` and `tls_verify_client`, for which
            the environment has RALLYPOINT_TLS, RALLYPOINT_TLS_CA and so on.

    Raises ParameterError.
    """

    def text(name: str) -> str:
        value = (given or {}).get(name)
        variable = f"RALLYPOINT_{name.upper()}"
        return str(os.environ.get(variable, "") if value is None else value)

    def truth(name: str) -> bool:
        value = text(name).strip().lower()
        if value not in (*_TRUE, *_FALSE):
            raise ParameterError(f"{name}={value!r}: allowed are 1, true, yes; 0, false, no")
        return value in _TRUE

    return TLS(
        text("tls_ca"), text("tls_cert"), text("tls_key"), truth("tls_verify_client"), truth("tls")
    )


def stamp(*paths: str) -> tuple[tuple[int, int, int] | None, ...]:
    """Return a value that differs once a file has changed."""
    found: list[tuple[int, int, int] | None] = []
    for path in filter(None, paths):
        try:
            status = os.stat(path)
        except OSError:
            found.append(None)
        else:
            found.append((status.st_mtime_ns, status.st_size, status.st_ino))
    return tuple(found)


def unusable(tls: TLS, error: OSError) -> ParameterError:
    """Return the error for unusable files; it contains nothing of a key."""
    named = {"tls_ca": tls.ca, "tls_cert": tls.cert, "tls_key": tls.key}
    files = ", ".join(f"{name}={path}" for name, path in named.items() if path)
    return ParameterError(f"TLS with {files or 'the system'}: {error.strerror or error}")
