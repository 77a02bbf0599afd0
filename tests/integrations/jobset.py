"""What a JobSet has of its own, as a JSON schema; the Jobs in it are Kubernetes' own matter.

No package brings this schema, so it is written here by hand, after the API reference of JobSet
(kubernetes-sigs/jobset, jobset.x-k8s.io/v1alpha2, as of release 0.8): names and kinds of the
fields that a user may set. It is closed, so that a misspelt field is found; fields that later
releases add have to be added here first.
"""

from typing import Any

NAME = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63}
COUNT = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}


def _fields(required: tuple[str, ...] = (), **fields: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": fields,
        "required": list(required),
        "additionalProperties": False,
    }


def _list(of: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": of, **more}


def _one_of(*values: str) -> dict[str, Any]:
    return {"enum": list(values)}


NETWORK = _fields(
    enableDNSHostnames={"type": "boolean"},
    publishNotReadyAddresses={"type": "boolean"},
    subdomain=NAME,
)
RULE = _fields(
    ("name", "action"),
    name={"type": "string", "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"},
    action=_one_of("FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"),
    onJobFailureReasons=_list({"type": "string"}),
    targetReplicatedJobs=_list(NAME),
)
FAILURE = _fields(
    maxRestarts=COUNT,
    restartStrategy=_one_of("Recreate", "BlockingRecreate"),
    rules=_list(RULE),
)
SUCCESS = _fields(("operator",), operator=_one_of("All", "Any"), targetReplicatedJobs=_list(NAME))
DEPENDS = _fields(("name", "status"), name=NAME, status=_one_of("Ready", "Complete"))
REPLICATED_JOB = _fields(
    ("name", "template"),
    name=NAME,
    groupName=NAME,
    replicas=COUNT,
    dependsOn=_list(DEPENDS),
    template=_fields(("spec",), metadata={"type": "object"}, spec={"type": "object"}),
)
SPEC = _fields(
    ("replicatedJobs",),
    replicatedJobs=_list(REPLICATED_JOB, minItems=1),
    network=NETWORK,
    successPolicy=SUCCESS,
    failurePolicy=FAILURE,
    startupPolicy=_fields(
        ("startupPolicyOrder",), startupPolicyOrder=_one_of("AnyOrder", "InOrder")
    ),
    suspend={"type": "boolean"},
    coordinator=_fields(("replicatedJob",), replicatedJob=NAME, jobIndex=COUNT, podIndex=COUNT),
    managedBy={"type": "string", "maxLength": 63},
    ttlSecondsAfterFinished=COUNT,
)
SCHEMA = _fields(
    ("apiVersion", "kind", "metadata", "spec"),
    apiVersion={"const": "jobset.x-k8s.io/v1alpha2"},
    kind={"const": "JobSet"},
    metadata={"type": "object", "required": ["name"], "properties": {"name": NAME}},
    spec=SPEC,
)
