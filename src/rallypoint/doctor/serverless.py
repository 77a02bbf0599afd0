"""Examines a rendezvous without a server: in a database (etcd, Redis) or a shared file.

    engine: name, connect of each host -> what answers -> round trip -> write -> run -> peers
    file: the path -> round trip -> write -> run -> peers

To check the permission to write, it writes an entry with a random name and deletes it. It does
not touch the run.
"""

import os
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from rallypoint.core.advance import timers
from rallypoint.core.state import RunState, decode_state
from rallypoint.deadline import Deadline
from rallypoint.doctor import findings
from rallypoint.doctor.examination import look_up, ports
from rallypoint.doctor.findings import Finding, Verdict
from rallypoint.doctor.probe import Probe
from rallypoint.engines.contract import Engine
from rallypoint.engines.url import engine_url, is_engine, open_engine, redacted
from rallypoint.errors import (
    AuthenticationError,
    ParameterError,
    RallypointError,
    StoreConnectionError,
    StoreError,
    StoreLimitError,
)
from rallypoint.rendezvous.reports.report import report_of
from rallypoint.rendezvous.reports.status import run_status
from rallypoint.rendezvous.serverless.backends.contract import RendezvousBackend
from rallypoint.rendezvous.serverless.backends.engine import EngineRendezvousBackend
from rallypoint.rendezvous.serverless.backends.store import FileRendezvousBackend
from rallypoint.store.file import FileStore

ROUND_TRIPS = 5
SCRATCH_SECONDS = 60.0  # an entry that could not be deleted expires
_VALUE = b"written by rallypoint doctor"


def examine_serverless(backend: str, endpoint: str, run_id: str, probe: Probe) -> Iterator[Finding]:
    """Yield the findings, step by step.

    Args:
        backend: file, etcd or redis.
        endpoint: path, hosts or URL, as the nodes get it.
        run_id: "" to examine only the database or file.
        probe: asks the network.

    Raises ParameterError at once for an invalid backend or endpoint.
    """
    if backend == "file":
        return _file(Path(endpoint.removeprefix("file://")), run_id, probe)
    if not is_engine(backend):
        raise ParameterError(f"--backend {backend}: give core, file, etcd or redis")
    return _engine(open_engine(engine_url(backend, endpoint)), run_id, probe)


def where(backend: str, endpoint: str) -> str:
    """Return the endpoint for people, without passwords."""
    return endpoint if backend == "file" else redacted(engine_url(backend, endpoint))


# -- engines ------------------------------------------------------------------------------


def _engine(engine: Engine, run_id: str, probe: Probe) -> Iterator[Finding]:
    try:
        each = [list(_reach(*host, engine.name, probe)) for host in engine.hosts]
        good = [found for found in each if found[-1].verdict is not Verdict.FAIL]
        for finding in (finding for found in each for finding in found):
            lesser = bool(good) and finding.verdict is Verdict.FAIL  # one of several is enough
            yield replace(finding, verdict=Verdict.WARN) if lesser else finding
        if good or not each:
            yield from _answers(engine, run_id, probe)
    finally:
        engine.close()


def _reach(host: str, port: int, name: str, probe: Probe) -> Iterator[Finding]:
    infos, found = look_up(host, port, probe)
    yield found
    if not infos:
        return
    tried = [probe.connect(info) for info in infos]
    for _, sock in tried:
        if sock is not None:
            sock.close()
    found = findings.reached([place for place, _ in tried], probe.own())
    if found.verdict is Verdict.FAIL:
        remedy = f"start {name} there, open port {port} on the way to it, or correct --endpoint"
        found = replace(found, remedy=remedy)
    yield found


