"""The suite finds what is wrong: each fault is caught by the test that is there for it."""

from collections.abc import Mapping

import pytest

from rallypoint.deadline import Deadline
from rallypoint.engines.contract import Commit, Entry
from rallypoint.testing.engine_suite import EngineSuite
from rallypoint.testing.fakes import MemoryEngine


class Suite(EngineSuite):
    """The suite over an engine of a given class."""

    __test__ = False

    def __init__(self, kind: type[MemoryEngine]) -> None:
        self.kind = kind

    def make_engine(self) -> MemoryEngine:
        return self.kind()


class Faulty(MemoryEngine):
    """Clones are of the same class."""

    def clone(self) -> MemoryEngine:
        twin = type(self)(self._clock)
        twin._data = self._data
        return twin


class LooksAtChangedKeysOnly(Faulty):
    """Forgets the fence."""

    def commit(
        self,
        expected: Mapping[str, Entry | None],
        changes: Mapping[str, bytes | None],
        deadline: Deadline,
        expire: Mapping[str, float] | None = None,
    ) -> Commit:
        return super().commit({key: expected[key] for key in changes}, changes, deadline, expire)


class CountsEachKeyAnew(Faulty):
    """A deleted key's versions begin again."""

    def commit(
        self,
        expected: Mapping[str, Entry | None],
        changes: Mapping[str, bytes | None],
        deadline: Deadline,
        expire: Mapping[str, float] | None = None,
    ) -> Commit:
        if not self._data.entries:
            self._data.version = 0
        return super().commit(expected, changes, deadline, expire)


class Deaf(Faulty):
    """Never tells of a change."""

    def wait(self, key: str, seen: Entry | None, deadline: Deadline) -> bool:
        return False


class Eternal(Faulty):
    """Renews nothing, says it did."""

    def renew(self, key: str, seen: Entry, seconds: float, deadline: Deadline) -> bool:
        return True


@pytest.mark.parametrize(
    ("kind", "test"),
    [
        (LooksAtChangedKeysOnly, "test_a_commit_is_all_or_nothing"),
        (CountsEachKeyAnew, "test_versions_grow_over_deletion"),
        (Deaf, "test_waiting_for_what_has_happened"),
        (Eternal, "test_expiry_and_renewal"),
    ],
)
def test_search_finds_planted_faults(kind: type[MemoryEngine], test: str) -> None:
    getattr(Suite(MemoryEngine), test)()
    with pytest.raises((AssertionError, KeyError)):
        getattr(Suite(kind), test)()
