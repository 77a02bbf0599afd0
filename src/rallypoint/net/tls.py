"""Which TLS files a process has, as a client and as a server.

Files are read afresh when they have changed (`stamp`), at the next connection: certificates
may be renewed while nodes run. Kept apart from `tls_socket`, since most processes speak no
TLS and the module `ssl` is slow to import.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rallypoint.errors import AuthenticationError, ParameterError

PREFIX = "RALLYPOINT_TLS"
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")


class CertificateError(AuthenticationError):
    """A certificate was refused, by us or by the other side."""


@dataclass(frozen=True)
class TLS:
    """The TLS files of a process, client or server; all are PEM.

    Args:
        ca: authorities that are trusted; a client that has it speaks TLS.
        cert: own certificate and its chain; a server that has it speaks TLS, a client shows
            it to servers that ask.
        key: its private key; "" if it is in `cert`.
        verify_client: as a server, let in only clients with a certificate of `ca`.
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
        """Raise ParameterError where a server would be started that its clients refuse."""
        if self.for_clients and not self.for_servers:
            raise ParameterError(
                "this node hosts the server, and its clients shall speak TLS: give tls_cert and "
                "tls_key too (`rallypoint certs` makes them)"
            )

    def environment(self) -> dict[str, str]:
        """Return the variables by which a process of ours gets the same."""
        names = {"_CA": self.ca, "_CERT": self.cert, "_KEY": self.key}
        found = {PREFIX + name: os.path.abspath(path) for name, path in names.items() if path}
        found |= {f"{PREFIX}_VERIFY_CLIENT": "1"} if self.verify_client else {}
        return found | ({PREFIX: "1"} if self.system else {})


NO_TLS = TLS()


def read_tls(given: Mapping[str, Any] | None = None) -> TLS:
    """Return the files that parameters name, else those of the environment.

    Args:
        given: may have `tls`, `tls_ca`, `tls_cert`, `tls_key`, `tls_verify_client`; else
            RALLYPOINT_TLS, RALLYPOINT_TLS_CA and so on are looked at, one by one.

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
    """Return what tells whether files have changed; None for one that is not there."""
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
    """Return the error for files that cannot be used; nothing of a key is in it."""
    named = {"tls_ca": tls.ca, "tls_cert": tls.cert, "tls_key": tls.key}
    files = ", ".join(f"{name}={path}" for name, path in named.items() if path)
    return ParameterError(f"TLS with {files or 'the system'}: {error.strerror or error}")
