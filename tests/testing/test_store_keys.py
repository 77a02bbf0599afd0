"""The part of the suite about keys, on its own; test_store_suite.py plants the faults."""

import pytest

from rallypoint.store.memory import MemoryStore
from rallypoint.testing.store_keys import KeyCases


class TestKeyCases(KeyCases):
    @pytest.fixture(autouse=True)
    def _data(self) -> None:
        self.store = MemoryStore()

    def make_store(self) -> MemoryStore:
        return self.store.clone()


def test_the_table_of_comparisons_is_complete() -> None:
    shown = {
        (present is None, present == expected, expected == b"")
        for present, expected, *_ in KeyCases.COMPARE
    }
    assert shown == {
        (True, False, True), (True, False, False), (False, True, False), (False, False, True),
        (False, False, False), (False, True, True),
    }  # fmt: skip
