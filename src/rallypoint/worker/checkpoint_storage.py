"""Checkpoints: their format, and the two places to store them, a folder or the run's store.

A checkpoint is msgpack with a checksum in front:

    "rallypoint-state 1\n"  SHA-256 of the rest (32 bytes)  msgpack of [step, values]

Values are numbers, str, bytes, None, lists and dicts of these, and numpy arrays. Two types are
msgpack extensions: 1 an array, [dtype, shape, bytes]; 2 an integer of more than 64 bits, as
decimal text (numpy's random generators contain such). Reading executes no code (no pickle), and
the checksum reveals a truncated or changed file.

Both places store a checkpoint atomically, and keep the newest few, so that a damaged one costs
a few steps and not the run. A writer of an earlier round may still be running (its machine hung,
and counts as lost): it can neither replace nor delete newer checkpoints.
"""

import hashlib
import logging
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from rallypoint.errors import ParameterError
from rallypoint.store.api import Store
from rallypoint.worker.reduction import numpy_or_error

logger = logging.getLogger("rallypoint")

MAGIC = b"rallypoint-state 1\n"
PART_BYTES = 8 * 1024 * 1024  # far below a frame's limit
_HEAD_BYTES = len(MAGIC) + hashlib.sha256().digest_size
_ARRAY, _LONG = 1, 2
_PLAIN_INTS = range(-(2**63), 2**64)
_PLAIN_KINDS = "biufcSUmM"  # numpy's kinds of dtypes without Python objects
_NAME = re.compile(r"step-(\d+)\.state")


class Checkpoint(msgspec.Struct, frozen=True):
    """A valid checkpoint: its step and values, and the bytes that contain them."""

    step: int
    values: dict[str, Any]
    content: bytes


def pack(step: int, values: dict[str, Any]) -> bytes:
    """Return the bytes of a checkpoint. Raises ParameterError for unsupported values."""
    try:
        body = msgspec.msgpack.encode([step, _with_long(values)], enc_hook=_encode)
    except (NotImplementedError, OverflowError, TypeError, msgspec.MsgspecError) as error:
        raise ParameterError(
            f"this state cannot be saved: {error}; supported are numbers, str, bytes, None, "
            "numpy arrays, and lists and dicts of these"
        ) from error
    return MAGIC + hashlib.sha256(body).digest() + body


def checksum(content: bytes) -> bytes:
    """Return the checksum in a checkpoint's bytes."""
    return content[len(MAGIC) : _HEAD_BYTES]


def unpack(content: bytes) -> Checkpoint | None:
    """Return the checkpoint in these bytes, None if they are damaged."""
    body = content[_HEAD_BYTES:]
    if content[:_HEAD_BYTES] != MAGIC + hashlib.sha256(body).digest():
        return None
    step, values = msgspec.msgpack.decode(body, type=tuple[int, dict[str, Any]], ext_hook=_decode)
    return Checkpoint(step, values, content)


def _with_long(value: Any) -> Any:
    """Return the value with long integers as extensions, since msgspec rejects them."""
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


class CheckpointStorage(ABC):
    """Where the checkpoints of a run are stored."""

    @abstractmethod
    def newest(self) -> Checkpoint | None:
        """Return the newest valid checkpoint, None if there is none."""

    @abstractmethod
    def put(self, step: int, content: bytes) -> None:
        """Store a checkpoint durably, and delete the oldest ones."""

    def clear(self) -> None:  # noqa: B027 - only folders contain partial files
        """Delete partial files of killed writers; no writer may be running."""


