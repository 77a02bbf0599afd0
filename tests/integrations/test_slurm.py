import pytest

from rallypoint.errors import ParameterError
from rallypoint.integrations.slurm import FIRST_PORT, PORT_COUNT, first_host, hosts, port_of, read

STEP = {
    "SLURM_JOB_ID": "123",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "2",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NODELIST": "gpu[03-04,7]",
    "SLURM_JOB_NODELIST": "gpu[01-07]",
}


def test_slurm_step_has_all_settings_of_a_run() -> None:
    assert read(STEP) == {
        "run_id": "slurm-123.0",
        "nnodes": "4",
        "node_rank": 2,
        "slot": "slurm-123.0/2",
        "stop_grace": 25.0,
        "endpoint": f"gpu03:{port_of('slurm-123.0')}",
    }


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"SLURM_JOB_ID": "123", "SLURM_PROCID": "0"},  # a batch script without srun
        {**STEP, "OMPI_COMM_WORLD_RANK": "1"},  # an mpirun within a job
    ],
)
def test_nothing_is_read_elsewhere(env: dict[str, str]) -> None:
    assert read(env) is None


def named(**more: str) -> object:
    return (read({**STEP, **more}) or {})["run_id"]


def test_arrays_requeues_and_steps_have_different_run_ids() -> None:
    assert named(SLURM_ARRAY_JOB_ID="120", SLURM_ARRAY_TASK_ID="4") == "slurm-120_4.0"
    assert named(SLURM_ARRAY_JOB_ID="120") == "slurm-123.0"
    assert named(SLURM_RESTART_COUNT="1") == "slurm-123.0-r1"
    assert named(SLURM_STEP_ID="1") == "slurm-123.1"


def test_requeued_task_keeps_its_slot() -> None:
    assert (read({**STEP, "SLURM_RESTART_COUNT": "1"}) or {})["slot"] == "slurm-123.0/2"


def test_port_reserved_by_slurm_is_used() -> None:
    found = read({**STEP, "SLURM_STEP_RESV_PORTS": "12000-12003"}) or {}
    assert found["endpoint"] == "gpu03:12000"


def test_single_task_needs_no_endpoint() -> None:
    assert "endpoint" not in (read({**STEP, "SLURM_STEP_NUM_TASKS": "1"}) or {})


@pytest.mark.parametrize(
    ("nodes", "names"),
    [
        ("login1", ["login1"]),
        ("a,b-c", ["a", "b-c"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[08-10,12]", ["n08", "n09", "n10", "n12"]),
        ("n[7],x", ["n7", "x"]),
        ("r[1-2]c[1-2]", ["r1c1", "r1c2", "r2c1", "r2c2"]),
        ("n[1-2].cluster", ["n1.cluster", "n2.cluster"]),
    ],
)
def test_short_lists_of_hosts_are_read(nodes: str, names: list[str]) -> None:
    assert list(hosts(nodes)) == names
    assert first_host(nodes) == names[0]


@pytest.mark.parametrize("nodes", [",", "n[", "n[a-b]", "a,,b", "n[]"])
def test_invalid_values_are_refused(nodes: str) -> None:
    with pytest.raises(ParameterError, match="SLURM_STEP_NODELIST"):
        list(hosts(nodes))


def test_port_of_a_job_is_below_the_ephemeral_range() -> None:
    ports = [port_of(f"job-{number}") for number in range(1000)]
    assert ports == [port_of(f"job-{number}") for number in range(1000)]
    assert min(ports) >= FIRST_PORT
    assert max(ports) < FIRST_PORT + PORT_COUNT <= 32768
    assert len(set(ports)) > 900
