"""Every public error, raised by a real cause, says what, where, how long, who, and the fix."""

import os
import re
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import pytest
from tests.integration.cluster import Cluster
from tests.test_errors import own_classes

from rallypoint import errors
from rallypoint.deadline import Deadline
from rallypoint.net.addresses import free_port
from rallypoint.rendezvous.api import RendezvousParameters
from rallypoint.server.journal.sqlite import FILE_NAME, SQLiteJournal
from rallypoint.store.tcp import TCPStore

pytestmark = pytest.mark.integration
NOW = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"
LOOPBACK = "127.0.0.1"
FOLDER = rf"{re.escape(tempfile.gettempdir())}/\w+"


def parameter(_cluster: Cluster) -> None:
    RendezvousParameters("core", "h:1", "job", 3, 2)


def closed(cluster: Cluster) -> None:
    first = cluster.handler(1, 2, target_nodes=1)
    first.next_rendezvous()
    first.set_closed()
    cluster.handler(1, 2, target_nodes=1).next_rendezvous()


def timed_out(cluster: Cluster) -> None:
    cluster.handler(2, 2, join=0.3).next_rendezvous()


def unreachable(cluster: Cluster) -> None:
    port = free_port(LOOPBACK)
    cluster.handler(1, 1, endpoint=f"{LOOPBACK}:{port}", join=0.3).next_rendezvous()


def other_bounds(cluster: Cluster) -> None:
    cluster.handler(1, 2, target_nodes=1).next_rendezvous()
    cluster.handler(3, 4).next_rendezvous()


def not_needed(cluster: Cluster) -> None:
    worker, spare = cluster.handler(1, 1), cluster.handler(1, 1)
    worker.next_rendezvous()
    with ThreadPoolExecutor() as pool:
        joining = pool.submit(spare.next_rendezvous)
        cluster.wait_for("spare", 1)
        worker.finish()
        joining.result(20)


def store(cluster: Cluster, timeout: float = 5.0) -> TCPStore:
    return TCPStore(LOOPBACK, cluster.server.port, run=cluster.run_id, timeout=timeout)


def store_timed_out(cluster: Cluster) -> None:
    with closing(store(cluster)) as kept:
        kept.get("weights/7", 0.2)


def store_unreachable(_cluster: Cluster) -> None:
    TCPStore(LOOPBACK, free_port(LOOPBACK), timeout=0.3).set("a", b"b")


def not_known(cluster: Cluster) -> None:
    TCPStore(LOOPBACK, cluster.server.port, token=b"sesame", timeout=2).set("a", b"b")


def no_number(cluster: Cluster) -> None:
    with closing(store(cluster)) as kept:
        kept.set("epoch", b"three")
        kept.add("epoch", 1)


def too_long(cluster: Cluster) -> None:
    with closing(store(cluster)) as kept:
        kept.set("k" * 100_000, b"")


@contextmanager
def journal() -> Iterator[SQLiteJournal]:
    with tempfile.TemporaryDirectory() as folder, closing(SQLiteJournal(folder)) as kept:
        yield kept


def no_directory(_cluster: Cluster) -> None:
    with journal() as kept:
        (kept.directory / "file").touch()
        SQLiteJournal(kept.directory / "file" / "data").open(Deadline(5))


def in_use(_cluster: Cluster) -> None:
    with journal() as kept:
        kept.open(Deadline(5))
        SQLiteJournal(kept.directory).open(Deadline(5))


def no_room(_cluster: Cluster) -> None:
    """SQLite's own limit; for a full disk see tests/server/journal/test_sqlite.py."""
    with journal() as kept:
        kept.open(Deadline(5))
        assert kept._database is not None
        kept._database.execute("PRAGMA max_page_count=10")
        kept.commit({"a": bytes(1 << 20)}, Deadline(5))