def _answers(engine: Engine, run_id: str, probe: Probe) -> Iterator[Finding]:
    scratch = f"doctor/{secrets.token_hex(8)}"

    def read() -> None:
        engine.read([scratch], Deadline(probe.seconds))

    def write() -> None:
        expire = {scratch: SCRATCH_SECONDS}
        engine.commit({scratch: None}, {scratch: _VALUE}, Deadline(probe.seconds), expire)
        seen = engine.read([scratch], Deadline(probe.seconds)).get(scratch)
        engine.commit({scratch: seen}, {scratch: None}, Deadline(probe.seconds))

    try:
        yield Finding("answer", Verdict.OK, engine.about(Deadline(probe.seconds)))
    except RallypointError as error:
        refused = isinstance(error, AuthenticationError)
        if isinstance(error, StoreConnectionError) and not refused:
            text = f"start {engine.name}, or give the port on which it listens"
            yield Finding("answer", Verdict.FAIL, str(error), f"{text} (TLS: {engine.name}s://)")
            return
        # without that permission, it may still read and write
        yield Finding("answer", Verdict.NOTE, f"{engine.name}: {error}")
    backend = EngineRendezvousBackend(engine, run_id, probe.seconds)
    yield from _use(read, write, backend, engine.where, run_id, probe)


# -- a file -------------------------------------------------------------------------------


def _file(path: Path, run_id: str, probe: Probe) -> Iterator[Finding]:
    folder = path.parent
    if not folder.is_dir():
        remedy = "create it, or mount the shared file system at that path on this machine too"
        yield Finding("path", Verdict.FAIL, f"there is no directory {folder}", remedy)
        return
    if not path.exists():
        may = os.access(folder, os.W_OK | os.X_OK)
        text = f"{path} does not exist yet; the first node creates it"
        text += "" if may else f", but this user may not write to {folder}"
        remedy = (
            "if nodes have joined already, they use another path, or the file system is not shared"
        )
        remedy = remedy if may else f"let the user of the nodes write to {folder}"
        yield Finding("path", Verdict.NOTE if may else Verdict.FAIL, text, remedy)
        return
    if not path.is_file() or not os.access(path, os.R_OK | os.W_OK):
        remedy = "give a file that the user of the nodes may read and write"
        yield Finding("path", Verdict.FAIL, f"{path} is not readable and writable", remedy)
        return
    yield Finding("path", Verdict.OK, f"{path}, {path.stat().st_size} bytes")
    scratch = f"doctor/{secrets.token_hex(8)}"
    try:
        store = FileStore(path, timeout=probe.seconds)
    except StoreError as error:
        remedy = "give the same path as the nodes; this file belongs to another program"
        yield Finding("answer", Verdict.FAIL, str(error), remedy)
        return
    try:

        def write() -> None:
            store.set(scratch, _VALUE)
            store.delete_key(scratch)

        backend = FileRendezvousBackend(store, run_id)
        yield from _use(lambda: store.check([scratch]), write, backend, str(path), run_id, probe)
    finally:
        store.close()


# -- either -------------------------------------------------------------------------------


def _use(
    read: Callable[[], object],
    write: Callable[[], object],
    backend: RendezvousBackend,
    place: str,
    run_id: str,
    probe: Probe,
) -> Iterator[Finding]:
    step = "round trip"
    try:
        yield findings.round_trip([_timed(read) for _ in range(ROUND_TRIPS)])
        step = "write"
        yield Finding("write", Verdict.OK, f"allowed ({_timed(write) * 1e3:.1f} ms)")
        step = "run"
        if run_id:
            yield from _run(backend, place, run_id, probe)
    except RallypointError as error:
        yield Finding(step, Verdict.FAIL, str(error), _remedy(error))


def _remedy(error: RallypointError) -> str:
    if isinstance(error, AuthenticationError):
        return "give this node credentials with permission to read and write there"
    if isinstance(error, StoreLimitError):
        return "free space there: the run cannot change while it is full"
    return "look at its log"


def _timed(call: Callable[[], object]) -> float:
    begun = time.monotonic()
    call()
    return time.monotonic() - begun


def _run(backend: RendezvousBackend, place: str, run_id: str, probe: Probe) -> Iterator[Finding]:
    found = backend.get_state()
    state = RunState(run_id) if found is None else decode_state(found[0])
    running = [(timer, None) for timer in timers(state)]
    report = report_of(state, place, None, time.monotonic(), lambda _: None, running)
    yield findings.run_state(run_status(report))
    if report.members:
        yield findings.peers(probe.peers(ports(report)))
