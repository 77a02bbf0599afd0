"""A private CA: one key that signs certificates for the nodes of a cluster.

EC keys (P-256), SHA-256. Key files are readable by their owner only and replaced atomically.
A certificate is valid for a server and for a client. Needs the package cryptography (extra
`tls`).
"""

import datetime
import ipaddress
import os
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from rallypoint.errors import ParameterError

SLACK = datetime.timedelta(hours=1)  # for clocks that are behind ours
CA_DAYS = 3650


def make_ca(folder: Path, days: int = CA_DAYS) -> Path:
    """Return `folder`/ca.pem; make it and its key if they do not exist."""
    cert, key = folder / "ca.pem", folder / "ca.key"
    if cert.exists() and key.exists():
        return cert
    folder.mkdir(parents=True, exist_ok=True)
    own = ec.generate_private_key(ec.SECP256R1())
    name = _name("rallypoint private authority")
    usage = _usage(key_cert_sign=True, crl_sign=True)
    built = (
        _builder(name, name, own.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(own, hashes.SHA256())
    )
    _write(key, _pem(own), 0o600)
    _write(cert, built.public_bytes(serialization.Encoding.PEM), 0o644)
    return cert


def places(folder: Path, name: str) -> tuple[Path, Path]:
    """Return the paths of certificate and key, named after the first name."""
    stem = name.replace(":", "_").replace("*", "any").replace("/", "_")
    return folder / f"{stem}.pem", folder / f"{stem}.key"


def make_certificate(folder: Path, names: list[str], days: int) -> tuple[Path, Path]:
    """Make certificate and key for host names or addresses, signed by the folder's CA.

    Args:
        folder: holds ca.pem and ca.key; the new files are named after the first name.
        names: by which clients reach the server.
        days: until it expires.

    Raises ParameterError.
    """
    authority = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
    signer = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise ParameterError(f"{folder / 'ca.key'} is not an EC key; give another folder")
    alternatives = [_alternative(name) for name in names]
    own = ec.generate_private_key(ec.SECP256R1())
    usages = x509.ExtendedKeyUsage(
        [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    )
    by = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    built = (
        _builder(_name(names[0]), authority.subject, own.public_key(), days)
        .add_extension(x509.SubjectAlternativeName(alternatives), False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(usages, critical=False)
        .add_extension(by, critical=False)
        .sign(signer, hashes.SHA256())
    )
    cert, key = places(folder, names[0])
    _write(key, _pem(own), 0o600)
    _write(cert, built.public_bytes(serialization.Encoding.PEM), 0o644)
    return cert, key


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SLACK)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass  # not an address: a name
    try:
        if not name:
            raise ValueError
        return x509.DNSName(name)
    except ValueError as error:
        raise ParameterError(f"--name {name!r}: give a host name or an IP address") from error


def _usage(**allowed: bool) -> x509.KeyUsage:
    names = (
        "digital_signature", "content_commitment", "key_encipherment", "data_encipherment",
        "key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
    )  # fmt: skip
    return x509.KeyUsage(**{name: allowed.get(name, False) for name in names})


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write(path: Path, data: bytes, mode: int) -> None:
    """Replace a file atomically: a reader sees the old one or the new one."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(data)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
