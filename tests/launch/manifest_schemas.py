"""JSON schemas of the fields that forge writes, from the references of the two formats: the API of
JobSet v1alpha2 and of Kubernetes' Job and Pod, and the YAML of a SkyPilot task. Fields that are not
here are refused.
"""

from __future__ import annotations

from typing import Any

TEXT: dict[str, Any] = {"type": "string", "minLength": 1}
LABEL = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63}
COUNT = {"type": "integer", "minimum": 0}
MAP = {"type": "object", "additionalProperties": {"type": "string"}}
QUANTITY = {"anyOf": [COUNT, {"type": "string", "pattern": r"^[0-9.]+(m|[KMGTPE]i?)?$"}]}


def record(required: str, **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": required.split(),
        "properties": properties,
    }


def rows(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": 1}


QUANTITIES = {"type": "object", "additionalProperties": QUANTITY}
VARIABLE = {"type": "string", "pattern": "^[-._a-zA-Z][-._a-zA-Z0-9]*$"}
CONTAINER = record(
    "name image",
    name=LABEL,
    image=TEXT,
    command=rows(TEXT),
    env=rows(record("name", name=VARIABLE, value={"type": "string"})),
    ports=rows(record("containerPort", containerPort={"type": "integer", "maximum": 65535})),
    resources=record("", limits=QUANTITIES, requests=QUANTITIES),
    volumeMounts=rows(record("name mountPath", name=LABEL, mountPath=TEXT)),
)
VOLUME = record(
    "name",
    name=LABEL,
    emptyDir=record("", medium={"enum": ["", "Memory"]}, sizeLimit=QUANTITY),
    persistentVolumeClaim=record("claimName", claimName=LABEL),
)
POD = record(
    "containers",
    restartPolicy={"enum": ["Never", "OnFailure"]},
    terminationGracePeriodSeconds=COUNT,
    serviceAccountName=LABEL,
    priorityClassName=LABEL,
    nodeSelector=MAP,
    containers=rows(CONTAINER),
    volumes=rows(VOLUME),
)
JOB = record(
    "template",
    parallelism=COUNT,
    completions=COUNT,
    completionMode={"enum": ["Indexed", "NonIndexed"]},
    backoffLimit=COUNT,
    template=record("spec", spec=POD),
)
JOBSET = record(
    "apiVersion kind metadata spec",
    apiVersion={"const": "jobset.x-k8s.io/v1alpha2"},
    kind={"const": "JobSet"},
    metadata=record("name", name=LABEL, namespace=LABEL, labels=MAP),
    spec=record(
        "replicatedJobs",
        suspend={"type": "boolean"},
        network=record("", enableDNSHostnames={"type": "boolean"}, subdomain=LABEL),
        failurePolicy=record("", maxRestarts=COUNT),
        replicatedJobs=rows(
            record("name template", name=LABEL, replicas=COUNT, template=record("spec", spec=JOB))
        ),
    ),
)
SKY = record(
    "run",
    name={"type": "string", "pattern": "^[a-zA-Z0-9][a-zA-Z0-9._-]*$"},
    workdir=TEXT,
    num_nodes={"type": "integer", "minimum": 1},
    resources=record(
        "",
        infra=TEXT,
        accelerators={"type": "string", "pattern": "^[A-Za-z0-9-]+(:[0-9.]+)?$"},
        cpus=TEXT,
        memory=TEXT,
        image_id=TEXT,
        use_spot={"type": "boolean"},
        disk_size={"type": "integer"},
        job_recovery=record("", max_restarts_on_errors=COUNT),
    ),
    file_mounts={
        "type": "object",
        "additionalProperties": record(
            "source", source=TEXT, mode={"enum": ["MOUNT", "COPY", "MOUNT_CACHED"]}
        ),
    },
    volumes={"type": "object", "additionalProperties": TEXT},
    envs=MAP,
    run=TEXT,
)
