import pytest

from rallypoint.integrations.mpi import read
from rallypoint.integrations.slurm import port_of

OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_MCA_ess_base_jobid": "997130241",
}


def test_open_mpi() -> None:
    assert read(OPEN_MPI) == {
        "run_id": "mpi-997130241",
        "nnodes": "4",
        "node_rank": 1,
        "slot": "mpi-997130241/1",
    }


def test_nodes_of_one_machine_meet_on_loopback() -> None:
    found = read({**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}) or {}
    assert found["endpoint"] == f"127.0.0.1:{port_of('mpi-997130241')}"
    alone = {**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "OMPI_COMM_WORLD_SIZE": "1"}
    assert "endpoint" not in (read(alone) or {})


def test_pmix_names_the_job() -> None:
    assert (read({**OPEN_MPI, "PMIX_NAMESPACE": "997130241.1"}) or {})["run_id"] == (
        "mpi-997130241.1"
    )


def test_pmi() -> None:
    pmi = {"PMI_RANK": "0", "PMI_SIZE": "2", "PMI_JOBID": "7", "MPI_LOCALNRANKS": "2"}
    found = read(pmi) or {}
    assert (found["run_id"], found["nnodes"], found["node_rank"]) == ("mpi-7", "2", 0)
    assert found["endpoint"] == f"127.0.0.1:{port_of('mpi-7')}"


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"PMI_RANK": "0"},
        {"PMI_RANK": "0", "PMI_SIZE": "2", "SLURM_STEP_ID": "0"},  # srun speaks PMI too
        {"OMPI_COMM_WORLD_RANK": "x", "OMPI_COMM_WORLD_SIZE": "2"},
    ],
)
def test_nothing_is_read_elsewhere(env: dict[str, str]) -> None:
    assert read(env) is None
