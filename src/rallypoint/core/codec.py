"""The state as bytes, and back. PURE.

msgpack with a version before it; decoding checks every type, and says what is wrong with
bytes that are no state of ours.
"""

import msgspec

from rallypoint.core.state import State
from rallypoint.errors import RendezvousStateError

FORMAT = b"rally\x01"

_encoder = msgspec.msgpack.Encoder(order="deterministic")
_decoder = msgspec.msgpack.Decoder(State)


def encode(state: State) -> bytes:
    """Return the state as bytes; equal states give equal bytes."""
    return FORMAT + _encoder.encode(state)


def decode(data: bytes) -> State:
    """Return the state that `encode` made these bytes of (RendezvousStateError if none)."""
    if not data.startswith(FORMAT):
        raise RendezvousStateError(
            f"stored state is not Rallypoint's, or of another version: it begins with "
            f"{data[:8]!r}, expected {FORMAT!r}; use another run id or key, or remove it"
        )
    try:
        return _decoder.decode(data[len(FORMAT) :])
    except msgspec.DecodeError as error:
        raise RendezvousStateError(
            f"stored state of {len(data)} bytes is damaged: {error}; "
            "use another run id or key, or remove it"
        ) from error
