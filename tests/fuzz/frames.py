"""Frames for fuzzing: valid ones with random values, and mutated ones.

The same seed gives the same frames. `Maker.value` reads the types of a body (msgspec.inspect) and
makes a value that decodes but is as unusual as the type allows: valid frames in wrong states, names
with control characters, numbers at their limits.
"""

import random
import typing
from typing import Any

import msgspec
from msgspec import inspect as types

from rallypoint.net import protocol as p
from rallypoint.rendezvous import wire

TEXTS = (
    "",
    "a",
    "run",
    "key",
    "k\u00e9y",
    "\x1b[31m",
    "a\nb",
    "\u202e",
    "x" * 300,
    "\U0001f600",
    "0",
)
NUMBERS = (0, 1, -1, 2, 7, 255, 65536, 2**31, 2**32, 2**63 - 1, -(2**63))
REALS = (0.0, 1.0, -1.0, 0.001, 1e9, 1e300, float("inf"), float("nan"), 30.0)
NODES = ("n0", "n1", "n2")
HELLO = {
    "version": p.PROTOCOL_VERSION,
    "nonce": b"n" * p.NONCE_BYTES,
}  # else it is refused
CLIENT_BODIES = typing.get_args(wire.ClientBody)
HANDSHAKE_BODIES = typing.get_args(wire.HandshakeBody)
_encode = msgspec.msgpack.encode


class Maker:
    """Makes values of types.

    Args:
        rng: source of randomness.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self._infos: dict[Any, types.Type] = {}

    def body(self, kinds: tuple[Any, ...] = CLIENT_BODIES) -> Any:
        """Return a body of one of the kinds."""
        return self.make(self.rng.choice(kinds))

    def make(self, kind: Any) -> Any:
        """Return a value of a type."""
        info = self._infos.get(kind)
        if info is None:
            info = self._infos[kind] = types.type_info(kind)
        return self.value(info)

    def value(self, info: types.Type) -> Any:
        """Return a value of a type as msgspec describes it."""
        rng = self.rng
        match info:
            case types.StructType(cls=cls, fields=fields):
                return cls(**{field.name: self._field(field) for field in fields})
            case types.UnionType(types=several):
                return self.value(rng.choice(several))
            case types.StrType():
                return rng.choice((*TEXTS, *NODES))
            case types.BytesType():
                return rng.choice((b"", b"1", b"x", b"\xff" * 16, rng.randbytes(rng.randrange(64))))
            case types.BoolType():
                return rng.random() < 0.5
            case types.IntType():
                return rng.choice(NUMBERS)
            case types.FloatType():
                return rng.choice(REALS)
            case types.EnumType(cls=cls):
                return rng.choice(list(cls))
            case types.ListType(item_type=item) | types.VarTupleType(item_type=item):
                return [self.value(item) for _ in range(rng.randrange(4))]
            case types.TupleType(item_types=items):
                return tuple(self.value(item) for item in items)
            case types.DictType(key_type=key, value_type=value):
                return {self.value(key): self.value(value) for _ in range(rng.randrange(3))}
        return None

    def _field(self, field: types.Field) -> Any:
        made = self.value(field.type)
        if field.name in ("min_nodes", "max_nodes", "size", "local_world_size"):
            return self.rng.choice((1, 1, 2, 3, made))  # otherwise nearly everything is refused
        if field.name in HELLO and self.rng.random() < 0.9:
            return HELLO[field.name]
        if field.name.endswith("_seconds") and self.rng.random() < 0.7:
            return self.rng.choice((0.0, 0.01, 15.0))
        return made

    def frame(self, usual: tuple[Any, ...] = CLIENT_BODIES) -> bytes:
        """Return a frame of a client, valid or broken, mostly of the usual kinds."""
        kinds = usual if self.rng.random() < 0.9 else HANDSHAKE_BODIES
        data = p.frame(self.body(kinds))
        return data if self.rng.random() < 0.7 else self.broken(data)

    def broken(self, data: bytes) -> bytes:
        """Return data with a few mutations."""
        rng, found = self.rng, bytearray(data)
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(found) + 1)
            kind = rng.randrange(5)
            if kind == 0 and found:
                found[at % len(found)] ^= 1 << rng.randrange(8)
            elif kind == 1:
                found[at:at] = rng.randbytes(rng.randrange(1, 9))
            elif kind == 2:
                del found[at : at + rng.randrange(1, 9)]
            elif kind == 3:
                found[at : at + 1] = rng.choice(
                    (b"\xc1", b"\xdf\xff\xff\xff\xff", b"\xc6\xff", b"\x91")
                )
            else:
                found[at:at] = found[: rng.randrange(1, 33)]
        return bytes(found)
