"""The digits example with a log of the computed steps: logged_digits.py FOLDER OPTIONS...

Each step of rank 0 is one line of FOLDER/log: round, epoch, start of the batch. Steps are slow
until FOLDER/fast exists, and slower near the end.
"""

import sys
import time
from pathlib import Path

import train_digits as digits
from rallypoint import worker

SLOW_SECONDS, LAST_SECONDS, LAST_EPOCHS = 0.05, 1.0, 5


def main() -> None:
    """Train as the example does."""
    folder, options, compute = Path(sys.argv[1]), sys.argv[2:], digits.train_step
    (epochs,) = (int(o.partition("=")[2]) for o in options if o.startswith("--epochs="))
    last = epochs - LAST_EPOCHS

    def logged(model: digits.Model, data: digits.Data, epoch: int, start: int) -> None:
        compute(model, data, epoch, start)
        if worker.rank() == 0:
            with (folder / "log").open("a") as file:
                file.write(f"{worker.round()} {epoch} {start}\n")
            print(f"step of round {worker.round()}", flush=True)
        if not (folder / "fast").exists():
            time.sleep(LAST_SECONDS if epoch >= last else SLOW_SECONDS)

    digits.train_step = logged
    digits.main(options)


if __name__ == "__main__":
    main()
