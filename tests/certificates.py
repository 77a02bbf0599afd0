"""Certificates for TLS tests, made by the `openssl` command."""

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Certificates:
    """Files of a CA, a server on 127.0.0.1 and a client."""

    ca: Path
    cert: Path
    key: Path
    client_cert: Path
    client_key: Path


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)


def make_certificates(folder: Path) -> Certificates:
    """Make a CA and the certificates that it signs."""
    ca, ca_key = folder / "ca.pem", folder / "ca.key"
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    _openssl(
        "req", "-x509", *curve, "-keyout", str(ca_key), "-out", str(ca), "-days", "2",
        "-subj", "/CN=test authority", "-addext", "basicConstraints=critical,CA:TRUE",
        "-addext", "keyUsage=critical,keyCertSign",
    )  # fmt: skip
    made = []
    for name in ("server", "client"):
        key, request, cert = (folder / f"{name}.{end}" for end in ("key", "csr", "pem"))
        extensions = folder / f"{name}.ext"
        extensions.write_text(
            "subjectAltName=IP:127.0.0.1,DNS:localhost\n"
            "extendedKeyUsage=serverAuth,clientAuth\nauthorityKeyIdentifier=keyid\n"
        )
        _openssl("req", *curve, "-keyout", str(key), "-out", str(request), "-subj", "/O=tests")
        _openssl(
            "x509", "-req", "-in", str(request), "-CA", str(ca), "-CAkey", str(ca_key),
            "-CAcreateserial", "-days", "2", "-extfile", str(extensions), "-out", str(cert),
        )  # fmt: skip
        made += [cert, key]
    return Certificates(ca, *made)
