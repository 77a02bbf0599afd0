"""TLS for the server: files that are reloaded, and the layer between socket and connection.

`TLSLayer` is the protocol of the raw transport and the transport of a `Connection`, so a
connection works the same with TLS and without. It counts from the moment it is accepted: a TLS
handshake that goes nowhere is under the same limits and deadline as any other. A client that
does not speak TLS gets a plain goodbye that says so.
"""

import asyncio
import logging
import ssl
from typing import cast

from rallypoint.net import protocol as p
from rallypoint.net.tls import TLS, stamp
from rallypoint.net.tls_socket import server_context
from rallypoint.server.connection import Connection

logger = logging.getLogger("rallypoint.server")

READ_BYTES = 64 * 1024
_HANDSHAKE = 0x16  # type of a TLS record


class ServerTLS:
    """The TLS context of new connections; replaced when a file has changed.

    Args:
        files: see `TLS`.

    Raises ParameterError for files that cannot be used.
    """

    def __init__(self, files: TLS) -> None:
        self._files = files
        self._stamp = self._now()
        self.context, self.binding = server_context(files)

    def _now(self) -> object:
        return stamp(self._files.ca, self._files.cert, self._files.key)

    def reload(self) -> None:
        """Read the files again if they have changed; ignore them while they are unusable."""
        found = self._now()
        if found == self._stamp:
            return
        self._stamp = found
        try:
            self.context, self.binding = server_context(self._files)
        except ValueError as error:  # ParameterError: half written, or wrong
            logger.warning("%s; going on with what was read before", error)
        else:
            logger.warning("the TLS files have changed: new connections use them")


class TLSLayer(asyncio.Protocol):
    """TLS over one accepted connection.

    Args:
        tls: the server's files.
        connection: gets the decrypted bytes, and has this layer as its transport.
    """

    def __init__(self, tls: ServerTLS, connection: Connection) -> None:
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = tls.context.wrap_bio(self._in, self._out, server_side=True)
        self._connection = connection
        self._binding = tls.binding
        self._has_begun = False
        self._is_open = False
        self._is_plain = False
        self._has_ended = False

    # -- protocol of the raw transport ----------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Be the connection's transport."""
        raw = self._raw = cast(asyncio.Transport, transport)
        self.abort = raw.abort
        self.is_closing = raw.is_closing
        self.get_write_buffer_size = raw.get_write_buffer_size
        self.pause_reading = raw.pause_reading
        self.resume_reading = raw.resume_reading
        self.get_extra_info = raw.get_extra_info
        self._connection.connection_made(cast(asyncio.Transport, self))

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass it on."""
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        """Pass it on."""
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        """Pass it on."""
        self._connection.resume_writing()

    def data_received(self, data: bytes) -> None:
        """Do the TLS handshake, then decrypt."""
        if self._is_plain or self._has_ended:
            return  # read on, so that no reset loses our last words
        self._in.write(data)
        try:
            if not self._is_open and not self._shake(data):
                return
            while self._in.pending or self._tls.pending():  # else `read` raises, which is slow
                piece = self._tls.read(READ_BYTES)
                if not piece:
                    break
                self._connection.data_received(piece)
            self._flush()
        except ssl.SSLWantReadError:
            self._flush()
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            self._raw.close()
        except ssl.SSLError as error:
            self._refuse(error)

    def _shake(self, data: bytes) -> bool:
        if not self._has_begun and data[0] != _HANDSHAKE:
            self._is_plain = True
            why = "this server speaks TLS: give its authority (RALLYPOINT_TLS_CA, tls_ca)"
            self._connection.close(p.Goodbye(p.GOODBYE_PROTOCOL, why))
            return False
        self._has_begun = True
        self._tls.do_handshake()
        self._is_open = True
        self._connection.binding = self._binding
        self._flush()
        return True

    def _refuse(self, error: ssl.SSLError) -> None:
        logger.info("TLS with %s: %s", self._connection.peer, error.reason or error)
        self._flush()  # the alert that says why
        self._raw.close()

    def _flush(self) -> None:
        if self._out.pending and not self._has_ended and not self._raw.is_closing():
            self._raw.write(self._out.read())

    # -- transport of the connection ------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Encrypt and send; drop data before the TLS handshake is done."""
        if self._has_ended or self._raw.is_closing():
            return
        if self._is_plain:
            self._raw.write(data)
        elif self._is_open:
            try:
                self._tls.write(data)
            except ssl.SSLError:  # its own goodbye has been said
                self._raw.abort()
            else:
                self._flush()

    def write_eof(self) -> None:
        """End our direction."""
        self._flush()
        if not self._has_ended and not self._raw.is_closing():
            self._has_ended = True
            self._raw.write_eof()
