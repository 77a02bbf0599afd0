import logging
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.errors import ParameterError
from rallypoint.store.memory import MemoryStore
from rallypoint.worker import checkpoint_storage
from rallypoint.worker.checkpoint_storage import (
    CheckpointStorage,
    FolderStorage,
    StoreStorage,
    checksum,
    pack,
    unpack,
)

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False)
    | st.text(max_size=9) | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=9,
)  # fmt: skip


def unpacked(content: bytes) -> tuple[int, dict[str, Any]]:
    found = unpack(content)
    assert found is not None
    assert found.content == content
    return found.step, found.values


def content(step: int) -> bytes:
    return pack(step, {"of": step})


@pytest.fixture(params=["folder", "store"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointStorage:
    if request.param == "folder":
        return FolderStorage(tmp_path / "deep" / "er", keep=2)
    return StoreStorage(MemoryStore(), "state", "1.1", keep=2, limit_bytes=1000)


def newest(storage: CheckpointStorage) -> int | None:
    found = storage.newest()
    if found is None:
        return None
    assert found.values == {"of": found.step}
    assert found.content == content(found.step)
    return found.step


def test_newest_checkpoint_is_found(storage: CheckpointStorage) -> None:
    assert newest(storage) is None
    for step in (1, 2, 9, 10, 11):
        storage.put(step, content(step))
        assert newest(storage) == step


def test_same_step_replaces_its_checkpoint(storage: CheckpointStorage) -> None:
    for _ in range(3):
        storage.put(4, content(4))
    assert newest(storage) == 4


def test_folder_keeps_the_newest_few(tmp_path: Path) -> None:
    folder = FolderStorage(tmp_path, keep=2)
    (tmp_path / "notes.txt").write_text("the user's own")
    for step in range(95, 105):
        folder.put(step, content(step))
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["notes.txt", "step-0000000103.state", "step-0000000104.state"]


def test_partial_file_is_skipped_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = FolderStorage(tmp_path, keep=3)
    for step in (1, 2, 3):
        folder.put(step, content(step))
    (tmp_path / "step-0000000003.state").write_bytes(content(3)[:-1])
    (tmp_path / "step-0000000004.state").write_bytes(b"")
    with caplog.at_level(logging.WARNING, "rallypoint"):
        assert newest(folder) == 2
    assert "step-0000000003.state is truncated or damaged" in caplog.text
    for step in (3, 4, 5):
        folder.put(step, content(step))
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"step-000000000{step}.state" for step in (3, 4, 5)]


def test_files_of_a_killed_writer_are_removed(tmp_path: Path) -> None:
    folder = FolderStorage(tmp_path, keep=2)
    (tmp_path / ".step-7.1234.tmp").write_bytes(content(7)[:20])
    assert newest(folder) is None
    folder.clear()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["folder", "store"])
def test_writer_of_an_older_round_has_no_effect(kind: str, tmp_path: Path) -> None:
    store = MemoryStore()

    def writer(of_round: int) -> CheckpointStorage:
        if kind == "folder":
            return FolderStorage(tmp_path, keep=2)
        return StoreStorage(store, "state", f"1.{of_round}", keep=2, limit_bytes=1000)

    early, late = writer(1), writer(2)
    for step in (6, 7):
        late.put(step, content(step))
    early.put(5, content(5))
    assert newest(late) == 7
    late.put(8, content(8))
    assert newest(early) == 8


def test_store_keeps_the_newest_few() -> None:
    store = MemoryStore()
    for number, step in enumerate(range(10)):
        StoreStorage(store, "state", f"1.{number}", keep=2, limit_bytes=1000).put(
            step, content(step)
        )
    assert store.list() == ["state/state", "state/state/1.8/8/0", "state/state/1.9/9/0"]


def test_state_in_the_store_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_storage, "PART_BYTES", 7)
    store = MemoryStore()
    storage = StoreStorage(store, "state", "1.1", keep=2, limit_bytes=1000)
    storage.put(5, content(5))
    assert newest(storage) == 5
    assert len(store.list("state/state/1.1/5/")) == -(-len(content(5)) // 7)
    store.set("state/state/1.1/5/1", b"changed")
    assert newest(storage) is None


def test_states_with_other_names_are_separate() -> None:
    store = MemoryStore()
    for name in ("a", "b"):
        StoreStorage(store, name, "1.1", 2, 1000).put(ord(name), content(ord(name)))
    assert newest(StoreStorage(store, "a", "1.2", 2, 1000)) == ord("a")


def test_state_too_large_for_the_store_error_has_the_fix() -> None:
    with pytest.raises(ParameterError, match=r"1,001 bytes.*at most 1,000.*folder"):
        StoreStorage(MemoryStore(), "state", "1.1", 2, 1000).put(1, bytes(1001))


@given(st.integers(0, 2**63 - 1), st.dictionaries(st.text(max_size=9), PLAIN, max_size=5))
def test_plain_values_are_restored(step: int, values: dict[str, Any]) -> None:
    assert unpacked(pack(step, values)) == (step, values)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0).reshape(2, 3),
        np.arange(6).reshape(2, 3).T,
        np.array(2.5),
        np.zeros((0, 3), dtype=">i2"),
        np.array([True, False]),
        np.array(["a", "bcd"]),
        np.array([1 + 2j]),
        np.array(["2020-01-01"], dtype="datetime64[D]"),
    ],
    ids=lambda array: str(array.dtype),
)
def test_arrays_are_restored_writable(array: Any) -> None:
    found = unpacked(pack(3, {"outer": [{"array": array}]}))[1]["outer"][0]["array"]
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(found, array)
    found[...] = found


def test_state_of_a_random_generator_is_restored() -> None:
    state = np.random.default_rng(7).bit_generator.state
    assert unpacked(pack(1, {"random": state})) == (1, {"random": state})


def test_numpy_scalar_comes_back_as_a_number() -> None:
    values = {"a": np.int64(3), "b": np.float32(0.5), "c": np.bool_(True)}
    assert unpacked(pack(1, values)) == (1, {"a": 3, "b": 0.5, "c": True})


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (object(), "builtins.object"),
        (len, "builtin_function_or_method"),
        (np.array([object()]), "dtype object"),
        (np.zeros(1, dtype=[("a", "i4")]), "dtype"),
        (Decimal, "type"),
    ],
)
def test_unsupported_value_is_refused_by_name(value: Any, what: str) -> None:
    with pytest.raises(ParameterError, match=what):
        pack(1, {"value": value})


def test_truncated_or_changed_data_is_ignored() -> None:
    whole = pack(7, {"weights": np.arange(30.0), "name": "x"})
    assert unpack(whole) is not None
    for cut in range(len(whole)):
        assert unpack(whole[:cut]) is None
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1
        assert unpack(bytes(changed)) is None
    assert unpack(whole + b"\0") is None


def test_different_states_have_different_checksums() -> None:
    assert checksum(pack(1, {"a": 1})) == checksum(pack(1, {"a": 1}))
    assert checksum(pack(1, {"a": 1})) != checksum(pack(2, {"a": 1}))


def test_plain_values_need_no_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    assert unpacked(pack(1, {"a": [1, b"2", "3"]})) == (1, {"a": [1, b"2", "3"]})
    with pytest.raises(ParameterError, match="saving a object needs numpy"):
        pack(1, {"a": object()})
