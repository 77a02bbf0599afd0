"""What a server stores: its runs and their stores as entries of a journal, and back.

    format                          the version of this table
    run/<run>                       the core's state (core/state.py)
    space/<run>                     how many changes the store's keys have seen
    key/<run>/<key>                 a value, or the head of a queue
    item/<run>/<number>/<key>       one value of a queue, so that a push writes no more than it
    client/<run>/<client, hex>      a client's record: the answers to its last calls

Run ids are quoted, so that `/` ends them; keys come last and stay as they are. A commit writes
only what has changed; a queue's values by their numbers (store/table.py).

Not stored: connections, leases and running timers (they start again), waiting calls and open
groups (their callers have no answer yet, and ask again), and acknowledged answers.

Nothing is guessed when it is read back: an entry of another kind, or one that does not decode,
ends the start with its name.
"""

from collections import defaultdict, deque
from collections.abc import Mapping
from typing import TypeVar
from urllib.parse import quote, unquote

import msgspec

from rallypoint.core.state import RunState, decode_state, encode_state
from rallypoint.errors import JournalCorruptError, RendezvousStateError
from rallypoint.server.journal.group_commit import GroupCommit
from rallypoint.server.runs import RunHost
from rallypoint.server.store_host import ClientRecord, StoreHost

FORMAT_NAME = "format"
FORMAT = b"rallypoint server 1"

Changes = dict[str, bytes | None]
T = TypeVar("T")


class _Entry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of what is stored."""


class Value(_Entry, frozen=True, tag=1):
    """A key's value."""

    version: int
    value: bytes


class Head(_Entry, frozen=True, tag=2):
    """A queue: its values have the numbers from `first` to before `end`."""

    version: int
    first: int
    end: int


class Kept(_Entry, frozen=True):
    """A client: number of its record and the epoch that made it, its answers by call."""

    since: int
    record: int
    results: dict[int, bytes]


_encode = msgspec.msgpack.Encoder().encode
_key_decoder = msgspec.msgpack.Decoder(Value | Head)
_kept_decoder = msgspec.msgpack.Decoder(Kept)
_count_decoder = msgspec.msgpack.Decoder(int)


class RunRecords:
    """The entry of a run; a `group_commit.ChangeSource`.

    Args:
        host: the run's host.
    """

    def __init__(self, host: RunHost) -> None:
        self._host = host
        self._name = f"run/{quote(host.state.run_id, safe='')}"

    def unsaved(self) -> Changes:
        return {self._name: encode_state(self._host.state)}

    def gone(self) -> Changes:
        """Return the entries to delete with the run."""
        return {self._name: None}


class StoreRecords:
    """The entries of a run's store; a `group_commit.ChangeSource`.

    Args:
        run_id: the run.
        store: its store.
        group_commit: commits the changes.
    """

    def __init__(self, run_id: str, store: StoreHost, group_commit: GroupCommit) -> None:
        self._store = store
        self._group_commit = group_commit
        name = quote(run_id, safe="")
        self._count_name = f"space/{name}"
        self._keys = f"key/{name}/"
        self._items = f"item/{name}/"
        self._clients = f"client/{name}/"
        self._queues: dict[str, tuple[int, int]] = {}  # numbers of the values that are stored
        self._count = 0  # of the changes that are stored
        self.clients: dict[bytes, None] = {}  # whose records have changed
        store.keys.unsaved = {}

    @property
    def trouble(self) -> str:
        return self._group_commit.trouble

    def mark(self) -> None:
        self._group_commit.mark(self)

    def unsaved(self) -> Changes:
        store, changes = self._store, Changes()
        keys, store.keys.unsaved = store.keys.unsaved or {}, {}
        for key in keys:
            self._key(key, changes)
        clients, self.clients = self.clients, {}
        for client_id in clients:
            changes[f"{self._clients}{client_id.hex()}"] = _kept(store.clients.get(client_id))
        if store.keys.changes != self._count:
            self._count = store.keys.changes
            changes[self._count_name] = _encode(self._count)
        return changes

    def _key(self, key: str, changes: Changes) -> None:
        found = self._store.keys.entry(key)
        stored = self._queues.pop(key, (0, 0))
        left = range(stored[1], stored[1])  # numbers of the values that stay
        if found is None:
            changes[self._keys + key] = None
        elif isinstance(found[1], bytes):
            changes[self._keys + key] = _encode(Value(found[0], found[1]))
        else:
            left = self._queue(key, found[0], found[1], found[2], stored[1], changes)
        for number in range(stored[0], min(stored[1], left.start)):
            changes[f"{self._items}{number}/{key}"] = None

    def _queue(
        self,
        key: str,
        version: int,
        values: deque[bytes],
        first: int,
        stored: int,
        changes: Changes,
    ) -> range:
        """Add a queue's changes; its values before number `stored` are written already."""
        end = first + len(values)
        changes[self._keys + key] = _encode(Head(version, first, end))
        unwritten = range(end - 1, max(stored, first) - 1, -1)
        for number, value in zip(unwritten, reversed(values), strict=False):
            changes[f"{self._items}{number}/{key}"] = value
        self._queues[key] = (first, end)
        return range(first, end)

    def read_back(self, stored: "StoredStore") -> None:
        """Learn what is stored already."""
        self._count = stored.changes
        for key, (_version, value, first) in stored.keys.items():
            if not isinstance(value, bytes):
                self._queues[key] = (first, first + len(value))

    def gone(self) -> Changes:
        """Return the entries to delete with the store."""
        store, changes = self._store, Changes()
        changes[self._count_name] = None
        for key in {*store.keys.names(), *(store.keys.unsaved or ())}:
            changes[self._keys + key] = None
        for key, (low, high) in self._queues.items():
            changes |= {f"{self._items}{number}/{key}": None for number in range(low, high)}
        for client_id in {*store.clients, *self.clients}:
            changes[f"{self._clients}{client_id.hex()}"] = None
        return changes


