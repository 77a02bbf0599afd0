"""Options of `rallypoint run` from the variables of a Kubernetes pod. PURE.

Reads the first of these that is set:

* LeaderWorkerSet: LWS_LEADER_ADDRESS, LWS_GROUP_SIZE, LWS_WORKER_INDEX, set by it;
* Kubeflow's trainers: PET_MASTER_ADDR, PET_MASTER_PORT, PET_NODE_RANK, set by them (the
  other PET_* variables are options of `rallypoint run` as they are of torchrun);
* JobSet: JOBSET_NAME and REPLICATED_JOB_NAME, which the manifest copies from the pod's
  labels, with JOB_COMPLETION_INDEX;
* an indexed Job: JOB_COMPLETION_INDEX and HOSTNAME, which Kubernetes sets, with
  RALLYPOINT_SUBDOMAIN, the headless service, from the manifest.

The pod of index 0 runs the server. It uses its own address (POD_IP) if the manifest sets it,
since DNS may not know its name until long after its start. The other pods retry the name until
it resolves. RALLYPOINT_PORT is the port, 29400 by default. The manifests in deploy/kubernetes/
set all of this.
"""

from collections.abc import Mapping

from rallypoint.net.endpoints import join_endpoint
from rallypoint.net.protocol import DEFAULT_PORT


def read(env: Mapping[str, str]) -> dict[str, object] | None:
    """Return options of `rallypoint run`, None outside such a pod."""
    for reader in (_leader_worker_set, _kubeflow, _job_set, _indexed_job):
        found = reader(env)
        if found is not None:
            return found
    return None


def _node(
    env: Mapping[str, str], index: str, group: str, first: str, port: int = 0
) -> dict[str, object]:
    """Return the options of the pod `index` of a group whose first pod's name is `first`."""
    found: dict[str, object] = {}
    pod = env.get("POD_IP", "")
    if index.isdigit():
        found |= {"node_rank": int(index), "slot": f"{group}/{index}"}
    if pod:
        found["local_addr"] = pod
    host = pod if index == "0" and pod else first
    if host:
        default = env.get("RALLYPOINT_PORT", "")
        found["endpoint"] = join_endpoint(
            host, port or (int(default) if default.isdigit() else DEFAULT_PORT)
        )
    if group:
        found["run_id"] = group
    return found


def _leader_worker_set(env: Mapping[str, str]) -> dict[str, object] | None:
    leader = env.get("LWS_LEADER_ADDRESS")
    if not leader:
        return None
    index = env.get("LWS_WORKER_INDEX", "")
    found = _node(env, index, leader.split(".")[0], leader)
    if env.get("LWS_GROUP_SIZE"):
        found["nnodes"] = env["LWS_GROUP_SIZE"]
    return found


def _kubeflow(env: Mapping[str, str]) -> dict[str, object] | None:
    master = env.get("PET_MASTER_ADDR")
    if not master:
        return None
    port = env.get("PET_MASTER_PORT", "")
    index = env.get("PET_NODE_RANK") or env.get("JOB_COMPLETION_INDEX", "")
    return _node(env, index, master.split(".")[0], master, int(port) if port.isdigit() else 0)


def _job_set(env: Mapping[str, str]) -> dict[str, object] | None:
    name, job = env.get("JOBSET_NAME"), env.get("REPLICATED_JOB_NAME")
    index = env.get("JOB_COMPLETION_INDEX")
    if not (name and job and index):
        return None
    group = f"{name}-{job}-{env.get('JOB_INDEX', '0')}"
    return _node(env, index, group, f"{group}-0.{env.get('RALLYPOINT_SUBDOMAIN', name)}")


def _indexed_job(env: Mapping[str, str]) -> dict[str, object] | None:
    index = env.get("JOB_COMPLETION_INDEX")
    if not index:
        return None
    group = env.get("HOSTNAME", "").removesuffix(f"-{index}")
    service = env.get("RALLYPOINT_SUBDOMAIN", "")
    return _node(env, index, group, f"{group}-0.{service}" if group and service else "")
