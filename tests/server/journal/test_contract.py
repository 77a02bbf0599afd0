"""The journal contract: its defaults. The conformance suite holds the rest."""

from collections.abc import Mapping

import pytest

from rallypoint.deadline import Deadline
from rallypoint.net import protocol as p
from rallypoint.server.journal.contract import NAME_BYTES, Journal, Opened


class Plain(Journal):
    """One that nobody else can take over."""

    where = "here"

    def open(self, deadline: Deadline) -> Opened:
        return Opened(1, {})

    def commit(self, changes: Mapping[str, bytes | None], deadline: Deadline) -> None: ...

    def close(self) -> None: ...


def test_may_answer_is_true_by_default() -> None:
    journal = Plain()
    journal.open(Deadline(1))
    assert journal.may_answer()
    assert journal.on_lost is None


def test_journal_is_abstract() -> None:
    with pytest.raises(TypeError):
        Journal()  # type: ignore[abstract]


def test_name_limit_fits_every_run_and_key() -> None:
    quoted = 3 * 4 * p.RUN_LIMIT  # each byte of each character as %XX
    assert quoted + p.KEY_LIMIT + len("item///") + 20 <= NAME_BYTES
