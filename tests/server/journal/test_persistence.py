"""A server that continues where another one ended, whenever that was."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.server.fakes import SETTINGS
from tests.server.lives import HeldConnection, HeldPeer, Life

from rallypoint.core.events import Close, Finish, Join, Leave, RoundOpened, RunClosed
from rallypoint.core.state import Closed, Gathering, Node, Sealed, find
from rallypoint.deadline import Deadline
from rallypoint.errors import (
    JournalCorruptError,
    JournalError,
    JournalFullError,
    JournalLostError,
    StoreConnectionError,
    StoreError,
    StoreLimitError,
)
from rallypoint.net import protocol as p
from rallypoint.net.connection import ConnectionConfig, open_connection
from rallypoint.net.listener import listen
from rallypoint.rendezvous import wire
from rallypoint.rendezvous.timing import absence_seconds
from rallypoint.rendezvous.view import Seated
from rallypoint.server import server as module
from rallypoint.server.journal.persistence import HELD_BYTES, Persistence
from rallypoint.server.journal.records import FORMAT, FORMAT_NAME
from rallypoint.server.options import Options
from rallypoint.server.server import Server
from rallypoint.store.keyspace import Keyspace
from rallypoint.store.tcp import TCPStore
from rallypoint.testing.fakes import MemoryJournal, Shelf

# -- the store: whatever was told is so, and each call takes effect once ------------------------

KEYS = st.sampled_from(["a", "b/c", "q", "\0"])
VALUES = st.sampled_from([b"", b"1", b"22", b"x" * 300])
PLAIN = st.one_of(
    st.builds(p.Set, KEYS, VALUES),
    st.builds(p.Add, KEYS, st.integers(-2, 2)),
    st.builds(p.Append, KEYS, VALUES),
    st.builds(p.Delete, KEYS),
    st.builds(p.Peek, KEYS),
    st.builds(p.CompareSwap, KEYS, st.none() | VALUES, VALUES),
    st.builds(p.CompareSet, KEYS, VALUES, VALUES),
    st.builds(p.MultiSet, st.lists(st.tuples(KEYS, VALUES), max_size=3)),
    st.builds(p.QueuePush, KEYS, VALUES),
    st.builds(p.QueuePush, KEYS, VALUES),
)
CALLS = (
    PLAIN
    | st.builds(p.QueuePop, KEYS, st.just(0.0))
    | st.builds(p.Pipeline, st.lists(PLAIN, max_size=3))
)
CLIENTS = (b"one", b"two")
STEPS = st.lists(
    st.tuples(st.sampled_from(CLIENTS), CALLS)
    | st.sampled_from(["turn", "store", "tell", "crash", "store and crash"]),
    max_size=40,
)


class Story:
    """Clients that call a server, which crashes; they send again what was not answered."""

    def __init__(self) -> None:
        self.shelf, self.model = Shelf(), Keyspace()
        self.calls: list[tuple[bytes, int, Any, bool]] = []  # client, id, request, must it fail
        self.results: dict[int, Any] = {}  # what each must give
        self.before: dict[int, Any] = {}  # answers that came from servers that were
        self.given_up: set[int] = set()
        self.life, self.peers = Life(self.shelf), dict[bytes, HeldPeer]()
        for client in CLIENTS:
            assert not self._attach(client)
        self.life.settle()
        self.records = {client: self._store().record(client) for client in CLIENTS}

    def _store(self) -> Any:
        return self.life.server.store("run")

    def _attach(self, client: bytes) -> bool:
        self.peers[client] = HeldPeer(self.life)
        known: bool = self._store().attach(client, self.peers[client])
        return known

    def call(self, client: bytes, request: Any) -> None:
        """Call, and note what a store that never crashes answers."""
        failed = False
        try:
            result = self.model.execute(request, "m")
            self.model.completed()
        except StoreError as error:
            result, failed = str(error), True
        number = len(self.calls) + 1
        self.calls.append((client, number, request, failed))
        self.results[number] = result
        self._send(client, number, request)

    def _send(self, client: bytes, number: int, request: Any) -> None:
        low = min(
            (n for c, n, _, _ in self.calls if c == client and n not in self._got()), default=1
        )
        self._store().call(client, p.Call(number, low, request))

    def _got(self) -> dict[int, Any]:
        return {
            **self.before,
            **{n: b for peer in self.peers.values() for n, b in peer.got.items()},
        }

    def step(self, what: str) -> None:
        """Let the batch begin, be stored, or be told; or crash."""
        if what == "turn":
            self.life.loop.turn()
        elif what == "tell":
            self.life.settle()
        else:
            if "store" in what and (done := self.life.pen.store()) and "crash" not in what:
                done(None)
            if "crash" in what:
                self.crash()

    def crash(self) -> None:
        """Lose what is not on the shelf; come back, and send again what was not answered."""
        self.before = self._got()
        self.life = Life(self.shelf)
        for client in CLIENTS:
            assert self._attach(client)
            assert self._store().record(client) == self.records[client]
        for client, number, request, failed in self.calls:
            if number in self.before:
                continue
            if failed or isinstance(request, p.REPEATABLE):
                self.given_up.add(number)  # without an effect: asked later, it may answer anew
            else:
                self._send(client, number, request)

    def check(self) -> None:
        """All is as if nothing had happened."""
        self.life.settle()
        got = self._got()
        for _client, number, request, failed in self.calls:
            if number not in self.given_up:
                body, expected = got[number], self.results[number]
                given = body.text if failed else _plain(body.result)
                assert given == _plain(expected), request
        assert content(self._store().keys) == content(self.model)
        self.life = Life(self.shelf)
        assert content(self._store().keys) == content(self.model)


def _plain(result: Any) -> Any:
    return [_plain(each) for each in result] if isinstance(result, list | tuple) else result


def content(keys: Keyspace) -> Any:
    """Return all that is in a store, but the memory of what was deleted."""
    found = keys.snapshot()
    return found["change"], sorted(found["values"]), sorted(found["queues"]), keys.stored_bytes


@given(STEPS)
@settings(max_examples=300, deadline=None)
def test_crash_at_any_moment_changes_nothing(steps: list[Any]) -> None:
    story = Story()
    for step in steps:
        if isinstance(step, str):
            story.step(step)
        else:
            story.call(*step)
    story.check()


# -- what waits, and what cannot be stored ------------------------------------------------------


class Client:
    """One client of a life's store."""

    def __init__(self, life: Life, name: bytes = b"c") -> None:
        self.store = life.server.store("run") or pytest.fail("no store")
        self.name, self.peer = name, HeldPeer(life)
        self.known = self.store.attach(name, self.peer)

    def call(self, number: int, request: p.StoreRequest) -> Any:
        """Call; return the answer, None if there is none yet."""
        self.store.call(self.name, p.Call(number, 1, request))
        return self.peer.got.get(number)


