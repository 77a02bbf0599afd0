"""Where the workers' stdout and stderr go.

torchrun's words: `redirects` sends a stream to a file only, `tee` to a file and to the
console with a prefix, [node rank]; each is 0 (none), 1 (stdout), 2 (stderr) or 3 (both), for
all local ranks ("3") or for some ("0:1,1:3"). With a log directory and neither word, both
streams go to the files and, without a prefix, to the console. Files:
LOGDIR/RUNID/round_N/RANK/stdout.log.

A stream that nothing has to look at is inherited. stderr always passes through a pipe
(`agent.pump`), so that its last lines are known when a worker fails; what it writes is never
held back.
"""

import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from rallypoint.agent.output.forwarder import NAMES, STDERR, STDOUT, Pump, Way
from rallypoint.agent.output.logfile import LogFile
from rallypoint.errors import ParameterError
from rallypoint.wallclock import now_text

COLOURS = (36, 33, 35, 32, 34, 31)  # of prefixes, by rank

Choice = dict[int | None, int]  # local rank, or None for all -> 0..3


def parse_choice(option: str, text: str) -> Choice:
    """Return which streams `--redirects` or `--tee` means. Raises ParameterError."""
    wrong = ParameterError(
        f"{option} {text!r}: give 0 (none), 1 (stdout), 2 (stderr) or 3 (both), "
        "or pairs of local rank and one of these: 0:1,1:3"
    )
    choice: Choice = {}
    for part in text.split(","):
        rank, colon, value = part.strip().rpartition(":")
        if value not in ("0", "1", "2", "3") or (colon and not rank.isdecimal()):
            raise wrong
        if not colon and "," in text:
            raise wrong
        choice[int(rank) if colon else None] = int(value)
    return choice


def streams_of(choice: Choice, local_rank: int) -> int:
    """Return the bits (1 stdout, 2 stderr) chosen for a worker."""
    return choice.get(local_rank, choice.get(None, 0))


class OutputPlan(msgspec.Struct, frozen=True):
    """What to do with the output of all workers of a node.

    Args:
        log_dir: directory for the files, None for no files.
        redirects: streams that go to a file only.
        tee: streams that go to a file, and with a prefix to the console.
        role: name in the prefix, where it is not "default".
        node: name of this node, in the prefix and in JSON.
        max_bytes: size at which a file is turned over, 0 for never.
        keep: older files that stay.
        as_json: whether each line of the console is a JSON object.
        coloured: streams whose console shows colours.
    """

    log_dir: Path | None = None
    redirects: Choice = {}
    tee: Choice = {}
    role: str = "default"
    node: str = ""
    max_bytes: int = 0
    keep: int = 0
    as_json: bool = False
    coloured: frozenset[int] = frozenset()

    def worker(self, run_id: str, round_number: int, rank: int, local_rank: int) -> "WorkerOutput":
        """Return the output of one worker in one round."""
        folder = None
        if self.log_dir is not None:
            safe = "".join(c if c.isalnum() or c in "._-" else "_" for c in run_id)
            folder = self.log_dir / safe / f"round_{round_number}" / str(rank)
        redirects = streams_of(self.redirects, local_rank)
        tee = streams_of(self.tee, local_rank)
        all_to_files = not self.redirects and not self.tee
        routes = {}
        for stream in (STDOUT, STDERR):
            to_file = folder is not None and (all_to_files or bool((redirects | tee) & stream))
            routes[stream] = Route(
                path=folder / f"{NAMES[stream]}.log" if folder is not None and to_file else None,
                console=not redirects & stream or bool(tee & stream),
                dress=self._dress(round_number, rank, stream, bool(tee & stream)),
                max_bytes=self.max_bytes,
                keep=self.keep,
            )
        return WorkerOutput(routes)

    def _dress(
        self, round_number: int, rank: int, stream: int, teed: bool
    ) -> Callable[[bytes], bytes] | None:
        if self.as_json:
            facts = {"node": self.node, "rank": rank, "round": round_number}
            return functools.partial(_as_json, {**facts, "stream": NAMES[stream]})
        if not teed:
            return None
        names = [self.node, *([self.role] if self.role != "default" else []), str(rank)]
        prefix = f"[{' '.join(filter(None, names))}]:"
        if stream in self.coloured:
            prefix = f"\x1b[{COLOURS[rank % len(COLOURS)]}m{prefix}\x1b[0m"
        return f"{prefix} ".encode().__add__


def _as_json(facts: Mapping[str, object], line: bytes) -> bytes:
    text = line.decode("utf-8", "replace").rstrip("\r")
    return msgspec.json.encode({"at": now_text(), "source": "worker", **facts, "text": text})


class Route(msgspec.Struct, frozen=True):
    """Where one stream goes: a file, the console, or both.

    Args:
        path: of the file, None for none.
        console: whether it goes there, too.
        dress: what makes a console line of a line; None: bytes go as they come.
        max_bytes, keep: of the file, as in the plan.
    """

    path: Path | None
    console: bool
    dress: Callable[[bytes], bytes] | None = None
    max_bytes: int = 0
    keep: int = 0


class Streams(msgspec.Struct, frozen=True):
    """What a worker is started with; None is inherited."""

    stdout: int | None
    stderr: int | None


class WorkerOutput:
    """The two streams of one worker. Order of calls: open, begin (or abandon), close."""

    def __init__(self, routes: dict[int, Route]) -> None:
        self._routes = routes
        self._pumps: dict[int, Pump] = {}
        self._ours: list[int] = []

    def open(self) -> Streams:
        """Make pipes and files. Raises ParameterError when a file cannot be made."""
        fds: dict[int, int | None] = {}
        try:
            for stream, route in self._routes.items():
                fds[stream] = self._open_stream(stream, route)
        except OSError as error:
            self.abandon()
            raise ParameterError(
                f"--log-dir: cannot write {error.filename}: {error.strerror}"
            ) from error
        return Streams(fds[STDOUT], fds[STDERR])

    def _open_stream(self, stream: int, route: Route) -> int | None:
        if stream == STDOUT and route.path is None and route.console and route.dress is None:
            return None
        file = None
        if route.path is not None:
            file = LogFile(route.path, route.max_bytes, route.keep)
        read_end, write_end = os.pipe()
        self._ours.append(write_end)
        self._pumps[stream] = Pump(read_end, stream, Way(file, route.console, route.dress, stream))
        return write_end

    def begin(self) -> None:
        """Carry output, now that the worker holds its ends of the pipes."""
        self._close_ours()
        for pump in self._pumps.values():
            pump.start()

    def abandon(self) -> None:
        """Undo `open`: the worker did not start."""
        self._close_ours()
        for pump in self._pumps.values():
            pump.abandon()
        self._pumps.clear()

    def last_lines(self, wait_seconds: float) -> tuple[str, ...]:
        """Return the last lines of stderr, giving it `wait_seconds` to come to its end."""
        pump = self._pumps.get(STDERR)
        return pump.last_lines(wait_seconds) if pump is not None else ()

    def said_after(self, act: Callable[[], None], limit_seconds: float) -> tuple[str, ...]:
        """Do something; return what then comes on stderr, () if nothing does."""
        pump = self._pumps.get(STDERR)
        return pump.said_after(act, limit_seconds) if pump is not None else ()

    def close(self) -> None:
        """Wait shortly for what was written before the end of the worker."""
        for pump in self._pumps.values():
            pump.join(1.0)  # a descendant that outlived its kill may hold the pipe open

    def _close_ours(self) -> None:
        for fd in self._ours:
            os.close(fd)
        self._ours.clear()
