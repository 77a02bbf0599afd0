import pytest

from rallypoint.integrations.kubernetes import read


def test_an_indexed_job_with_its_headless_service() -> None:
    env = {
        "JOB_COMPLETION_INDEX": "2",
        "HOSTNAME": "digits-2",
        "RALLYPOINT_SUBDOMAIN": "svc",
        "POD_IP": "10.0.0.3",
    }
    assert read(env) == {
        "node_rank": 2,
        "slot": "digits/2",
        "local_addr": "10.0.0.3",
        "endpoint": "digits-0.svc:29400",
        "run_id": "digits",
    }
    first = {**env, "JOB_COMPLETION_INDEX": "0", "HOSTNAME": "digits-0", "POD_IP": "fd00::1"}
    assert (read(first) or {})["endpoint"] == "[fd00::1]:29400"


def test_indexed_job_has_rank_and_slot() -> None:
    env = {"JOB_COMPLETION_INDEX": "1", "HOSTNAME": "digits-1"}
    assert read(env) == {"node_rank": 1, "slot": "digits/1", "run_id": "digits"}


def test_a_job_set() -> None:
    env = {
        "JOBSET_NAME": "digits",
        "REPLICATED_JOB_NAME": "node",
        "JOB_INDEX": "1",
        "JOB_COMPLETION_INDEX": "3",
        "RALLYPOINT_PORT": "1234",
    }
    assert read(env) == {
        "node_rank": 3,
        "slot": "digits-node-1/3",
        "endpoint": "digits-node-1-0.digits:1234",
        "run_id": "digits-node-1",
    }


def test_a_leader_worker_set() -> None:
    env = {
        "LWS_LEADER_ADDRESS": "digits-0.digits.default",
        "LWS_GROUP_SIZE": "4",
        "LWS_WORKER_INDEX": "1",
    }
    assert read(env) == {
        "node_rank": 1,
        "slot": "digits-0/1",
        "endpoint": "digits-0.digits.default:29400",
        "run_id": "digits-0",
        "nnodes": "4",
    }


@pytest.mark.parametrize("index", ["PET_NODE_RANK", "JOB_COMPLETION_INDEX"])
def test_kubeflow(index: str) -> None:
    env = {"PET_MASTER_ADDR": "digits-node-0-0.digits", "PET_MASTER_PORT": "29500", index: "1"}
    assert read(env) == {
        "node_rank": 1,
        "slot": "digits-node-0-0/1",
        "endpoint": "digits-node-0-0.digits:29500",
        "run_id": "digits-node-0-0",
    }


def test_nothing_is_read_elsewhere() -> None:
    assert read({"HOSTNAME": "laptop", "POD_IP": "10.0.0.1"}) is None


def test_missing_variables_are_left_out() -> None:
    assert read({"LWS_LEADER_ADDRESS": "digits-0.digits"}) == {
        "endpoint": "digits-0.digits:29400",
        "run_id": "digits-0",
    }
    assert read({"JOB_COMPLETION_INDEX": "1"}) == {"node_rank": 1, "slot": "/1"}


@pytest.mark.parametrize("port", ["", "http"])
def test_kubeflow_without_a_port_uses_the_default(port: str) -> None:
    env = {"PET_MASTER_ADDR": "digits-node-0-0.digits", "PET_MASTER_PORT": port}
    found = read(env | {"PET_NODE_RANK": "1"})
    assert found is not None
    assert found["endpoint"] == "digits-node-0-0.digits:29400"
