"""Shipped helpers for tests: conformance suites, fakes, a manual clock, the simulator.

The suites are for whoever writes a store, a backend or an engine (docs/writing-a-backend.md);
they need pytest, and `StoreSuite` hypothesis. The names below are imported when first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rallypoint.testing.backend_suite import BackendSuite as BackendSuite
    from rallypoint.testing.engine_suite import EngineSuite as EngineSuite
    from rallypoint.testing.fakes import ManualClock as ManualClock
    from rallypoint.testing.fakes import MemoryEngine as MemoryEngine
    from rallypoint.testing.fakes import MemoryJournal as MemoryJournal
    from rallypoint.testing.journal_suite import JournalSuite as JournalSuite
    from rallypoint.testing.store_suite import StoreSuite as StoreSuite

_WHERE = {
    "BackendSuite": "rallypoint.testing.backend_suite",
    "EngineSuite": "rallypoint.testing.engine_suite",
    "JournalSuite": "rallypoint.testing.journal_suite",
    "ManualClock": "rallypoint.testing.fakes",
    "MemoryEngine": "rallypoint.testing.fakes",
    "MemoryJournal": "rallypoint.testing.fakes",
    "StoreSuite": "rallypoint.testing.store_suite",
}
__all__ = [*_WHERE]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_WHERE[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE})
