"""Options of `rallypoint run` from the variables of a Slurm step. PURE.

With `srun rallypoint run ...` each task of the step is a node. Task 0 is on the first machine of
the step's node list, and runs the server. All tasks derive run id, port, rank and slot from
variables that are the same for all:

* the run is named after the step (`slurm-123.0`, `slurm-120_4.0` for element 4 of an array), and
  a requeued job is a new run (`slurm-123.0-r1`);
* the task's number is its rank, and job and number are its slot, so that a restarted task
  replaces the former one at once.

A batch script without srun, and mpirun inside a job, are not covered.
Variables: https://slurm.schedmd.com/srun.html, "OUTPUT ENVIRONMENT VARIABLES".
"""

import re
import zlib
from collections.abc import Iterator, Mapping

from rallypoint.errors import ParameterError

# Slurm sends SIGKILL 30 s (KillWait) after SIGTERM; the agent needs some of that to leave.
STOP_GRACE_SECONDS = 25.0
FIRST_PORT, PORT_COUNT = 20_000, 10_000
_PART = re.compile(r"(?:[^,\[]|\[[^\]]*\])+")


def port_of(job: str) -> int:
    """Return a port that all nodes derive from the job's name.

    Two jobs on one machine share a port in one case of ten thousand; the second one then gets
    an error, since its token or run id differs. The ports are below those that the kernel
    assigns to outgoing connections.
    """
    return FIRST_PORT + zlib.crc32(job.encode()) % PORT_COUNT


def read(env: Mapping[str, str]) -> dict[str, object] | None:
    """Return options of `rallypoint run`, None outside a step. Raises ParameterError."""
    step, task = env.get("SLURM_STEP_ID"), env.get("SLURM_PROCID")
    if step is None or task is None or "OMPI_COMM_WORLD_RANK" in env:
        return None
    job = _job(env)
    name = f"slurm-{job}.{step}"
    restarts = env.get("SLURM_RESTART_COUNT", "0")
    run_id = name if restarts == "0" else f"{name}-r{restarts}"
    nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST", "")
    tasks = env.get("SLURM_STEP_NUM_TASKS") or env.get("SLURM_NTASKS", "1")
    found: dict[str, object] = {
        "run_id": run_id,
        "nnodes": tasks,
        "node_rank": int(task),
        "slot": f"{name}/{task}",
        "stop_grace": STOP_GRACE_SECONDS,
    }
    if nodes and tasks != "1":  # a single node needs no endpoint
        found["endpoint"] = f"{first_host(nodes)}:{_port(env, run_id)}"
    return found


def _job(env: Mapping[str, str]) -> str:
    array, element = env.get("SLURM_ARRAY_JOB_ID"), env.get("SLURM_ARRAY_TASK_ID")
    if array and element:
        return f"{array}_{element}"
    return env.get("SLURM_JOB_ID") or env.get("SLURM_JOBID", "0")


def _port(env: Mapping[str, str], run_id: str) -> int:
    reserved = env.get("SLURM_STEP_RESV_PORTS", "").split("-")[0]  # with MpiParams=ports=...
    return int(reserved) if reserved.isdigit() else port_of(run_id)


def first_host(nodes: str) -> str:
    """Return the first host of a list such as `gpu[01-04,7],login1`."""
    return next(hosts(nodes))


def hosts(nodes: str) -> Iterator[str]:
    """Yield the hosts of a list in Slurm's short form. Raises ParameterError."""
    parts = _PART.findall(nodes)
    if ",".join(parts) != nodes:
        raise ParameterError(f"SLURM_STEP_NODELIST={nodes!r}: not a list of hosts")
    for part in parts:
        yield from _expanded(part)


def _expanded(part: str) -> Iterator[str]:
    head, bracket, rest = part.partition("[")
    if not bracket:
        yield head
        return
    ranges, _, tail = rest.partition("]")
    for one in ranges.split(","):
        first, _, last = one.partition("-")
        if not (first.isdigit() and (last or first).isdigit()):
            raise ParameterError(f"SLURM_STEP_NODELIST: {part!r} is not a range of hosts")
        for number in range(int(first), int(last or first) + 1):
            for end in _expanded(tail):
                yield f"{head}{number:0{len(first)}}{end}"
