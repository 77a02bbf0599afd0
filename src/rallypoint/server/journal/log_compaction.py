"""A journal as a log of segments: what is where, and which segments to compact. PURE.

Each commit is one segment with all its changes, written in one step. So a commit is whole or
absent, and costs one write whatever it holds. An entry is *live* in the segment that wrote it
last; in older ones it is dead. Compaction removes segments: those without live entries cost
nothing; the live entries of others are carried into the next commit.

A deletion is live, too, while another segment could bring the entry back: it is dropped once its
segment is the only one that names the entry.

Removed are: all dead segments; if there are too many segments, those with the least to carry (so
many small commits become few large ones, and each entry is carried a logarithmic number of
times); if more is dead than live, the segment with most of it.
"""

import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from rallypoint.errors import JournalCorruptError

Changes = Mapping[str, bytes | None]

MOST_SEGMENTS = 128
VICTIMS = 32  # removed in one commit: as many as one transaction of etcd takes, with room
CARRIED_BYTES = 1 << 20  # carried in one commit, unless one segment alone has more
SLACK_BYTES = 4 << 20  # may be dead in any case
PACKED_BYTES = 64 << 10  # of a segment; longer ones are compressed
ENTRY_BYTES = 16  # of an entry, beside its name and value
_PLAIN, _PACKED = b"rpl1", b"rpl1z"
_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(dict[str, bytes | None])


def pack(changes: Changes) -> bytes:
    """Return changes as a segment's bytes."""
    data = _encode(dict(changes))
    if len(data) < PACKED_BYTES:
        return _PLAIN + b":" + data
    return _PACKED + b":" + zlib.compress(data, 1)


def unpack(name: str, data: bytes) -> dict[str, bytes | None]:
    """Return a segment's changes (JournalCorruptError, with its name)."""
    form, _, body = data.partition(b":")
    try:
        if form == _PACKED:
            body = zlib.decompress(body)
        elif form != _PLAIN:
            raise JournalCorruptError(
                f"{name} begins with {data[:8]!r}: another program has written it, or a newer "
                "version of rallypoint"
            )
        return _decoder.decode(body)
    except (zlib.error, msgspec.DecodeError) as error:
        raise JournalCorruptError(f"{name} is damaged: {error}") from error


def size_of(name: str, value: bytes | None) -> int:
    """Return what an entry takes in a segment."""
    return len(name) + len(value or b"") + ENTRY_BYTES


@dataclass
class Segment:
    """What is known of a segment without its values.

    Args:
        names: the entries that it changed.
        total: bytes of all of them.
        live: bytes of the live ones.
    """

    names: frozenset[str]
    total: int
    live: int = 0


@dataclass
class Segments:
    """The segments of a journal, by number: the later, the larger."""

    known: dict[int, Segment] = field(default_factory=dict)
    _latest: dict[str, tuple[int, int, bool]] = field(default_factory=dict)
    _naming: Counter[str] = field(default_factory=Counter)  # segments that name an entry

    @property
    def next_number(self) -> int:
        """The number of the next segment."""
        return max(self.known, default=0) + 1

    def add(self, number: int, changes: Changes) -> None:
        """Add a segment that was written after all others."""
        segment = self.known[number] = Segment(frozenset(changes), 0)
        for name, value in changes.items():
            size = size_of(name, value)
            before = self._latest.get(name)
            if before is not None:
                self.known[before[0]].live -= before[1]
            self._latest[name] = (number, size, value is None)
            self._naming[name] += 1
            segment.total += size
            segment.live += size
        for name in changes:
            self._drop_deletion(name)

    def remove(self, numbers: Iterable[int]) -> None:
        """Remove segments whose live entries were written again."""
        for number in numbers:
            for name in self.known.pop(number).names:
                self._naming[name] -= 1
                self._drop_deletion(name)

    def _drop_deletion(self, name: str) -> None:
        """Drop a deletion that is not needed any more."""
        number, size, deleted = self._latest.get(name, (0, 0, False))
        if self._naming[name] > deleted:
            return
        if deleted and number in self.known:
            self.known[number].live -= size
            self._latest.pop(name)
        if not self._naming[name]:
            del self._naming[name]

    def victims(self) -> list[int]:
        """Return the segments that the next commit should remove."""
        dead = [number for number, segment in self.known.items() if not segment.live][:VICTIMS]
        rest = sorted(
            (number for number, segment in self.known.items() if segment.live),
            key=lambda number: self.known[number].live,
        )
        if len(rest) > MOST_SEGMENTS:
            return self._with_least(dead, rest)
        total = sum(self.known[number].total for number in rest)
        live = sum(self.known[number].live for number in rest)
        if rest and total - live > live + SLACK_BYTES and len(dead) < VICTIMS:
            dead.append(max(rest, key=lambda n: self.known[n].total - self.known[n].live))
        return dead

    def _with_least(self, chosen: list[int], rest: list[int]) -> list[int]:
        carried = 0
        for number in rest[: VICTIMS - len(chosen)]:
            carried += self.known[number].live
            if carried > CARRIED_BYTES and number != rest[0]:
                break
            chosen.append(number)
        return chosen

    def to_read(self, victims: Iterable[int]) -> list[int]:
        """Return those segments that have something to carry."""
        return [number for number in victims if self.known[number].live]

    def carried(self, number: int, found: Changes, batch: Changes) -> dict[str, bytes | None]:
        """Return the live entries of a segment that the batch does not change."""
        return {
            name: value
            for name, value in found.items()
            if name not in batch and self._latest.get(name, (0, 0, False))[0] == number
        }


def replayed(segments: Iterable[Changes]) -> dict[str, bytes]:
    """Return the entries after all segments, in their order."""
    entries: dict[str, bytes] = {}
    for changes in segments:
        for name, value in changes.items():
            if value is None:
                entries.pop(name, None)
            else:
                entries[name] = value
    return entries
