"""Jobs of Kubernetes and SkyPilot: files by their schemas, what the commands are given, and the
shell of a machine, which trains.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers.going_on_helpers import read
from jsonschema import Draft202012Validator
from manifest_schemas import JOBSET, SKY

import forge
from forge.launch.local.processes import free_port
from forge.launch.manifests.queue import job_of, states_of

VERBS = ("train", "status", "cancel")
train, status, cancel = (importlib.import_module(f"forge.{verb}").main for verb in VERBS)
SMALL = (
    "model.dim=32 model.n_heads=2 model.n_layers=2 model.vocab_size=300 tokenizer.vocab_size=300 "
    "train.max_steps=2 train.seq_len=16 eval=off run.num_threads=1 scheduler.warmup_steps=1 "
    "train.global_batch_size=4 run.device=cpu launch.gpus_per_node=0"
)
FAKE = """#!{python}
import json, sys
words, text = sys.argv[1:], ""
if words[-2:] == ["-f", "-"]:
    text = sys.stdin.read()
with open("{log}", "a") as log:
    log.write(json.dumps([words, text]) + "\\n")
if "get" in words:
    print(json.dumps({{"kind": "List", "items": {items}}}))
if "{error}":
    sys.exit("{error}")
"""


def schema(launcher: str) -> Draft202012Validator:
    return Draft202012Validator(JOBSET if launcher == "kubernetes" else SKY)


def options(launcher: str, tmp_path: Path) -> list[str]:
    image = ["launch.image=me/forge:1"] if launcher == "kubernetes" else []
    words = [f"launch={launcher}", *image, f"launch.mounts={{{tmp_path}: store}}"]
    return [*words, f"run.root={tmp_path}/runs", f"sweep.root={tmp_path}/sweeps", *SMALL.split()]


@pytest.fixture
def commands(tmp_path: Path, monkeypatch) -> Any:
    """Commands that write down what they are given; `fake` makes them."""
    folder, log = tmp_path / "bin", tmp_path / "log"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def fake(name: str, *, error: str = "", items: Any = ()) -> list[Any]:
        text = FAKE.format(python=sys.executable, log=log, error=error, items=json.dumps([*items]))
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
        return log.read_text().splitlines() if log.exists() else []

    def given() -> list[list[Any]]:
        return [json.loads(line) for line in log.read_text().splitlines()]

    fake.given = given  # type: ignore[attr-defined]
    return fake


MORE = {
    "kubernetes": "launch.queue=q launch.namespace=ml launch.cpus=16 launch.memory=64Gi "
    "launch.env={A: b} launch.node_selector={gpu: h100} launch.priority_class=high "
    "launch.service_account=me launch.nodes=2 launch.gpus_per_node=8 run.device=cuda "
    "train.global_batch_size=16",
    "skypilot": "launch.accelerator=H100 launch.infra=aws/us-east-1 launch.use_spot=true "
    "launch.image=docker:me/forge launch.env={A: b} launch.cpus=16+ launch.memory=64+ "
    "launch.nodes=2 launch.gpus_per_node=8 run.device=cuda train.global_batch_size=16",
}


@pytest.mark.parametrize("launcher", MORE)
def test_a_dry_run_prints_what_the_schema_takes_and_writes_nothing(launcher, tmp_path, capsys):
    words = [w.replace("|", " ") for w in MORE[launcher].replace(": ", ":|").split()]
    assert train([*options(launcher, tmp_path), "launch.dry_run=true", *words]) == 0
    document = yaml.safe_load(capsys.readouterr().out)
    schema(launcher).validate(document)
    assert not [*tmp_path.iterdir()]
    text = json.dumps(document)
    shape = "--nnodes 2 --nproc-per-node 8"
    assert shape in text
    if launcher == "kubernetes":
        pod = document["spec"]["replicatedJobs"][0]["template"]["spec"]
        assert pod["parallelism"] == pod["completions"] == 2
        assert (
            pod["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 8
        )
        name = document["metadata"]["name"]
        assert f"--master-addr {name}-ranks-0-0.{name} " in text
        assert document["spec"]["suspend"] is True
    else:
        assert document["resources"]["accelerators"] == "H100:8"
        assert document["num_nodes"] == 2
        assert document["volumes"] == {str(tmp_path): "store"}


def test_a_run_is_submitted_shown_and_cancelled(tmp_path, commands, capsys) -> None:
    commands("kubectl")
    assert train([*options("kubernetes", tmp_path), f"run.dir={tmp_path}/runs/one"]) == 0
    run = tmp_path / "runs" / "one"
    job = job_of(run)
    assert job is not None
    checked, removed, created = commands.given()
    assert checked[0] == ["create", "--dry-run=server", "-f", "-"]
    schema("kubernetes").validate(yaml.safe_load(checked[1]))
    assert removed[0][:3] == ["delete", "jobset", "--ignore-not-found"]
    assert created[0] == ["create", "-f", job["file"]]
    assert yaml.safe_load(Path(job["file"]).read_text()) == yaml.safe_load(checked[1])
    assert (run / "config.yaml").is_file()
    item = {"metadata": {"name": job["name"]}, "status": {"replicatedJobsStatus": [{"active": 1}]}}
    commands("kubectl", items=[item])
    assert states_of([run]) == {run: "RUNNING"}
    assert status([str(run)]) == 0
    assert "running" in capsys.readouterr().out
    assert train([*options("kubernetes", tmp_path), f"run.dir={run}"]) == 2
    assert f"the run is in Kubernetes already: {job['name']} is RUNNING" in capsys.readouterr().err
    assert cancel([str(run)]) == 0
    assert f"job {job['name']}, which was RUNNING" in capsys.readouterr().out
    assert commands.given()[-1][0][:2] == ["delete", "jobset"]
    assert commands.given()[-1][0][-1] == job["name"]


@pytest.mark.ci("kubernetes-kubectl-1")
@pytest.mark.parametrize(
    ("launcher", "command", "calls"), [("kubernetes", "kubectl", 1), ("skypilot", "sky", 2)]
)
def test_a_sweep_is_one_file_or_one_a_job(launcher, command, calls, tmp_path, commands) -> None:
    commands(command)
    words = [*options(launcher, tmp_path), "sweep.name=s", "seed=1,2"]
    assert train(["-m", *words]) == 0
    submitted = [w for w, _ in commands.given() if w[0] == "jobs" or w[:2] == ["create", "-f"]]
    assert len(submitted) == calls
    documents = [d for w in submitted for d in yaml.safe_load_all(Path(w[-1]).read_text())]
    assert len(documents) == 2
    for document in documents:
        schema(launcher).validate(document)
    points = [*(tmp_path / "sweeps" / "s").rglob("job.json")]
    names = {json.loads(point.read_text())["name"] for point in points}
    assert len(names) == 2
    assert all(any(name in json.dumps(document) for document in documents) for name in names)


def test_what_cannot_be_submitted_is_said(tmp_path, commands, capsys, monkeypatch) -> None:
    words = options("kubernetes", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert train(words) == 2
    assert "there is no kubectl on PATH" in capsys.readouterr().err
    commands("kubectl", error="error: You must be logged in to the server (Unauthorized)")
    assert train(words) == 2
    assert "kubectl refuses the job: error: You must be logged in" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
    bucket = f"launch.mounts={{{tmp_path}: 's3://me'}}"
    assert train([*options("skypilot", tmp_path), bucket]) == 2
    assert "can rename and append" in capsys.readouterr().err.replace("\n     ", " ")


def test_a_directory_names_no_option_of_the_command(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text('{"name": "--all", "cluster": "kubernetes"}')
    assert job_of(tmp_path) is None


@pytest.mark.nightly
def test_the_shell_of_two_machines_trains(tmp_path: Path, commands) -> None:
    """Two pods of one rank each, here, with the address of this machine for that of the first."""
    commands("kubectl")
    run = tmp_path / "runs" / "two"
    more = ["launch.nodes=2", "launch.tasks_per_node=1", "parallel.dp_shard=2", f"run.dir={run}"]
    python = [f"launch.python={sys.executable}", f"launch.port={free_port()}"]
    assert train([*options("kubernetes", tmp_path), *more, *python]) == 0
    job = job_of(run)
    assert job is not None
    pod = yaml.safe_load(Path(job["file"]).read_text())["spec"]["replicatedJobs"][0]
    command = pod["template"]["spec"]["template"]["spec"]["containers"][0]["command"]
    shell = command[2].replace(f"{job['name']}-ranks-0-0.{job['name']}", "127.0.0.1")
    assert shell != command[2]
    pods = [
        subprocess.Popen(
            [*command[:2], shell],
            env={
                **os.environ,
                "JOB_COMPLETION_INDEX": str(index),
                "PYTHONPATH": str(Path(forge.__file__).parents[1]),
            },
        )
        for index in range(2)
    ]
    assert [pod.wait(200) for pod in pods] == [0, 0]
    assert read(run / "result.json")["reason"] == "end"
