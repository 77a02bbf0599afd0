"""The end of a certificate, read from its bytes."""

import random
import ssl
import subprocess
from pathlib import Path

import pytest
from tests.certificates import make_certificates

from rallypoint.net.certificate import ends


def test_end_of_validity_matches_openssl(tmp_path: Path) -> None:
    files = make_certificates(tmp_path)
    for path in (files.ca, files.cert):
        command = [
            "openssl",
            "x509",
            "-enddate",
            "-dateopt",
            "iso_8601",
            "-noout",
            "-in",
            str(path),
        ]
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
        found = ends(ssl.PEM_cert_to_DER_cert(path.read_text()))
        assert said.stdout.strip() == f"notAfter={found}Z"


def test_years_beyond_2049(tmp_path: Path) -> None:
    path = tmp_path / "far.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-keyout", str(tmp_path / "key"), "-subj", "/CN=x", "-days", "20000"]
    subprocess.run([*command, "-out", str(path)], check=True, capture_output=True, timeout=20)
    assert ends(ssl.PEM_cert_to_DER_cert(path.read_text())) > "2050"


def test_invalid_bytes_are_a_value_error(tmp_path: Path) -> None:
    der = ssl.PEM_cert_to_DER_cert(make_certificates(tmp_path).cert.read_text())
    rng = random.Random(1)
    for cut in range(0, len(der), 7):
        with pytest.raises(ValueError, match="certificate"):
            ends(der[:cut])
    for _ in range(2000):
        broken = bytearray(der)
        for _ in range(3):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        try:
            ends(bytes(broken))
        except ValueError:
            continue


def field(tag: int, content: bytes) -> bytes:
    return bytes([tag, len(content)]) + content


def certificate(end: bytes) -> bytes:
    """Make as much of a certificate as `ends` reads; three empty fields come before the dates."""
    validity = field(0x30, field(0x17, b"200101000000Z") + end)
    return field(0x30, field(0x30, field(0x05, b"") * 3 + validity))


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (field(0x17, b"491231235959Z"), "2049-12-31 23:59:59"),
        (field(0x17, b"500101000000Z"), "1950-01-01 00:00:00"),
        (field(0x18, b"20500101000000Z"), "2050-01-01 00:00:00"),
    ],
)
def test_two_digit_years_below_50_are_in_this_century(end: bytes, expected: str) -> None:
    assert ends(certificate(end)) == expected


def test_other_der_data_is_refused() -> None:
    der = certificate(field(0x17, b"491231235959Z"))
    with pytest.raises(ValueError, match="no certificate"):
        ends(b"\x31" + der[1:])
    with pytest.raises(ValueError, match="without an end"):
        ends(certificate(field(0x05, b"491231235959Z")))
    with pytest.raises(ValueError, match="truncated"):
        ends(field(0x30, field(0x30, field(0x05, b""))))