class FolderStorage(CheckpointStorage):
    """A folder with one file per step.

    Args:
        path: of the folder; made when needed.
        keep: number of files to keep.
    """

    def __init__(self, path: Path, keep: int) -> None:
        self.path = path
        self.keep = keep

    def newest(self) -> Checkpoint | None:
        for _step, path in sorted(self._files(), reverse=True):
            found = unpack(path.read_bytes())
            if found is not None:
                return found
            logger.warning("%s is truncated or damaged; using the one before it", path)
        return None

    def put(self, step: int, content: bytes) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        scratch = self.path / f".step-{step}.{os.getpid()}.tmp"
        with scratch.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(self.path / f"step-{step:010d}.state")
        _sync(self.path)
        older = sorted((found for found in self._files() if found[0] <= step), reverse=True)
        for _step, path in older[self.keep :]:
            path.unlink(missing_ok=True)

    def clear(self) -> None:
        for path in self.path.glob(".step-*.tmp"):
            path.unlink(missing_ok=True)

    def _files(self) -> Iterator[tuple[int, Path]]:
        if self.path.is_dir():
            for path in self.path.iterdir():
                if match := _NAME.fullmatch(path.name):
                    yield int(match[1]), path


def _sync(folder: Path) -> None:
    """Make the names in a folder durable."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


class _Entry(msgspec.Struct, frozen=True, array_like=True):
    """A checkpoint in the store: its step, and the keys of its parts."""

    step: int
    keys: tuple[str, ...]


class StoreStorage(CheckpointStorage):
    """The run's store, for small checkpoints.

    Args:
        store: of the run, not of the round.
        name: distinguishes several states of one run.
        writer: unique to the round, so that no two writers write the same keys.
        keep: number of checkpoints to keep.
        limit_bytes: size of the largest checkpoint.
    """

    def __init__(self, store: Store, name: str, writer: str, keep: int, limit_bytes: int) -> None:
        self._store = store
        self._key = f"state/{name}"
        self._writer = writer
        self._keep = keep
        self._limit_bytes = limit_bytes

    def newest(self) -> Checkpoint | None:
        for entry in _entries(self._store.get_nowait(self._key)):
            content = b"".join(self._store.get_nowait(key, b"") or b"" for key in entry.keys)
            found = unpack(content)
            if found is not None:
                return found
            logger.warning("the state of step %d in the store is damaged", entry.step)
        return None

    def put(self, step: int, content: bytes) -> None:
        """Raises ParameterError when the state is too large for the store."""
        check_size(len(content), self._limit_bytes)
        prefix = f"{self._key}/{self._writer}/{step}"
        keys = put_parts(self._store, prefix, content)
        swapped, written = False, self._store.get_nowait(self._key)
        while not swapped:
            others = [entry for entry in _entries(written) if entry.keys != keys]
            entries = sorted([_Entry(step, keys), *others], key=lambda e: e.step, reverse=True)
            kept = msgspec.msgpack.encode(tuple(entries[: self._keep]))
            swapped, written = self._store.compare_and_swap(self._key, written, kept)
        with self._store.pipeline() as pipe:
            for entry in entries[self._keep :]:
                for key in entry.keys:
                    pipe.delete_key(key)


def _entries(written: bytes | None) -> tuple[_Entry, ...]:
    return msgspec.msgpack.decode(written, type=tuple[_Entry, ...]) if written else ()


def put_parts(store: Store, prefix: str, content: bytes) -> tuple[str, ...]:
    """Store content in parts of `PART_BYTES`; return their keys."""
    keys = part_keys(prefix, len(content))
    for number, key in enumerate(keys):
        store.set(key, content[number * PART_BYTES : (number + 1) * PART_BYTES])
    return keys


def part_keys(prefix: str, size: int) -> tuple[str, ...]:
    """Return the keys of the parts of a content of `size` bytes."""
    return tuple(f"{prefix}/{number}" for number in range(-(-size // PART_BYTES)))


def check_size(size: int, limit_bytes: int) -> None:
    """Raise ParameterError if a checkpoint is too large for the store."""
    if size > limit_bytes:
        raise ParameterError(
            f"the state has {size:,} bytes, but the run's store takes at most {limit_bytes:,}; "
            "give State a folder that all nodes share, or raise its limit_bytes"
        )
