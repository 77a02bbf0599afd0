"""Who answers is known by the first bytes."""

import pytest

from rallypoint.net.protocol_sniffer import TLS_ALERT, speaks_tls, who_speaks


@pytest.mark.parametrize(
    ("head", "who"),
    [
        (b"HTTP/1.1 400 Bad Request", "an HTTP server"),
        (b"SSH-2.0-OpenSSH_9.2", "an SSH server"),
        (b"-ERR unknown command", "a Redis server"),
        (b"\x00\x00\x12\x04\x00", "a gRPC (HTTP/2) server, such as etcd"),
        (TLS_ALERT + b"\x03\x00\x02", "a server that speaks TLS"),
        (b"\x16\x03\x03\x00", "a server that speaks TLS"),
        (b"220 mail", ""),
        (b"", ""),
    ],
)
def test_a_server_is_known_by_its_first_bytes(head: bytes, who: str) -> None:
    assert who_speaks(head) == who
    assert speaks_tls(head) == ("TLS" in who)