def test_blocked_calls_go_to_the_next_server() -> None:
    shelf = Shelf()
    first = Life(shelf)
    waits: list[tuple[bytes, p.StoreRequest, Any]] = [
        (b"get", p.Get("late", 60.0), b"v"),
        (b"pop", p.QueuePop("q", 60.0), b"job"),
        (b"one", p.Gather("b:x", 2, 0, b"", False, 60.0), None),
        (b"two", p.Gather("b:x", 2, 1, b"", False, 60.0), None),
    ]
    for name, request, _ in waits[:3]:
        assert Client(first, name).call(1, request) is None
    first.settle()
    second = Life(shelf)
    clients = {name: Client(second, name) for name, _, _ in waits}
    assert [client.known for client in clients.values()] == [True, True, True, False]
    for name, request, _ in waits:
        assert clients[name].call(1, request) is None
    helper = Client(second, b"helper")
    helper.call(1, p.Set("late", b"v"))
    helper.call(2, p.QueuePush("q", b"job"))
    second.settle()
    assert {n: c.peer.got[1] for n, c in clients.items()} == {n: p.Reply(1, r) for n, _, r in waits}
    third = Life(shelf)  # the pop and the barrier were answered, and the answers got lost
    again = {name: Client(third, name) for name, _, _ in waits}
    for name, request, _ in waits:
        again[name].call(1, request)
    third.settle()
    assert {n: c.peer.got[1] for n, c in again.items()} == {n: p.Reply(1, r) for n, _, r in waits}


