"""Which processes belong to an agent's workers, wherever they have gone.

Three trails, each good where the others are lost:

* parentage: whatever descends from a worker, as long as the parents between them live;
* the session and process group of a worker, whose ids are the worker's own;
* a mark: a variable in the workers' environment, which everything that they start inherits,
  so that a daemon without parents, in a session of its own, is found too.

What is found is held with its start time (psutil), so that a process id that the system has
given away again is not touched. Only a process that has left the session, lost its parents
and wiped its environment is not found; nothing short of a cgroup would hold that one, and a
user who may make one is rare.
"""

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator, Mapping

import psutil

from rallypoint.deadline import Deadline

MARK = "RALLYPOINT_TREE"
PASS_SECONDS = 0.05

Roots = Mapping[int, float]
"""Process id of a worker, or of what came from it -> its start time (psutil's)."""


def marked(inherited: str, mark: str) -> str:
    """Return the value of `MARK` for workers: an agent within a worker keeps the outer mark."""
    return f"{inherited} {mark}".strip()


def started_at(pid: int) -> float:
    """Return the start time of a process of ours that cannot have been reaped yet."""
    try:
        return psutil.Process(pid).create_time()
    except psutil.Error:
        return 0.0  # not to be seen (macOS hides zombies): its group is still known


def roots_of(processes: Iterable[psutil.Process]) -> dict[int, float]:
    """Return processes that were found so that they are found again, orphaned or not."""
    return {process.pid: process.create_time() for process in processes}


def family(mark: str, roots: Roots) -> list[psutil.Process]:
    """Return every live process of the workers: themselves, and all that came from them."""
    table = dict(_table())
    strangers = {
        pid
        for pid, start in roots.items()
        if start and pid in table and table[pid][0].create_time() != start
    }
    groups = set(roots) - strangers
    found = {
        pid
        for pid, (process, _parent) in table.items()
        if pid not in strangers
        and (pid in groups or _grouped(pid) & groups or _has_mark(process, mark))
    }
    grown = True
    while grown:
        born = {pid for pid, (_, parent) in table.items() if parent in found or parent in groups}
        grown = not born <= found
        found |= born
    found -= {os.getpid(), *strangers}
    return [table[pid][0] for pid in sorted(found) if not _is_zombie(table[pid][0])]


def end(
    mark: str, roots: Roots, limit_seconds: float, quiet_passes: int = 1
) -> list[psutil.Process]:
    """Kill the whole family, also what it starts meanwhile; return what cannot be ended.

    Args:
        mark, roots: of the family.
        limit_seconds: for it to be gone.
        quiet_passes: looks that must find nothing.
    """
    deadline, quiet = Deadline(limit_seconds), 0
    while True:
        found = family(mark, roots)
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()  # psutil compares the start time
        quiet = 0 if found else quiet + 1
        if quiet == quiet_passes or deadline.expired():
            return found
        threading.Event().wait(deadline.capped(PASS_SECONDS))


def state_of(pid: int) -> str:
    """Return the state of a process for people, such as "disk-sleep", "" if it is gone."""
    try:
        return str(psutil.Process(pid).status())
    except psutil.Error:
        return ""


def _table() -> Iterator[tuple[int, tuple[psutil.Process, int]]]:
    for pid in psutil.pids():
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            yield pid, (process, process.ppid())


def _grouped(pid: int) -> set[int]:
    with contextlib.suppress(OSError):
        return {os.getpgid(pid), os.getsid(pid)}
    return set()


def _has_mark(process: psutil.Process, mark: str) -> bool:
    with contextlib.suppress(psutil.Error, OSError):
        return mark in process.environ().get(MARK, "").split()
    return False


def _is_zombie(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return True  # gone
