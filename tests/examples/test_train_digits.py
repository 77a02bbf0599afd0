"""The digits example in one process: its arithmetic, checkpoints and elasticity."""

import threading
from pathlib import Path

import numpy as np
import pytest

import train_digits as digits
from rallypoint import worker
from rallypoint.store.memory import MemoryStore


def train(
    size: int, epochs: int, folders: list[Path | None] | Path | None = None
) -> list[digits.Model]:
    """Train with `size` workers as threads; return each one's network."""
    store = MemoryStore()
    models: list[digits.Model] = []
    errors: list[Exception] = []

    def one(rank: int) -> None:
        worker.use(store, rank, size)
        try:
            models.append(
                digits.train(epochs, folders[rank] if isinstance(folders, list) else folders)
            )
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    return models


def test_gradients_match_the_loss() -> None:
    data = digits.load_data()
    model = digits.Model(data.train_x.shape[1])
    x, y = data.train_x[:7], data.train_y[:7]
    given = model.gradients(x, y)
    for index in np.random.default_rng(0).choice(model.weights.size, 20, replace=False):
        losses = []
        for shift in (1e-6, -1e-6):
            model.weights[index] += shift
            losses.append(model.gradients(x, y)[-1])
            model.weights[index] -= shift
        assert given[index] == pytest.approx((losses[0] - losses[1]) / 2e-6, abs=1e-4)


def test_gradients_of_the_shards_add_up_to_the_batch_gradient() -> None:
    data = digits.load_data()
    model = digits.Model(data.train_x.shape[1])
    x, y = data.train_x[:10], data.train_y[:10]
    shares = sum(model.gradients(x[rank::3], y[rank::3]) for rank in range(3))
    np.testing.assert_allclose(shares, model.gradients(x, y), atol=1e-9)
    assert not model.gradients(x[:0], y[:0]).any()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_world_size_trains_the_same_weights(
    size: int, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = train(1, 12)[0]
    models = train(size, 12)
    data = digits.load_data()
    for model in models:
        np.testing.assert_allclose(model.weights, alone.weights, atol=1e-6)
        assert model.weights.tobytes() == models[0].weights.tobytes()
        assert model.accuracy(data.test_x, data.test_y) > 0.95
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 * 13
    assert lines[13].startswith(f"round 1  world size {size}  epoch   1  loss ")
    assert float(lines[-1].removeprefix("final accuracy ").rstrip("%")) > 95


def test_training_resumes_at_another_world_size(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    through = train(1, 6)[0]
    train(3, 4, tmp_path)
    capsys.readouterr()
    resumed = train(2, 6, tmp_path)[0]
    lines = capsys.readouterr().out.splitlines()
    assert ["epoch   5" in lines[0], "epoch   6" in lines[1], len(lines)] == [True, True, 3]
    np.testing.assert_allclose(resumed.weights, through.weights, atol=1e-6)


def test_training_resumes_within_an_epoch(tmp_path: Path) -> None:
    """The state is complete: it includes the loss of half an epoch."""
    data = digits.load_data()
    through, broken = (digits.Model(data.train_x.shape[1]) for _ in range(2))
    worker.use(MemoryStore(), 0, 1)
    for start in (0, 128, 256):
        digits.train_step(through, data, 0, start)
    digits.train_step(broken, data, 0, 0)
    later = digits.Model(data.train_x.shape[1])
    later.load(broken.dump())
    for start in (128, 256):
        digits.train_step(later, data, 0, start)
    assert later.weights.tobytes() == through.weights.tobytes()
    assert later.loss == through.loss


def test_newest_saved_state_of_any_worker_is_restored(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    train(1, 2, here)
    expected = train(1, 3, there)[0]
    for model in train(3, 3, [here, there, None]):
        assert model.weights.tobytes() == expected.weights.tobytes()


def test_nothing_is_trained_when_all_epochs_are_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(1, 2, tmp_path)
    capsys.readouterr()
    train(2, 2, tmp_path)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("final accuracy ")


def test_main_reads_its_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    worker.use(MemoryStore(), 0, 1)
    digits.main(["--epochs", "1", "--checkpoint", str(tmp_path), "--step-delay", "0"])
    assert "epoch   1" in capsys.readouterr().out
    assert len(list(tmp_path.glob("*.state"))) == 1
