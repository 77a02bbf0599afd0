"""Where states are kept: a folder, or the run's store. One writer each.

In both, a reader sees a state whole or not at all, and the newest few are kept, so that one
which turns out to be damaged costs a few steps and not the run.

A writer of an earlier round may still be at it (its machine stood still for a while, and was
given up): it can neither replace nor remove what is newer than its own.
"""

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
from rallypoint.worker.snapshot import unpack

logger = logging.getLogger("rallypoint")

PART_BYTES = 8 * 1024 * 1024  # far below a frame
_NAME = re.compile(r"step-(\d+)\.state")


class Checkpoint(msgspec.Struct, frozen=True):
    """A whole state that was found: its step, its values, and the bytes that it was made of."""

    step: int
    values: dict[str, Any]
    content: bytes


class CheckpointStorage(ABC):
    """Where the states of a run are kept."""

    @abstractmethod
    def newest(self) -> Checkpoint | None:
        """Return the newest state that is whole, None if there is none."""

    @abstractmethod
    def put(self, step: int, content: bytes) -> None:
        """Keep a state, and let go of all that are older but the newest few."""

    def clear(self) -> None:  # noqa: B027 - not every storage has something to clear away
        """Take away what a writer that was killed has left; while nobody writes."""


class FolderStorage(CheckpointStorage):
    """A folder with one file a step.

    Args:
        path: of the folder; it is made when it is needed.
        keep: how many files stay.
    """

    def __init__(self, path: Path, keep: int) -> None:
        self.path = path
        self.keep = keep

    def newest(self) -> Checkpoint | None:
        for _step, path in sorted(self._files(), reverse=True):
            content = path.read_bytes()
            read = unpack(content)
            if read is not None:
                return Checkpoint(*read, content)
            logger.warning("%s is torn or damaged; the one before it is taken", path)
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
    """Make the names in a folder outlive a power cut."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


class _Entry(msgspec.Struct, frozen=True, array_like=True):
    """One state in the store: its step, and the keys of its parts."""

    step: int
    keys: tuple[str, ...]


class StoreStorage(CheckpointStorage):
    """The run's store: for states that are small enough to live with the server.

    Args:
        store: of the run, not of the round.
        name: tells the states of one run apart.
        writer: unique to the round, so that no two write the same keys.
        keep: how many states stay.
        limit_bytes: of one state.
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
            read = unpack(content)
            if read is not None:
                return Checkpoint(*read, content)
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
    """Write content in parts that fit; return their keys."""
    keys = part_keys(prefix, len(content))
    for number, key in enumerate(keys):
        store.set(key, content[number * PART_BYTES : (number + 1) * PART_BYTES])
    return keys


def part_keys(prefix: str, size: int) -> tuple[str, ...]:
    """Return the keys of the parts of so many bytes."""
    return tuple(f"{prefix}/{number}" for number in range(-(-size // PART_BYTES)))


def check_size(size: int, limit_bytes: int) -> None:
    """Raise ParameterError if a state is too large to go through the store."""
    if size > limit_bytes:
        raise ParameterError(
            f"the state has {size:,} bytes, and at most {limit_bytes:,} go through the run's "
            "store; give State a folder that all nodes share, or raise its limit_bytes"
        )
