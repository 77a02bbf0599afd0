"""Where a node is, in the variables of a Slurm step: `srun rallypoint run ...`. PURE.

Each task of the step is a node. Task 0 runs on the first machine of the step's list, which
hosts; run id, port, rank and slot follow from what Slurm says to all tasks alike:

* the run is named as Slurm names the step (`slurm-123.0`, `slurm-120_4.0` for element 4 of
  an array), and a requeued job begins another run (`slurm-123.0-r1`);
* the task's number is its rank, and with the job its slot: a task that is started again
  takes the place of the one before at once.

A batch script without srun, and an mpirun within the job, are not steps of this kind.
Variables: https://slurm.schedmd.com/srun.html, "OUTPUT ENVIRONMENT VARIABLES".
"""

import re
from collections.abc import Iterator, Mapping

from rallypoint.errors import ParameterError
from rallypoint.integrations.ports import port_of

# Slurm kills KillWait (30 s) after it asked; what is left of that is for saying goodbye.
STOP_GRACE_SECONDS = 25.0
_PART = re.compile(r"(?:[^,\[]|\[[^\]]*\])+")


def read(env: Mapping[str, str]) -> dict[str, object] | None:
    """Return options of `rallypoint run`, None outside a step of srun. ParameterError."""
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
    if nodes and tasks != "1":  # one alone meets nobody
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
    """Return the first name of a list such as `gpu[01-04,7],login1`."""
    return next(hosts(nodes))


def hosts(nodes: str) -> Iterator[str]:
    """Yield the names of a list in Slurm's short form. ParameterError if it is none."""
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