def test_restart_repeats_no_watch_result() -> None:
    shelf = Shelf()
    first = Life(shelf)
    client = Client(first)
    client.call(1, p.Set("k", b"1"))
    client.call(2, p.Watch("k", 0, 60.0))
    client.call(3, p.Set("gone", b"1"))
    client.call(4, p.Delete("gone"))
    first.settle()
    version, _ = client.peer.got[2].result  # type: ignore[union-attr]
    second = Life(shelf)
    client = Client(second)
    assert client.call(5, p.Watch("k", version, 60.0)) is None
    assert client.call(6, p.Set("k", b"2")) is None
    second.settle()
    assert client.peer.got[5] == p.Reply(5, [version + 3, b"2"])


def test_forgotten_client_gets_a_new_record() -> None:
    shelf = Shelf()
    first = Life(shelf)
    client = Client(first)
    record = client.store.record(b"c")
    first.settle()
    client.store.detach(b"c", client.peer, for_good=False)
    first.loop.now += 100
    client.store.forget(first.loop.now - 60)
    first.settle()
    second = Life(shelf)
    back = Client(second)
    assert not back.known
    assert back.store.record(b"c") != record


def test_client_that_says_goodbye_leaves_nothing() -> None:
    shelf = Shelf()
    life = Life(shelf)
    client = Client(life)
    client.call(1, p.Set("k", b"1"))
    client.store.detach(b"c", client.peer, for_good=True)
    life.settle()
    assert not [name for name in shelf.entries if name.startswith("client/")]
    assert "key/run/k" in shelf.entries


def under_way(life: Life) -> Any:
    """Return what is being written."""
    return life.pen.order and life.pen.order[0]


def test_full_journal_refuses_changes_and_loses_nothing_sent() -> None:
    shelf = Shelf()
    life = Life(shelf)
    client = Client(life)
    life.settle()
    assert client.call(1, p.Add("n", 1)) is None
    life.loop.turn()
    assert life.pen.order is not None
    (changes, done), life.pen.order = life.pen.order, None
    done(JournalFullError("directory /data has no room (0.1 MiB free)"))
    assert client.call(2, p.Add("n", 1)) is None
    (refusal,) = client.peer.at_once
    assert refusal == p.Failure(2, p.FAIL_LIMIT, "directory /data has no room (0.1 MiB free)")
    assert client.call(3, p.Peek("n")) is None  # it would tell of what is not stored
    status = life.server.status().durable
    assert status is not None
    assert "no room" in status.trouble
    life.loop.advance(1.1)
    assert under_way(life) == changes
    life.settle()
    assert client.peer.got == {1: p.Reply(1, 1), 3: p.Reply(3, b"1")}
    client.call(4, p.Add("n", 1))
    life.settle()
    assert client.peer.got[4] == p.Reply(4, 2)


def test_forgotten_runs_and_stores_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = Shelf()
    life = Life(shelf)
    client = Client(life)
    client.call(1, p.Set("k", b"1"))
    for number in range(3):
        client.call(2 + number, p.QueuePush("q", b"%d" % number))
    life.server.run("run").ask(HeldConnection(life), wire.Ask(1, Close("me", "over")))
    life.settle()
    assert {name.partition("/")[0] for name in shelf.entries} == {
        "format",
        "run",
        "space",
        "key",
        "item",
        "client",
    }
    monkeypatch.setattr("rallypoint.server.server.ENDED_RUNS_KEPT", 0)
    life.server._forget_ended_runs()
    life.settle()
    assert shelf.entries == {FORMAT_NAME: FORMAT}
    client = Client(life)
    client.call(1, p.Set("k", b"2"))
    life.settle()
    assert Life(shelf).server.stores["run"].keys.entry("k") == (1, b"2", 0)


