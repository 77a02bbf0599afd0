"""Where a node is, in the variables of an MPI launcher: `mpirun rallypoint run ...`. PURE.

Each process that mpirun starts is a node; its rank is its rank and slot. Read are the
variables of Open MPI (OMPI_*), of PMIx and of PMI (MPICH, Intel MPI). MPI itself is not
used. Where all processes are on one machine they meet there; else the user says on which
(`--endpoint`), since these variables name no machine.
"""

from collections.abc import Mapping

from rallypoint.integrations.ports import port_of

LOOPBACK = "127.0.0.1"


def read(env: Mapping[str, str]) -> dict[str, object] | None:
    """Return options of `rallypoint run`, None where no MPI launcher started this process."""
    rank, size, local_size, job = _open_mpi(env) or _pmi(env) or ("", "", "", "")
    if not (rank.isdigit() and size.isdigit()):
        return None
    run_id = f"mpi-{job or 'job'}"
    found: dict[str, object] = {
        "run_id": run_id,
        "nnodes": size,
        "node_rank": int(rank),
        "slot": f"{run_id}/{rank}",
    }
    if local_size == size and size != "1":  # one alone meets nobody
        found["endpoint"] = f"{LOOPBACK}:{port_of(run_id)}"
    return found


def _open_mpi(env: Mapping[str, str]) -> tuple[str, str, str, str] | None:
    rank = env.get("OMPI_COMM_WORLD_RANK")
    if rank is None:
        return None
    job = env.get("PMIX_NAMESPACE") or env.get("OMPI_MCA_ess_base_jobid", "")
    size = env.get("OMPI_COMM_WORLD_SIZE", "")
    return rank, size, env.get("OMPI_COMM_WORLD_LOCAL_SIZE", ""), job


def _pmi(env: Mapping[str, str]) -> tuple[str, str, str, str] | None:
    if "SLURM_STEP_ID" in env:  # srun speaks PMI too; its own variables say more
        return None
    rank, size = env.get("PMI_RANK"), env.get("PMI_SIZE")
    if rank is None or size is None:
        return None
    job = env.get("PMI_JOBID") or env.get("PMI_KVSNAME", "")
    return rank, size, env.get("MPI_LOCALNRANKS", ""), job
