"""Options of `rallypoint run` from the variables of an MPI launcher. PURE.

With `mpirun rallypoint run ...` each process is a node; its MPI rank is its rank and slot. The
variables are those of Open MPI (OMPI_*), PMIx and PMI (MPICH, Intel MPI). MPI itself is not
used. If all processes are on one machine, the endpoint is there; else the user gives it
(`--endpoint`), since the variables name no machine.
"""

from collections.abc import Mapping

from rallypoint.integrations.slurm import port_of

LOOPBACK = "127.0.0.1"


def read(env: Mapping[str, str]) -> dict[str, object] | None:
    """Return options of `rallypoint run`, None if no MPI launcher started this process."""
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
    if local_size == size and size != "1":  # a single node needs no endpoint
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
    if "SLURM_STEP_ID" in env:  # srun sets PMI variables too; its own contain more
        return None
    rank, size = env.get("PMI_RANK"), env.get("PMI_SIZE")
    if rank is None or size is None:
        return None
    job = env.get("PMI_JOBID") or env.get("PMI_KVSNAME", "")
    return rank, size, env.get("MPI_LOCALNRANKS", ""), job