# -- runs -----------------------------------------------------------------------------------------


def join(life: Life, node: str, incarnation: int = 0, after: int = 0) -> HeldConnection:
    session = HeldConnection(life)
    who = Node(id=node, address="10.0.0.1", port=7, host=node)
    event = Join(who, SETTINGS, incarnation, after)
    life.server.run("run").ask(session, wire.Ask(0, event))
    return session


def sealed(shelf: Shelf, *nodes: str) -> dict[str, Seated]:
    """Bring nodes into a sealed round, and end that server; return what they were told."""
    life = Life(shelf)
    sessions = {node: join(life, node) for node in nodes}
    life.settle()
    life.loop.advance(31)
    life.settle()
    return {node: session.sent[-1] for node, session in sessions.items()}


def resume(life: Life, node: str) -> HeldConnection:
    session = HeldConnection(life)
    life.server.run("run").resume(session, wire.Resume(node, 1, 1))
    return session


def test_members_resume_in_the_same_round_after_a_restart() -> None:
    shelf = Shelf()
    seats = sealed(shelf, "a", "b", "c")
    assert {type(seat) for seat in seats.values()} == {Seated}
    life = Life(shelf)
    life.settle()
    run = life.server.run("run")
    record = run.state.phase.record  # type: ignore[union-attr]
    away = absence_seconds(SETTINGS.lease_seconds)
    life.loop.advance(away - 1)  # far more than the grace
    assert set(run.state.participants) == {"a", "b", "c"}
    sessions = [resume(life, node) for node in ("a", "b")]
    life.settle()
    assert not [m for s in sessions for m in s.sent if isinstance(m, RoundOpened)]
    assert run.state.phase == Sealed(record)
    life.loop.advance(2)  # c does not come
    life.settle()
    assert isinstance(run.state.phase, Gathering)
    assert find(run.state, "c") is None
    assert all(isinstance(session.sent[-1], RoundOpened) for session in sessions)


def test_rejoin_limit_allows_for_the_time_to_reconnect() -> None:
    shelf = Shelf()
    sealed(shelf, "a", "b", "c")
    first = Life(shelf)
    for node in ("a", "b", "c"):
        resume(first, node)
    join(first, "a", 1, 1)  # a new round
    first.settle()
    second = Life(shelf)
    run = second.server.run("run")
    away = absence_seconds(SETTINGS.lease_seconds)
    second.loop.advance(away - 1)
    for node in ("a", "b", "c"):
        resume(second, node)
    second.loop.advance(SETTINGS.rejoin_timeout_seconds)
    assert set(run.state.participants) == {"b", "c"}
    second.loop.advance(2)
    assert run.state.participants == {}


def test_no_node_is_lost_while_commits_are_delayed() -> None:
    shelf = Shelf()
    sealed(shelf, "a", "b", "c")
    life = Life(shelf)
    for node in ("a", "b", "c"):
        resume(life, node)
    life.settle()
    join(life, "a", 1, 1)
    run = life.server.run("run")
    life.server._swept_at = life.loop.now
    for _ in range(200):  # the disk takes its time: for longer than rejoin_timeout and the lease
        life.loop.advance(0.5)
        life.server._sweep()
        life.server._sweeper.cancel()  # type: ignore[union-attr]
    assert set(run.state.participants) == {"b", "c"}
    assert all(session.heard_at > life.loop.now - 15 for session in run.connections.values())
    life.settle()
    life.loop.advance(SETTINGS.rejoin_timeout_seconds + 1)
    assert run.state.participants == {}


