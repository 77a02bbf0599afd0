"""The conformance suite of the engine contract (`rallypoint.engines.contract`), as a class.

class TestMyEngine(EngineSuite):
    def make_engine(self):
        return MyEngine(...)      # no data yet; `clone` gives further clients
"""

import threading
from abc import ABC, abstractmethod

import pytest

from rallypoint.deadline import Deadline
from rallypoint.engines.contract import COMMIT_KEYS, LOOK_SECONDS, Engine, Entry, version_of
from rallypoint.errors import ParameterError, StoreConnectionError
from rallypoint.testing.store_handles import PATIENCE_SECONDS, SHORT_SECONDS, in_thread

LARGE_BYTES = 16 * 1024 * 1024
EXPIRY_SECONDS = 2.0
WOKEN_SECONDS = 0.8 * LOOK_SECONDS  # sooner than who looks again by himself
EXPIRY_MOST_SECONDS = 15.0
CLOSINGS = 10


class EngineSuite(ABC):
    """Conformance tests of an engine; a subclass says how to make one."""

    @abstractmethod
    def make_engine(self) -> Engine:
        """Return an engine without data."""

    @staticmethod
    def limit() -> Deadline:
        """Return a deadline for what takes milliseconds."""
        return Deadline(PATIENCE_SECONDS)

    def put(self, engine: Engine, seen: dict[str, Entry | None], **changes: bytes | None) -> int:
        """Commit what must be accepted; return its version."""
        commit = engine.commit(seen, changes, self.limit())
        assert commit.done
        assert commit.version > 0
        return commit.version

    def test_a_commit_is_read_by_all(self) -> None:
        """Several keys, one version, seen by another client; what is missing is left out."""
        engine = self.make_engine()
        version = self.put(engine, {"a": None, "b": None}, a=b"1", b=bytes(range(256)))
        found = engine.clone().read(["a", "missing", "b", "a"], self.limit())
        assert found == {"a": Entry(version, b"1"), "b": Entry(version, bytes(range(256)))}
        assert engine.read([], self.limit()) == {}

    def test_it_says_what_it_is(self) -> None:
        """One line for people, without a secret; of an engine that was never written to, too."""
        about = self.make_engine().about(self.limit())
        assert about.strip()
        assert len(about.splitlines()) == 1

    def test_a_commit_is_all_or_nothing(self) -> None:
        """One key that is not as expected, though not changed itself, refuses everything."""
        engine = self.make_engine()
        version = self.put(engine, {"leader": None}, leader=b"me")
        mine = Entry(version, b"me")
        self.put(engine.clone(), {"leader": mine}, leader=b"other")
        commit = engine.commit({"leader": mine, "x": None}, {"x": b"1"}, self.limit())
        assert not commit.done
        assert set(commit.present) == {"leader"}
        assert commit.present["leader"].value == b"other"
        assert engine.read(["x"], self.limit()) == {}

    def test_versions_grow_over_deletion(self) -> None:
        """No version comes twice; an old one, or none, is refused."""
        engine = self.make_engine()
        versions = []
        for _ in range(3):
            versions.append(self.put(engine, {"a": None}, a=b"same"))
            versions.append(self.put(engine, {"a": Entry(versions[-1], b"")}, a=None))
            old = engine.commit({"a": Entry(versions[0], b"same")}, {"a": b"x"}, self.limit())
            assert not old.done
            assert not old.present
        assert versions == sorted(set(versions))

    def test_a_change_must_be_expected(self) -> None:
        """Nobody writes what he has not looked at."""
        engine = self.make_engine()
        for expected, changes in (({}, {"a": b""}), ({"a": None}, {})):
            with pytest.raises(ParameterError):
                engine.commit(expected, changes, self.limit())

    def test_large_entries(self) -> None:
        """16 MiB, replaced by as much, then by little."""
        engine = self.make_engine()
        value, seen = bytes(range(256)) * (LARGE_BYTES // 256), None
        for turn in (value, value[::-1], b"small"):
            self.put(engine, {"a": seen}, a=turn)
            seen = engine.clone().read(["a"], self.limit())["a"]
            assert seen.value == turn
        refused = engine.commit({"a": None}, {"a": value}, self.limit())
        assert refused.present["a"].value == b"small"

    def test_many_keys(self) -> None:
        """`COMMIT_KEYS` at once, written, changed, refused and deleted."""
        engine = self.make_engine()
        keys = [f"many/{number:04d}" for number in range(COMMIT_KEYS)]
        self.put(engine, dict.fromkeys(keys), **dict.fromkeys(keys, b"1" * 100))
        found = engine.read(keys, self.limit())
        assert len(found) == COMMIT_KEYS
        assert len({entry.version for entry in found.values()}) == 1
        assert engine.scan("many/", self.limit()) == keys
        commit = engine.commit(dict(found) | {"other": None}, {"other": b""}, self.limit())
        assert commit.done
        stale = dict(found) | {"other": None}
        assert not engine.commit(stale, dict.fromkeys(keys), self.limit()).done
        self.put(engine, dict(found), **dict.fromkeys(keys))
        assert engine.scan("", self.limit()) == ["other"]

    def test_scan(self) -> None:
        """Keys by prefix, sorted, whatever is in them."""
        engine = self.make_engine()
        keys = ["a", "a/1", "a/\u00e9", "a/\U0001f600", "b"]
        self.put(engine, dict.fromkeys(keys), **dict.fromkeys(keys, b""))
        assert engine.scan("a/", self.limit()) == keys[1:4]
        assert engine.scan("", self.limit()) == keys
        assert engine.scan("c", self.limit()) == []

    def test_expiry_and_renewal(self) -> None:
        """An entry lives while it is renewed, under the same version, and then goes away."""
        engine = self.make_engine()
        changes = {"a": b"x", "b": b"y"}
        commit = engine.commit(
            dict.fromkeys(changes), changes, self.limit(), dict.fromkeys(changes, EXPIRY_SECONDS)
        )
        seen = engine.read(["a", "b"], self.limit())
        for _ in range(4):
            threading.Event().wait(EXPIRY_SECONDS / 3)
            assert engine.renew("a", seen["a"], EXPIRY_SECONDS, self.limit())
        assert engine.read(["a"], self.limit())["a"].version == commit.version
        end = Deadline(EXPIRY_MOST_SECONDS)
        while engine.read(["a", "b"], self.limit()):
            assert not end.expired()
            threading.Event().wait(0.1)
        assert not engine.renew("a", seen["a"], EXPIRY_SECONDS, self.limit())

    def test_waiting(self) -> None:
        """Creation, change and deletion wake at once; other keys do not."""
        engine = self.make_engine()
        writer = engine.clone()
        assert not engine.wait("a", None, Deadline(SHORT_SECONDS))
        seen = None
        for value in (b"1", b"2", None):
            waiting = in_thread(engine.wait, "a", seen, self.limit())
            with pytest.raises(TimeoutError):
                waiting.result(0.1)
            other = writer.read(["b"], self.limit()).get("b")
            self.put(writer, {"b": other}, b=b"")
            self.put(writer, {"a": seen}, a=value)
            assert waiting.result(WOKEN_SECONDS)
            seen = engine.read(["a"], self.limit()).get("a")
            assert version_of(seen) or value is None

    def test_expiry_wakes(self) -> None:
        """Who waits for an entry to expire is woken soon after."""
        engine = self.make_engine()
        commit = engine.commit({"a": None}, {"a": b""}, self.limit(), {"a": EXPIRY_SECONDS})
        assert engine.wait("a", Entry(commit.version, b""), Deadline(3 * EXPIRY_SECONDS))
        assert engine.read(["a"], self.limit()) == {}

    def test_waiting_for_what_has_happened(self) -> None:
        """Who has seen something older does not wait."""
        engine = self.make_engine()
        old = Entry(self.put(engine, {"a": None}, a=b"1"), b"1")
        self.put(engine, {"a": old}, a=b"2")
        for seen in (None, old):
            assert engine.wait("a", seen, self.limit())

    def test_no_commit_is_lost(self) -> None:
        """Writers that race count up to the sum."""
        engine, each = self.make_engine(), 25

        def count(client: Engine) -> None:
            seen, done = None, 0
            while done < each:
                number = int(seen.value) + 1 if seen else 1
                commit = client.commit({"n": seen}, {"n": b"%d" % number}, self.limit())
                done += commit.done
                seen = client.read(["n"], self.limit()).get("n")

        running = [in_thread(count, engine.clone()) for _ in range(4)]
        for one in running:
            one.result(60)
        assert engine.read(["n"], self.limit())["n"].value == b"%d" % (4 * each)

    def test_closing_while_others_wait(self) -> None:
        """A shutdown closes under a thread that waits: its call ends, as usual or by the error."""
        key = "a"
        self.put(self.make_engine(), {key: None}, a=b"1")
        for _ in range(CLOSINGS):
            engine = self.make_engine().clone()
            seen = engine.read([key], self.limit()).get(key)
            limit = Deadline(SHORT_SECONDS)
            waiting = [in_thread(engine.wait, key, seen, limit) for _ in range(3)]
            engine.close()
            for one in waiting:
                error = one.exception(PATIENCE_SECONDS)
                assert error is None or isinstance(error, StoreConnectionError), repr(error)
