"""What else may listen at a port, known by the first bytes that it sends. PURE."""

TLS_ALERT = b"\x15\x03"
_STARTS = (
    (b"HTTP/", "an HTTP server"),
    (b"SSH-", "an SSH server"),
    (TLS_ALERT, "a server that speaks TLS"),
    (b"\x16\x03", "a server that speaks TLS"),
    (b"-ERR", "a Redis server"),
    (b"\x00\x00\x12\x04", "a gRPC (HTTP/2) server, such as etcd"),
)


def who_speaks(head: bytes) -> str:
    """Return what a server is by its first bytes, "" if that is not known."""
    return next((name for start, name in _STARTS if head.startswith(start)), "")


def speaks_tls(head: bytes) -> bool:
    """Return whether the first bytes are those of TLS: an alert, or a handshake."""
    return "TLS" in who_speaks(head)