def test_join_survives_a_takeover() -> None:
    shelf = Shelf()
    first = Life(shelf)
    join(first, "a")
    join(first, "b")
    first.settle()
    first.loop.advance(29)  # of the last call
    second = Life(shelf)
    sessions = [join(second, "a"), join(second, "b")]  # they ask again
    second.settle()
    second.loop.advance(29)
    assert not [s for session in sessions for s in session.sent if isinstance(s, Seated)]
    second.loop.advance(2)  # the last call began anew
    second.settle()
    assert all(isinstance(session.sent[-1], Seated) for session in sessions)


def test_stored_seat_that_was_not_sent_is_sent_after_a_restart() -> None:
    shelf = Shelf()
    first = Life(shelf)
    sessions = [join(first, "a"), join(first, "b")]
    first.settle()
    first.loop.advance(31)
    first.pen.store()  # and the power goes off
    assert not [s for session in sessions for s in session.sent if isinstance(s, Seated)]
    second = Life(shelf)
    again = [join(second, "a"), join(second, "b")]
    second.settle()
    assert all(isinstance(session.sent[-1], Seated) for session in again)


def test_closed_run_stays_closed_and_says_why() -> None:
    shelf = Shelf()
    sealed(shelf, "a", "b")
    life = Life(shelf)
    session = resume(life, "a")
    life.server.run("run").ask(session, wire.Ask(1, Close("ann", "enough", at="noon")))
    life.settle()
    later = Life(shelf)
    late = resume(later, "b")
    later.settle()
    (told,) = late.sent
    assert isinstance(told, RunClosed)
    assert (told.by, told.why, told.at) == ("ann", "enough", "noon")
    assert isinstance(later.server.run("run").state.phase, Closed)


def test_request_is_acknowledged_once_it_is_stored() -> None:
    shelf = Shelf()
    sealed(shelf, "a", "b", "c")
    life = Life(shelf)
    session = resume(life, "a")
    life.settle()
    session.take()
    run = life.server.run("run")
    events: list[Finish | Leave] = [Finish("a", 1, 1), Leave("a", "bye")]
    for number, event in enumerate(events, 1):
        run.ask(session, wire.Ask(number, event))
        life.loop.turn()
        assert session.sent == []
        life.settle()
        assert wire.Done(number) in session.take()


def test_epoch_is_the_journals() -> None:
    shelf = Shelf()
    assert [Life(shelf).server.epoch for _ in range(3)] == [1, 2, 3]


def test_replaced_server_answers_nobody() -> None:
    shelf = Shelf()
    old = Life(shelf)
    client = Client(old)
    client.call(1, p.Set("k", b"1"))
    old.settle()
    new = Life(shelf)
    Client(new).call(2, p.Set("k", b"2"))
    new.settle()
    client.call(3, p.Peek("k"))  # nothing is unsaved, and the answer would be old all the same
    old.loop.turn()
    with pytest.raises(JournalLostError) as caught:
        old.pen.store()
    old.persistence.group_commit._fail(caught.value)
    assert 3 not in client.peer.got
    assert old.server._failure is caught.value


# -- over sockets -----------------------------------------------------------------------------


async def _served(shelf: Shelf, work: Any) -> None:
    sockets = listen("127.0.0.1", 0)
    port = sockets[0].getsockname()[1]
    journal = MemoryJournal(shelf)
    opened = journal.open(Deadline(1))
    server = Server(Options(), sockets)
    Persistence(server, journal, opened)
    await server.start()
    serving = asyncio.create_task(server.serve())
    try:
        await asyncio.to_thread(work, port, server)
    finally:
        server.stop()
        await serving


