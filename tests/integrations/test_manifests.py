"""The manifests of deploy/kubernetes, against the schemas of Kubernetes, and read as a pod."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from tests.integrations import jobset

from rallypoint.integrations import kubernetes

FOLDER = Path("deploy/kubernetes")
VERSION = "1.37"
LABELS = {
    "jobset.sigs.k8s.io/jobset-name": "digits",
    "jobset.sigs.k8s.io/replicatedjob-name": "node",
    "jobset.sigs.k8s.io/job-index": "0",
    "batch.kubernetes.io/controller-uid": "1234-5678",
}


def resources(name: str) -> list[dict[str, Any]]:
    return [found for found in yaml.safe_load_all((FOLDER / name).read_text()) if found]


def job_within(job_set: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the Jobs that a JobSet makes."""
    for job in job_set["spec"]["replicatedJobs"]:
        name = f"{job_set['metadata']['name']}-{job['name']}-0"
        spec = job["template"]["spec"]
        yield {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


@pytest.mark.parametrize("name", sorted(file.name for file in FOLDER.glob("*.yaml")))
def test_kubernetes_accepts_the_manifest(name: str) -> None:
    found = resources(name)
    assert found
    for resource in found:
        jobs = [resource]
        if resource["kind"] == "JobSet":
            jsonschema.validate(resource, jobset.SCHEMA)
            jobs = list(job_within(resource))
        for job in jobs:
            kubernetes_validate.validate(job, VERSION, strict=True)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "network", "enableDnsHostnames"), True),  # misspelt
        (("spec", "failurePolicy", "maxRestarts"), "3"),
        (("spec", "failurePolicy", "restartStrategy"), "Never"),
        (("spec", "replicatedJobs"), []),
        (("spec", "successPolicy"), {"targetReplicatedJobs": ["node"]}),
        (("apiVersion",), "jobset.x-k8s.io/v1"),
    ],
)
def test_wrong_job_set_is_refused(path: tuple[str, ...], value: Any) -> None:
    (found,) = resources("jobset.yaml")
    place = found
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(found, jobset.SCHEMA)


def variables(job: dict[str, Any], index: int, hostname: str) -> dict[str, str]:
    """Return what a pod of the Job finds in its environment."""
    (container,) = job["spec"]["template"]["spec"]["containers"]
    env = {"JOB_COMPLETION_INDEX": str(index), "HOSTNAME": hostname}
    for row in container["env"]:
        source = row.get("valueFrom", {})
        path = source.get("fieldRef", {}).get("fieldPath", "")
        if path == "status.podIP":
            env[row["name"]] = f"10.0.0.{index + 1}"
        elif path:
            env[row["name"]] = LABELS[path.split("'")[1]]
        elif source:
            env[row["name"]] = "secret"
        else:
            env[row["name"]] = row["value"]
    return env


def pods(name: str) -> list[dict[str, str]]:
    for resource in resources(name):
        if resource["kind"] == "Job":
            return [variables(resource, i, f"digits-{i}") for i in range(4)]
        if resource["kind"] == "JobSet":
            (job,) = job_within(resource)
            return [variables(job, i, f"digits-node-0-{i}") for i in range(4)]
    raise AssertionError(f"{name} has no job")


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("indexed-job.yaml", "digits-0.digits:29400"),
        ("jobset.yaml", "digits-node-0-0.digits:29400"),
    ],
)
@pytest.mark.cases("case-A4")
def test_pod_0_hosts_and_the_others_resolve_its_name(name: str, first: str) -> None:
    found = [kubernetes.read(env) or {} for env in pods(name)]
    assert [said["endpoint"] for said in found] == ["10.0.0.1:29400", first, first, first]
    assert [said["node_rank"] for said in found] == [0, 1, 2, 3]
    assert len({said["slot"] for said in found}) == 4


@pytest.mark.parametrize("name", ["server-job.yaml", "etcd-job.yaml"])
def test_all_pods_of_a_job_get_the_same_endpoint(name: str) -> None:
    assert len({env["RALLYPOINT_ENDPOINT"] for env in pods(name)}) == 1
    assert {env["RALLYPOINT_RUN_ID"] for env in pods(name)} == {"1234-5678"}
