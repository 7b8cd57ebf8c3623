"""The files of jobs: a JobSet for Kubernetes, a task for SkyPilot."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from forge.config.launch import Kubernetes, Manifest, SkyPilot
from forge.config.places import ADDRESS
from forge.planning.allocation import Allocation

RANKS = "ranks"  # the only job of a JobSet
LONGEST = 30
"""Letters of a name; JobSet appends indices, and names of Kubernetes have at most 63."""


def job_name(name: str, run_dir: Path) -> str:
    """A name for a job: letters, digits and dashes, and a hash of the directory."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:LONGEST].strip("-") or "run"
    slug = slug if slug[0].isalpha() else f"run-{slug}"
    return f"{slug}-{hashlib.sha256(str(run_dir.resolve()).encode()).hexdigest()[:8]}"


def script(
    section: Manifest,
    needs: Allocation,
    run_dir: Path,
    trust: Sequence[str],
    *,
    node: str,
    host: str,
) -> str:
    """The shell of a machine. node, host: words for its number and for the host of rank 0."""
    worker = ["-m", "forge.worker", str(run_dir), *trust]
    if needs.nodes * needs.tasks_per_node == 1:
        command = shlex.join([section.python, *worker])
    else:
        python = shlex.join([section.python, "-m", "torch.distributed.run"])
        shape = f"--nnodes {needs.nodes} --nproc-per-node {needs.tasks_per_node}"
        place = f"--node-rank {node} --master-addr {host} --master-port {section.port}"
        command = f"{python} {shape} {place} {shlex.join(worker)}"
    # exec: the signal to stop goes to Python, not to the shell.
    return "\n".join(["set -e", *section.setup, f"exec {command}"]) + "\n"


def jobset(
    section: Kubernetes, needs: Allocation, run_dir: Path, trust: Sequence[str], *, name: str
) -> dict[str, Any]:
    """The JobSet of a run (jobset.x-k8s.io/v1alpha2).

    JobSet makes the headless service by which pod I of the job is NAME-ranks-0-I.NAME.
    """
    host = "127.0.0.1" if needs.nodes == 1 else f"{name}-{RANKS}-0-0.{name}"
    shell = script(section, needs, run_dir, trust, node='"$JOB_COMPLETION_INDEX"', host=host)
    pod = _without_none(
        {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": section.grace_seconds,
            "serviceAccountName": section.service_account,
            "priorityClassName": section.priority_class,
            "nodeSelector": dict(section.node_selector) or None,
            "containers": [_container(section, needs, shell)],
            "volumes": _volumes(section),
        }
    )
    job = {
        "parallelism": needs.nodes,
        "completions": needs.nodes,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "template": {"spec": pod},
    }
    spec = {
        "suspend": True if section.queue else None,  # until Kueue admits it
        "network": {"enableDNSHostnames": True, "subdomain": name},
        "failurePolicy": {"maxRestarts": section.max_restarts},
        "replicatedJobs": [{"name": RANKS, "replicas": 1, "template": {"spec": job}}],
    }
    labels = {"kueue.x-k8s.io/queue-name": section.queue} if section.queue else None
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": _without_none({"name": name, "namespace": section.namespace, "labels": labels}),
        "spec": _without_none(spec),
    }


def _container(section: Kubernetes, needs: Allocation, shell: str) -> dict[str, Any]:
    resources: dict[str, str | int] = {}
    if needs.gpus_per_node:
        resources[section.gpu_resource] = needs.gpus_per_node
    if section.cpus:
        resources["cpu"] = section.cpus
    if section.memory:
        resources["memory"] = section.memory
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}]
    mounts += [{"name": f"mount-{n}", "mountPath": p} for n, p in enumerate(section.mounts)]
    return _without_none(
        {
            "name": RANKS,
            "image": section.image,
            "command": ["bash", "-c", shell],
            "env": [{"name": name, "value": text} for name, text in section.env.items()] or None,
            "ports": [{"containerPort": section.port}],
            "resources": {"limits": resources, "requests": resources} if resources else None,
            "volumeMounts": mounts,
        }
    )


def _volumes(section: Kubernetes) -> list[dict[str, Any]]:
    claims = [
        {"name": f"mount-{number}", "persistentVolumeClaim": {"claimName": claim}}
        for number, claim in enumerate(section.mounts.values())
    ]
    memory = {"medium": "Memory", "sizeLimit": section.shared_memory}
    return [{"name": "shm", "emptyDir": memory}, *claims]


def sky_task(
    section: SkyPilot, needs: Allocation, run_dir: Path, trust: Sequence[str], *, name: str
) -> dict[str, Any]:
    """The task of a run for `sky jobs launch`."""
    host = '"$(echo "$SKYPILOT_NODE_IPS" | head -n1)"'
    shell = script(section, needs, run_dir, trust, node='"$SKYPILOT_NODE_RANK"', host=host)
    gpus = needs.gpus_per_node
    recovery = {"max_restarts_on_errors": section.max_restarts}
    resources = _without_none(
        {
            "infra": section.infra,
            "accelerators": f"{section.accelerator}:{gpus}"
            if section.accelerator and gpus
            else None,
            "cpus": section.cpus,
            "memory": section.memory,
            "image_id": section.image,
            "use_spot": section.use_spot or None,
            "disk_size": section.disk_size,
            "job_recovery": recovery,
        }
    )
    buckets = {p: source for p, source in section.mounts.items() if ADDRESS.match(source)}
    volumes = {p: source for p, source in section.mounts.items() if p not in buckets}
    mounts = {path: {"source": source, "mode": "MOUNT"} for path, source in buckets.items()}
    return _without_none(
        {
            "name": name,
            "workdir": section.workdir,
            "num_nodes": needs.nodes,
            "resources": resources,
            "file_mounts": mounts or None,
            "volumes": volumes or None,
            "envs": dict(section.env) or None,
            "run": shell,
        }
    )


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


class _Dumper(yaml.SafeDumper):
    """Writes shell as blocks of lines."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def yaml_of(documents: Sequence[dict[str, Any]]) -> str:
    """YAML of one or several documents."""
    # Without aliases: limits and requests are the same.
    _Dumper.ignore_aliases = lambda self, data: True
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=1000)
