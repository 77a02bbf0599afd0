"""The part of the suite about groups, on its own; test_store_suite.py plants the faults."""

import pytest

from rallypoint.store.memory import MemoryStore
from rallypoint.testing.store_groups import GroupCases


class TestGroupCases(GroupCases):
    @pytest.fixture(autouse=True)
    def _data(self) -> None:
        self.store = MemoryStore()

    def make_store(self) -> MemoryStore:
        return self.store.clone()
