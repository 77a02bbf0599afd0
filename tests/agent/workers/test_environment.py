from rallypoint.agent.workers.environment import WorkerContext, sets_omp_threads, worker_environment
from rallypoint.core.events import Assignment

SEAT = Assignment(2, 5, 1, 3, 4, 12, 2, 6, "10.0.0.9", 4711, 1, "why")


def test_torchrun_variables_are_set() -> None:
    context = WorkerContext("job", 4, "trainer", 3, "tcp://h:29400", "secret", "/errors")
    env = worker_environment({"PATH": "/bin"}, context, SEAT, 2)
    assert env == {
        "PATH": "/bin",
        "RANK": "6",
        "LOCAL_RANK": "2",
        "WORLD_SIZE": "12",
        "LOCAL_WORLD_SIZE": "4",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "3",
        "ROLE_NAME": "trainer",
        "ROLE_RANK": "4",
        "ROLE_WORLD_SIZE": "6",
        "MASTER_ADDR": "10.0.0.9",
        "MASTER_PORT": "4711",
        "TORCHELASTIC_RESTART_COUNT": "1",
        "TORCHELASTIC_MAX_RESTARTS": "3",
        "TORCHELASTIC_RUN_ID": "job",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_ERROR_FILE": "/errors/error_round_5_rank_6.json",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "OMP_NUM_THREADS": "1",
        "RALLYPOINT_RUN_ID": "job",
        "RALLYPOINT_ROUND": "5",
        "RALLYPOINT_INCARNATION": "2",
        "RALLYPOINT_STORE": "tcp://h:29400",
        "RALLYPOINT_TOKEN": "secret",
    }


def test_omp_threads_are_limited_for_several_workers_unless_set() -> None:
    assert sets_omp_threads({}, 2)
    assert not sets_omp_threads({}, 1)
    assert not sets_omp_threads({"OMP_NUM_THREADS": "8"}, 2)
    several = worker_environment({"OMP_NUM_THREADS": "8"}, WorkerContext("j", 2), SEAT, 0)
    assert several["OMP_NUM_THREADS"] == "8"
    assert "OMP_NUM_THREADS" not in worker_environment({}, WorkerContext("j", 1), SEAT, 0)


def test_absent_values_give_no_variables() -> None:
    env = worker_environment({}, WorkerContext("j", 1), SEAT, 0)
    assert not {"RALLYPOINT_STORE", "RALLYPOINT_TOKEN", "TORCHELASTIC_ERROR_FILE"} & set(env)


def test_variables_of_an_outer_round_are_replaced() -> None:
    base = {"RANK": "99", "MASTER_ADDR": "old"}
    env = worker_environment(base, WorkerContext("j", 1), SEAT, 0, ("new", 1))
    assert (env["RANK"], env["MASTER_ADDR"], env["MASTER_PORT"]) == ("4", "new", "1")


def test_user_may_set_nccl_error_handling() -> None:
    env = worker_environment(
        {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}, WorkerContext("j", 1), SEAT, 0
    )
    assert env["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0"


def test_workers_do_not_get_the_nodes_token() -> None:
    base = {"RALLYPOINT_TOKEN": "nodes", "RALLYPOINT_TOKEN_FILE": "/nodes", "HOME": "/h"}
    env = worker_environment(base, WorkerContext("j", 1), SEAT, 0)
    assert env["HOME"] == "/h"
    assert not {"RALLYPOINT_TOKEN", "RALLYPOINT_TOKEN_FILE"} & set(env)
    own = WorkerContext("j", 1, token="workers", environment={"RALLYPOINT_TLS_CA": "/ca"})
    env = worker_environment(base, own, SEAT, 0)
    assert env["RALLYPOINT_TOKEN"] == "workers"
    assert env["RALLYPOINT_TLS_CA"] == "/ca"
    assert "workers" not in repr(own)
