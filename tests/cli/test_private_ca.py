"""The private authority: what its certificates say, and files that are put in place whole."""

import ssl
from pathlib import Path

import pytest
from cryptography import x509

from rallypoint.cli.private_ca import make_ca, make_certificate
from rallypoint.net.certificate import ends


def test_content_of_a_certificate(tmp_path: Path) -> None:
    ca = x509.load_pem_x509_certificate(make_ca(tmp_path).read_bytes())
    cert_path, _key = make_certificate(tmp_path, ["head", "10.0.0.1"], 30)
    cert = x509.load_pem_x509_certificate(cert_path.read_bytes())
    names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["head"]
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.1"]
    assert cert.issuer == ca.subject
    cert.verify_directly_issued_by(ca)
    constraints = x509.BasicConstraints
    assert ca.extensions.get_extension_for_class(constraints).value.ca
    assert not cert.extensions.get_extension_for_class(constraints).value.ca
    shown = ends(ssl.PEM_cert_to_DER_cert(cert_path.read_text()))
    assert shown == cert.not_valid_after_utc.strftime("%Y-%m-%d %H:%M:%S")


def test_ca_of_another_kind_is_refused(tmp_path: Path) -> None:
    make_ca(tmp_path)
    (tmp_path / "ca.key").write_text("none")
    with pytest.raises(ValueError, match=r".+"):
        make_certificate(tmp_path, ["head"], 1)
