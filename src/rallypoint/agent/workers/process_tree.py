"""Finds and kills all descendants of an agent's workers.

A process is found by any of:

* its parent: all descendants of a worker, as long as the parents in between live;
* its session or process group, whose ids are the worker's process id;
* a mark: a variable in the workers' environment that all descendants inherit, so that a daemon
  without a parent, in its own session, is found too.

Start times (psutil) tell a process from another one that got the same process id later. Only a
process that left the session, lost its parents and cleared its environment is not found; that
would take a cgroup, which few users may create.
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
"""Process id of a worker or descendant -> its start time, as psutil gives it."""


def marked(inherited: str, mark: str) -> str:
    """Return the workers' value of `MARK`; an agent inside a worker keeps the outer mark."""
    return f"{inherited} {mark}".strip()


def started_at(pid: int) -> float:
    """Return the start time of a child process that has not been reaped."""
    try:
        return psutil.Process(pid).create_time()
    except psutil.Error:
        return 0.0  # macOS hides zombies; the process group is still known


def roots_of(processes: Iterable[psutil.Process]) -> dict[int, float]:
    """Return the roots by which these processes are found again, orphaned or not."""
    return {process.pid: process.create_time() for process in processes}


def family(mark: str, roots: Roots) -> list[psutil.Process]:
    """Return the live workers and all their live descendants."""
    table = dict(_table())
    reused = {
        pid
        for pid, start in roots.items()
        if start and pid in table and table[pid][0].create_time() != start
    }
    groups = set(roots) - reused
    found = {
        pid
        for pid, (process, _parent) in table.items()
        if pid not in reused
        and (pid in groups or _grouped(pid) & groups or _has_mark(process, mark))
    }
    grown = True
    while grown:
        born = {pid for pid, (_, parent) in table.items() if parent in found or parent in groups}
        grown = not born <= found
        found |= born
    found -= {os.getpid(), *reused}
    return [table[pid][0] for pid in sorted(found) if not _is_zombie(table[pid][0])]


def end(
    mark: str, roots: Roots, limit_seconds: float, quiet_passes: int = 1
) -> list[psutil.Process]:
    """Kill the workers and all descendants; return the processes that could not be ended.

    Args:
        mark: in the workers' environment.
        roots: the workers.
        limit_seconds: after which the remaining processes are returned.
        quiet_passes: number of consecutive passes that must find nothing.
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