def test_ending_server_stores_everything_and_says_where() -> None:
    shelf = Shelf()

    def work(port: int, server: Server) -> None:
        link = open_connection(ConnectionConfig("127.0.0.1", port, "run"), Deadline(20))
        link.read_timeout(20)
        with closing(link):
            link.send(p.frame(p.Call(1, 1, p.Add("n", 2))))
            assert msgspec.msgpack.decode(link.receive()[0], type=p.Reply) == p.Reply(1, 2)
            server.loop.call_soon_threadsafe(server.stop)
            said = msgspec.msgpack.decode(link.receive()[0], type=p.Goodbye)
            with pytest.raises(StoreConnectionError, match="closed the connection"):
                link.receive()
        assert said.code == p.GOODBYE_SHUTDOWN
        assert "its runs are kept in the memory of this process" in said.reason

    asyncio.run(_served(shelf, work))
    assert shelf.entries["key/run/n"]

    def again(port: int, server: Server) -> None:
        with TCPStore("127.0.0.1", port, run="run", timeout=20) as store:
            assert store.add("n", 1) == 3

    asyncio.run(_served(shelf, again))


def test_client_with_many_held_answers_is_paused() -> None:
    hold = [True]

    class Slow(MemoryJournal):
        def commit(self, changes: Any, deadline: Deadline) -> None:
            if hold[0] and any(name.startswith("key/") for name in changes):
                raise JournalFullError("no room")
            super().commit(changes, deadline)

    async def main() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(32))
        sockets = listen("127.0.0.1", 0)
        port = sockets[0].getsockname()[1]
        journal = Slow(Shelf())
        server = Server(Options(), sockets)
        Persistence(server, journal, journal.open(Deadline(1)))
        await server.start()
        serving = asyncio.create_task(server.serve())
        store = await asyncio.to_thread(TCPStore, "127.0.0.1", port, timeout=20)
        setting = asyncio.create_task(asyncio.to_thread(store.set, "big", bytes(HELD_BYTES)))
        reads = [asyncio.to_thread(store.get, "big") for _ in range(20)]
        reading = asyncio.gather(*reads)
        while not any(getattr(c, "_waits", False) for c in server.connections):
            await asyncio.sleep(0.01)
        other = await asyncio.to_thread(store.clone)
        with pytest.raises(StoreLimitError, match="no room"):
            await asyncio.to_thread(other.set, "k", b"")
        hold[0] = False
        await setting
        assert {len(value) for value in await reading} == {HELD_BYTES}
        assert await asyncio.to_thread(store.get, "big") == bytes(HELD_BYTES)
        await asyncio.to_thread(store.close)
        await asyncio.to_thread(other.close)
        server.stop()
        await serving

    asyncio.run(asyncio.wait_for(main(), 60))


def test_full_journal_is_reported_and_fails_the_shutdown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Full(MemoryJournal):
        def commit(self, changes: Any, deadline: Deadline) -> None:
            raise JournalFullError("directory /data has no room")

    monkeypatch.setattr(module, "STORE_SECONDS", 0.1)

    def look(port: int) -> str:
        with closing(
            open_connection(ConnectionConfig("127.0.0.1", port, "run"), Deadline(20))
        ) as link:
            link.sock.settimeout(20)
            link.send(p.frame(wire.Inquire(1, server=True)))
            answer = msgspec.msgpack.decode(link.receive()[0], type=wire.ServerBody)
            assert isinstance(answer, wire.Answer)
            assert answer.server is not None
            assert answer.server.durable is not None
            return answer.server.durable.trouble

    async def main() -> None:
        sockets = listen("127.0.0.1", 0)
        journal = Full(Shelf())
        server = Server(Options(), sockets)
        persistence = Persistence(
            server, journal, journal.open(Deadline(1))
        )  # its format is not stored yet
        await server.start()
        serving = asyncio.create_task(server.serve())
        while not persistence.group_commit.trouble:
            await asyncio.sleep(0.01)
        trouble = await asyncio.to_thread(look, sockets[0].getsockname()[1])
        assert trouble == "directory /data has no room"
        server.stop()
        with pytest.raises(JournalError, match=r"last changes are not stored.*has no room"):
            await serving

    asyncio.run(asyncio.wait_for(main(), 60))


def test_unusable_journal_ends_the_start() -> None:
    shelf = Shelf()
    Life(shelf).settle()
    shelf.entries["run/x"] = b"junk"
    with pytest.raises(JournalCorruptError, match="'run/x' of run 'x'"):
        Life(shelf)