class OtherRecords:
    """Single entries: the format, and deletions of forgotten runs and stores."""

    def __init__(self) -> None:
        self._changes: Changes = {}

    def add(self, changes: Mapping[str, bytes | None]) -> None:
        """Write these entries with the next commit."""
        self._changes |= changes

    def unsaved(self) -> Changes:
        changes, self._changes = self._changes, {}
        return changes


def _kept(client: ClientRecord | None) -> bytes | None:
    return None if client is None else _encode(Kept(client.since, client.record, client.results))


# -- reading back -----------------------------------------------------------------------------


class StoredStore:
    """What is stored of a run's store."""

    def __init__(self) -> None:
        self.changes = 0
        self.keys: dict[str, tuple[int, bytes | deque[bytes], int]] = {}
        self.clients: dict[bytes, Kept] = {}


class Stored:
    """What a server finds in its journal.

    Args:
        where: the journal, for people.
        entries: everything in it.

    Raises JournalCorruptError for an entry that cannot be used.
    """

    def __init__(self, where: str, entries: Mapping[str, bytes]) -> None:
        self._where = where
        self.is_new = not entries
        self.runs: dict[str, RunState] = {}
        self.stores: defaultdict[str, StoredStore] = defaultdict(StoredStore)
        if entries and entries.get(FORMAT_NAME) != FORMAT:
            raise JournalCorruptError(
                f"{where}: its format is {entries.get(FORMAT_NAME, b'not given')!r}, and this "
                f"version of rallypoint knows {FORMAT!r}: use the version that wrote it, or "
                "another place"
            )
        items: defaultdict[tuple[str, str], dict[int, bytes]] = defaultdict(dict)
        heads: list[tuple[str, str, str, Head]] = []
        for name, value in entries.items():
            kind, _, rest = name.partition("/")
            quoted, _, last = rest.partition("/")
            run_id = unquote(quoted)
            match kind:
                case "run":
                    self.runs[run_id] = self._state(name, run_id, value)
                case "space":
                    self.stores[run_id].changes = self._decoded(name, _count_decoder, value)
                case "key":
                    found = self._decoded(name, _key_decoder, value)
                    if isinstance(found, Head):
                        heads.append((name, run_id, last, found))
                    else:
                        self.stores[run_id].keys[last] = (found.version, found.value, 0)
                case "item":
                    number, _, key = last.partition("/")
                    items[run_id, key][self._number(name, number)] = value
                case "client":
                    kept = self._decoded(name, _kept_decoder, value)
                    self.stores[run_id].clients[self._bytes(name, last)] = kept
                case _ if name != FORMAT_NAME:
                    raise self._unfit(name, "no entry of that kind is known")
        for name, run_id, key, head in heads:
            numbered = items.pop((run_id, key), {})
            if sorted(numbered) != list(range(head.first, head.end)):
                raise self._unfit(name, f"{len(numbered)} values are there of {head}")
            values = deque(numbered[number] for number in sorted(numbered))
            self.stores[run_id].keys[key] = (head.version, values, head.first)
        if items:
            (run_id, key), _ = items.popitem()
            raise self._unfit(f"key/{run_id}/{key}", "values of a queue without their head")

    def _state(self, name: str, run_id: str, value: bytes) -> RunState:
        try:
            state = decode_state(value)
        except RendezvousStateError as error:
            raise self._unfit(name, str(error)) from error
        if state.run_id != run_id:
            raise self._unfit(name, f"it holds the state of run {state.run_id!r}")
        return state

    def _decoded(self, name: str, decoder: "msgspec.msgpack.Decoder[T]", value: bytes) -> T:
        try:
            return decoder.decode(value)
        except msgspec.DecodeError as error:
            raise self._unfit(name, str(error)) from error

    def _number(self, name: str, text: str) -> int:
        if not text.isdecimal():
            raise self._unfit(name, f"{text!r} is no number")
        return int(text)

    def _bytes(self, name: str, text: str) -> bytes:
        try:
            return bytes.fromhex(text)
        except ValueError as error:
            raise self._unfit(name, str(error)) from error

    def _unfit(self, name: str, seen: str) -> JournalCorruptError:
        run_id = unquote(name.partition("/")[2].partition("/")[0])
        return JournalCorruptError(
            f"{self._where}: the entry {name!r} of run {run_id!r} cannot be used: {seen}; put "
            "back a copy, or start with another place (its runs must then be started again)"
        )
