"""The expiry date of a certificate. PURE.

Python's `ssl` reads it only from certificates that it has verified, never from one's own. So it is
read from the DER: the validity is the fifth field of the signed part, after an optional version
(RFC 5280, section 4.1).
"""

_SEQUENCE, _VERSION, _UTC_TIME, _GENERALIZED_TIME = 0x30, 0xA0, 0x17, 0x18
_BEFORE_VALIDITY = 3  # serial number, signature algorithm, issuer

Field = tuple[int, bytes, bytes]


def _field(data: bytes) -> Field:
    """Return tag and content of the first DER field, and what follows it."""
    if len(data) < 2:
        raise ValueError("a truncated certificate")
    length, start = data[1], 2
    if length & 0x80:
        start += length & 0x7F
        length = int.from_bytes(data[2:start], "big")
    if len(data) < start + length:
        raise ValueError("a truncated certificate")
    return data[0], data[start : start + length], data[start + length :]


def _inside(data: bytes) -> bytes:
    tag, content, _rest = _field(data)
    if tag != _SEQUENCE:
        raise ValueError("no certificate")
    return content


def ends(certificate: bytes) -> str:
    """Return when a DER certificate expires, as "2027-01-31 12:00:00" in UTC (ValueError)."""
    rest = _inside(_inside(certificate))
    if rest[:1] == bytes([_VERSION]):
        rest = _field(rest)[2]
    for _ in range(_BEFORE_VALIDITY):
        rest = _field(rest)[2]
    _tag, _begins, rest = _field(_inside(rest))
    tag, raw, _rest = _field(rest)
    text = raw.decode("ascii")
    if tag == _UTC_TIME:  # two digits of the year; RFC 5280: below 50 is this century
        text = ("20" if int(text[:2]) < 50 else "19") + text
    elif tag != _GENERALIZED_TIME:
        raise ValueError("a certificate without an end")
    parts = [text[i : i + 2] for i in range(4, 14, 2)]
    return f"{text[:4]}-{parts[0]}-{parts[1]} {':'.join(parts[2:])}"
