"""A saved state as bytes: msgpack with a checksum in front.

    "rallypoint-state 1\n"  SHA-256 of the rest (32 bytes)  msgpack of [step, values]

Values are numbers, texts, bytes, None, lists and dicts of these, and numpy arrays. Two things
are extensions of msgpack: 1 an array, [dtype, shape, bytes]; 2 an integer of more than 64 bits,
as decimal text (numpy's random generators have such in their states). Reading runs no code of
the file's (no pickle), and what is cut short or changed is told from what is whole.
"""

import hashlib
from typing import Any

import msgspec

from rallypoint.errors import ParameterError
from rallypoint.worker.reduction import numpy_or_error

MAGIC = b"rallypoint-state 1\n"
_HEAD_BYTES = len(MAGIC) + hashlib.sha256().digest_size
_ARRAY, _LONG = 1, 2
_PLAIN_INTS = range(-(2**63), 2**64)
_PLAIN_KINDS = "biufcSUmM"  # numpy's letters for dtypes that are bytes and nothing else


def pack(step: int, values: dict[str, Any]) -> bytes:
    """Return the bytes of a state. Raises ParameterError for what cannot be kept."""
    try:
        body = msgspec.msgpack.encode([step, _with_long(values)], enc_hook=_encode)
    except (NotImplementedError, OverflowError, TypeError, msgspec.MsgspecError) as error:
        raise ParameterError(
            f"this state cannot be saved: {error}; allowed are numbers, texts, bytes, None, "
            "numpy arrays, and lists and dicts of these"
        ) from error
    return MAGIC + hashlib.sha256(body).digest() + body


def checksum(content: bytes) -> bytes:
    """Return the checksum that a state's bytes carry."""
    return content[len(MAGIC) : _HEAD_BYTES]


def unpack(content: bytes) -> tuple[int, dict[str, Any]] | None:
    """Return (step, values), or None if the content is not whole."""
    body = content[_HEAD_BYTES:]
    if content[:_HEAD_BYTES] != MAGIC + hashlib.sha256(body).digest():
        return None
    step, values = msgspec.msgpack.decode(body, type=tuple[int, dict[str, Any]], ext_hook=_decode)
    return step, values


def _with_long(value: Any) -> Any:
    """Return the value with its long integers as extensions, which msgspec cannot do itself."""
    if isinstance(value, dict):
        return {name: _with_long(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_with_long(each) for each in value]
    if type(value) is int and value not in _PLAIN_INTS:
        return msgspec.msgpack.Ext(_LONG, str(value).encode())
    return value


def _encode(value: Any) -> Any:
    np = numpy_or_error(f"saving a {type(value).__name__}")
    if isinstance(value, np.generic):
        return value.item()
    if not isinstance(value, np.ndarray):
        raise NotImplementedError(f"it holds a {type(value).__module__}.{type(value).__qualname__}")
    if value.dtype.kind not in _PLAIN_KINDS:
        raise NotImplementedError(f"it holds an array of dtype {value.dtype}")
    array = [value.dtype.str, value.shape, value.tobytes()]
    return msgspec.msgpack.Ext(_ARRAY, msgspec.msgpack.encode(array))


def _decode(code: int, data: memoryview) -> Any:
    if code == _LONG:
        return int(bytes(data))
    if code != _ARRAY:
        raise ParameterError(f"this state was saved by a newer version (extension {code})")
    kind = tuple[str, tuple[int, ...], bytes]
    dtype, shape, content = msgspec.msgpack.decode(data, type=kind)
    np = numpy_or_error("restoring an array")
    return np.frombuffer(content, dtype=dtype).reshape(shape).copy()
