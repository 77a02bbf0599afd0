"""TLS contexts for both sides, and the socket of a client that speaks TLS.

`TLSSocket` offers the few methods of a socket that a client's connection uses, over a connected
one. The TLS state is a pair of memory buffers under a lock that is never held during input or
output: one thread may wait in `recv` while another sends, which an `ssl.SSLSocket` does not
allow.
"""

import functools
import hashlib
import logging
import socket
import ssl
import threading
from pathlib import Path
from typing import Any, Self

from rallypoint.errors import ParameterError
from rallypoint.net.certificate import ends
from rallypoint.net.tls import TLS, CertificateError, stamp, unusable

READ_BYTES = 64 * 1024
WRITE_BYTES = 256 * 1024
_PEM_END = "-----END CERTIFICATE-----"
logger = logging.getLogger("rallypoint.server")


def client_context(tls: TLS) -> ssl.SSLContext:
    """Return the context for a client's next connection (ParameterError: unusable files)."""
    return _client_context(tls, stamp(tls.ca, tls.cert, tls.key))


@functools.lru_cache(maxsize=8)
def _client_context(tls: TLS, _stamp: object) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=tls.ca or None)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if tls.cert:
            context.load_cert_chain(tls.cert, tls.key or None)
    except OSError as error:  # ssl.SSLError is one
        raise unusable(tls, error) from error
    return context


def binding(certificate: bytes) -> bytes:
    """Return the channel binding of a server's certificate (DER); see RFC 5929, section 4."""
    return hashlib.sha256(certificate).digest()


def server_context(files: TLS) -> tuple[ssl.SSLContext, bytes]:
    """Return the context of a server, and its channel binding (see `binding`).

    Raises ParameterError for files that cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.num_tickets = 0  # a resumed session would be accepted after its files are gone
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    try:
        context.load_cert_chain(files.cert, files.key or None, password="")
        if files.verify_client:
            context.load_verify_locations(files.ca)
            context.verify_mode = ssl.CERT_REQUIRED
        own, end, _chain = Path(files.cert).read_text("ascii").partition(_PEM_END)
        start = own.index("-----BEGIN CERTIFICATE-----")
        certificate = ssl.PEM_cert_to_DER_cert(own[start:] + end)
    except OSError as error:  # ssl.SSLError is one
        raise _unusable(files, error) from error
    logger.info("the certificate in %s ends on %s UTC", files.cert, ends(certificate))
    return context, binding(certificate)


def _unusable(files: TLS, error: OSError) -> ParameterError:
    """Return the error, which names the wrong file where that is known."""
    if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
        key = f"the key in tls_key={files.key}" if files.key else "the key in it"
        return ParameterError(f"tls_cert={files.cert}: {key} is another certificate's")
    if isinstance(error, ssl.SSLError) and not files.key:
        return ParameterError(
            f"tls_cert={files.cert} holds no certificate with its key; give the key too "
            "(tls_key, --tls-key)"
        )
    return unusable(files, error)


class TLSSocket:
    """TLS over a connected socket; one thread may send while another one receives.

    Args:
        sock: connected; its timeout applies to the handshake.
        tls: our files.
        host: name or address that the server's certificate must have.

    Raises CertificateError, ssl.SSLError (the other side does not speak TLS), OSError,
    ParameterError.
    """

    def __init__(self, sock: socket.socket, tls: TLS, host: str) -> None:
        self._sock = sock
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = client_context(tls)
        self._tls = context.wrap_bio(self._in, self._out, server_hostname=host.split("%")[0])
        self._lock = threading.Lock()
        self._unsent = b""
        self._taken = 0
        self._handshake(host)
        certificate = self._tls.getpeercert(binary_form=True) or b""
        self.binding = binding(certificate)
        self.certificate_ends = ends(certificate)

    def _handshake(self, host: str) -> None:
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._sock.sendall(self._out.read())
                data = self._sock.recv(READ_BYTES)
                if not data:
                    raise ConnectionError("closed during the TLS handshake") from None
                self._in.write(data)
            except ssl.SSLCertVerificationError as error:
                self._last_words()
                raise CertificateError(
                    f"the certificate of {host} is not accepted: {error.verify_message}; give "
                    "the authority that signed it (RALLYPOINT_TLS_CA, tls_ca), or reach the "
                    "server by a name that its certificate has"
                ) from error
            except ssl.SSLError as error:
                raise self._explained(error) from error
        self._sock.sendall(self._out.read())

    def _last_words(self) -> None:
        try:
            self._sock.sendall(self._out.read())  # an alert that tells the server why
        except OSError:
            return

    @staticmethod
    def _explained(error: ssl.SSLError) -> OSError:
        if "ALERT" in (error.reason or "") and "CERT" in (error.reason or ""):
            return CertificateError(
                "the server asks for a certificate of this client and refuses what it got "
                f"({error.reason}); give RALLYPOINT_TLS_CERT and RALLYPOINT_TLS_KEY (tls_cert, "
                "tls_key), signed by the authority that the server was started with"
            )
        return error

    def recv(self, _size: int, flags: int = 0) -> bytes:
        """Return all received bytes, decrypted; b"" at the end. May exceed `_size`."""
        while True:
            with self._lock:
                data, ended = self._decrypted()
            if data or ended:
                return data
            raw = self._sock.recv(READ_BYTES, flags)
            with self._lock:
                if raw:
                    self._in.write(raw)
                else:
                    self._in.write_eof()

    def _decrypted(self) -> tuple[bytes, bool]:
        pieces: list[bytes] = []
        try:
            while self._in.pending or self._in.eof or self._tls.pending():
                piece = self._tls.read(READ_BYTES)
                if not piece:
                    return b"".join(pieces), True
                pieces.append(piece)
        except ssl.SSLWantReadError:
            return b"".join(pieces), False
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            return b"".join(pieces), True
        except ssl.SSLError as error:
            raise self._explained(error) from error
        return b"".join(pieces), False

    def _encrypted(self, data: bytes | memoryview) -> bytes:
        with self._lock:
            self._tls.write(data)
            return self._out.read()

    def sendall(self, data: bytes) -> None:
        """Encrypt and send everything."""
        view = memoryview(data)
        for start in range(0, len(view), WRITE_BYTES):
            self._sock.sendall(self._encrypted(view[start : start + WRITE_BYTES]))

    def send(self, data: memoryview, flags: int = 0) -> int:
        """Encrypt and send a part of `data`; return its length in bytes.

        After a BlockingIOError the same data must be given again, as with OpenSSL.
        """
        if not self._unsent:
            part = data[:WRITE_BYTES]
            self._taken, self._unsent = len(part), self._encrypted(part)
        while self._unsent:
            self._unsent = self._unsent[self._sock.send(self._unsent, flags) :]
        return self._taken

    def settimeout(self, seconds: float | None) -> None:
        """Set the timeout of the socket below, in seconds."""
        self._sock.settimeout(seconds)

    def setsockopt(self, level: int, option: int, value: bytes) -> None:
        """Set an option of the socket below."""
        self._sock.setsockopt(level, option, value)

    def getsockname(self) -> Any:
        """Return the address of this end."""
        return self._sock.getsockname()

    def fileno(self) -> int:
        """Return the file descriptor of the socket below."""
        return self._sock.fileno()

    def shutdown(self, how: int) -> None:
        """Close the connection below without TLS's close_notify: our frames have a goodbye."""
        self._sock.shutdown(how)

    def close(self) -> None:
        """Close the socket below."""
        self._sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()