def damaged(_cluster: Cluster) -> None:
    with journal() as kept:
        kept.open(Deadline(5))
        kept.commit({f"n{n}": bytes(1000) for n in range(100)}, Deadline(5))
        kept.close()
        content = bytearray(kept.file.read_bytes())
        content[8192:40_000] = b"\xff" * (40_000 - 8192)
        kept.file.write_bytes(content)
        kept.open(Deadline(5))


# class -> what raises it, and patterns that its message must match
WORDS: dict[type[errors.RallypointError], tuple[Callable[[Cluster], None], tuple[str, ...]]] = {
    errors.ParameterError: (parameter, ("min_nodes", "max_nodes", "3", "2")),
    errors.RendezvousClosedError: (
        closed,
        (r"run 'run-\d+'", rf"closed at {NOW} by .* pid", "new_incarnation"),
    ),
    errors.RendezvousTimeoutError: (
        timed_out,
        (
            r"run 'run-\d+'",
            "join=0.3 s",
            rf"{LOOPBACK}:\d+",
            "1 of at least 2 nodes",
            "here: .*pid",
        ),
    ),
    errors.RendezvousConnectionError: (
        unreachable,
        (r"run 'run-\d+'", rf"{LOOPBACK}:\d+", r"after \d\.\d s", "refused", "addresses are",
         "rallypoint serve", "join=0.3 s"),
    ),
    errors.RendezvousStateError: (
        other_bounds,
        (r"run 'run-\d+'", "3", "4", "1", "2", "opened with min_nodes=1, max_nodes=2 by .* pid"),
    ),
    errors.RendezvousGracefulExitError: (not_needed, (r"run 'run-\d+'", "finished", "not needed")),
    errors.JournalError: (
        no_directory,
        (f"directory {FOLDER}/file/data", "Not a directory", "give one"),
    ),
    errors.JournalLostError: (
        in_use,
        (f"directory {FOLDER}", rf"another server \(pid {os.getpid()}\)", "stop that one"),
    ),
    errors.JournalFullError: (
        no_room,
        (f"directory {FOLDER}", r"\d MiB free", "nothing can be stored", "make room"),
    ),
    errors.JournalCorruptError: (
        damaged,
        (f"{FOLDER}/{FILE_NAME}", "damaged", "put back a copy"),
    ),
    errors.StoreTimeoutError: (store_timed_out, ("weights/7", r"0\.2 s")),
    errors.StoreConnectionError: (store_unreachable, (rf"{LOOPBACK}:\d+", "refused", r"after \d")),
    errors.AuthenticationError: (not_known, (rf"{LOOPBACK}:\d+", "token", "RALLYPOINT_TOKEN")),
    errors.StoreValueError: (no_number, ("epoch", "three")),
    errors.StoreLimitError: (too_long, ("key", r"100000|100,000", "limit")),
}  # fmt: skip
ABSTRACT = {errors.RallypointError, errors.RendezvousError, errors.StoreError}
ELSEWHERE: dict[str, str] = {}  # class -> the test that raises it


def test_every_public_error_is_in_the_module() -> None:
    public = set(own_classes().values()) - ABSTRACT
    known = {kind for kind in public if kind in WORDS or kind.__name__ in ELSEWHERE}
    assert public == known, f"not provoked: {sorted(kind.__name__ for kind in public - known)}"


@pytest.mark.parametrize("kind", list(WORDS), ids=lambda kind: kind.__name__)
def test_error_messages_name_value_and_fix(kind: type[errors.RallypointError]) -> None:
    provoke, words = WORDS[kind]
    with Cluster() as cluster:
        with pytest.raises(kind) as failure:
            provoke(cluster)
        text = str(failure.value)
        public = (c for c in type(failure.value).__mro__ if c.__module__ == errors.__name__)
    assert next(public) is kind
    missing = [word for word in words if not re.search(word, text)]
    assert not missing, f"{text!r} does not say {missing}"
    assert "\n" not in text.strip(), "one line"
