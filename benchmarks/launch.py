"""Start of a command: `rallypoint run` against torchrun, for a script that prints its rank.

One node, one worker. "first line": from the start of the command until the rank is read from its
output. "end": until the command has ended.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import harness
from environments import ROOT, Missing, environ, python
from processes import TookTooLong, say

LIMIT = 60.0
SCRIPT = 'import os\nprint("rank", os.environ["RANK"], flush=True)\n'
TORCHRUN = ["-m", "torch.distributed.run"]
RALLYPOINT = ["-m", "rallypoint", "run"]
CONTENDERS = {
    "rallypoint": ("rallypoint", [*RALLYPOINT, "--standalone"]),
    "torchrun": ("torch", [*TORCHRUN, "--standalone"]),
    "plain python": ("rallypoint", []),
}


def trial(command: list[str], script: str) -> dict[str, float]:
    """Run the command once."""
    begun = time.monotonic()
    process = subprocess.Popen(
        [*command, script],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environ() | {"RANK": "0"} if len(command) == 1 else environ(),
        cwd=ROOT,
    )
    out = process.stdout
    assert out is not None
    first = out.readline()
    seen = time.monotonic()
    try:
        process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        raise TookTooLong(f"{command}: more than {LIMIT:g} s") from None
    ended = time.monotonic()
    assert b"rank 0" in first, first
    assert process.returncode == 0, process.returncode
    return {"first line": seen - begun, "end": ended - begun}


def main() -> None:
    """Run, report."""
    options = harness.arguments(__doc__ or "", repeats=7)
    report = harness.Report(
        "launch", "From the start of a command to its end", harness.relative(__file__)
    )
    table = report.table("A script that prints its rank, one worker", "s", 1)
    contenders: dict[str, harness.Measure] = {}
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "rank.py"
        script.write_text(SCRIPT)
        for name, (environment, arguments) in CONTENDERS.items():
            if options.only and name not in options.only:
                continue
            try:
                command = [str(python(environment)), *arguments]
            except Missing as error:
                report.lacks(name, str(error))
                continue
            contenders[name] = lambda command=command: trial(command, str(script))
        say("launch")
        found = harness.run_in_turn(contenders, options.repeats, report)
    for measure in ("first line", "end"):
        for name, samples in found.items():
            table.add(measure, name, "wall", samples.get(measure, []))
    report.finish(lambda axes, r: harness.bars(axes, table))


if __name__ == "__main__":
    sys.exit(main())
