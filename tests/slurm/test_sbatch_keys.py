"""What can be wrong with launch.sbatch and its like where no Slurm is asked: keys that are forge's
own, typing errors, syntax.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from forge.config.launch import Slurm
from forge.config.sbatch import KNOWN, LONG, OURS, given
from forge.launch.slurm import jobs as slurm
from forge.plan.allocation import faults

ITSELF = "forge sets this key of sbatch itself."
MEMORY = (
    "memory is a whole number with K, M, G or T behind it; without a letter it is in megabytes."
)
NO_NAME = "that is no name: it is empty, or has spaces."
GPUS = "it asks for GPUs, which forge does itself."
TWO_WAYS = "sbatch takes one way to say how much memory, and {} is another."
FEATURES = "Slurm takes no spaces between features: a&b is a node with both, a|b one with either."


def found(**options: Any) -> list[tuple[str, str, str]]:
    return [(fault.key, fault.what, fault.fix) for fault in faults(Slurm(**options))]


@pytest.mark.parametrize(
    ("key", "value", "what", "fix"),
    [
        ("partition", "gpu", ITSELF, "leave it out: it is launch.partition"),
        ("job-name", "x", ITSELF, "leave it out: it is run.name, or sweep.name"),
        ("mem", "5G", ITSELF, "leave it out: it is launch.mem"),
        ("cpus_per_task", "5", ITSELF, "leave it out: it is launch.cpus_per_task"),
        (
            "cpus-per-gpu",
            "5",
            ITSELF,
            "leave it out: it is launch.cpus_per_task, since each rank has one GPU",
        ),
        (
            "--gpus-per-task",
            "1",
            ITSELF,
            "leave it out: it is launch.gpus_per_node, with launch.gpu_type for their type",
        ),
        (
            "gpus",
            "h200:8",
            ITSELF,
            "leave it out: it is launch.gpus_per_node, with launch.gpu_type for their type",
        ),
        ("no-requeue", "", ITSELF, "leave it out: it is launch.max_requeues"),
        ("time", "4:00:00", ITSELF, "leave it out: it is launch.time, in minutes"),
        ("exclusive", "", ITSELF, "leave it out: it is launch.exclusive=true"),
        ("exclusive", "true", ITSELF, "leave it out: it is launch.exclusive=true"),
        ("gres", "gpu", GPUS, "launch.gpus_per_node=1"),
        ("gres", "gpu:h200:8", GPUS, "launch.gpus_per_node=8 launch.gpu_type=h200"),
        ("gres", "nvme:1,gpu:4", GPUS, "launch.gpus_per_node=4 'launch.sbatch.gres=\"nvme:1\"'"),
        ("tres-per-task", "cpu=4,gres/gpu=1", GPUS, "leave it out: each rank has one GPU"),
        ("wait", "", "sbatch would not return before the job's end.", "launch.wait=true"),
        (
            "wrap",
            "ls",
            "the command of the script is forge's.",
            "launch.setup, for lines of shell before it",
        ),
        ("parsable", "", "sbatch would not say the job's id as forge reads it.", "leave it out"),
        ("quiet", "true", "sbatch would not say the job's id as forge reads it.", "leave it out"),
        ("help", "", "sbatch would print that, and submit nothing.", "leave it out"),
        (
            "test-only",
            "",
            "sbatch would submit nothing.",
            "launch.dry_run=true, which shows what sbatch --test-only says",
        ),
        (
            "clusters",
            "b",
            "squeue and scancel would look for the job in this cluster.",
            "export SLURM_CLUSTERS, which all of them read",
        ),
        (
            "reservaton",
            "x",
            "sbatch has no option --reservaton.",
            "did you mean launch.sbatch.reservation?",
        ),
        (
            "mail_typ",
            "FAIL",
            "sbatch has no option --mail-typ.",
            "did you mean launch.sbatch.mail-type?",
        ),
        ("p", "gpu", "sbatch has no option --p.", "did you mean launch.partition?"),
        ("part", "gpu", "sbatch has no option --part.", "did you mean launch.partition?"),
        (
            "cons",
            "x",
            "sbatch has no option --cons.",
            "did you mean launch.sbatch.consolidate-segments or launch.constraint?",
        ),
        (
            "a b",
            "c",
            "that is no option of sbatch.",
            "launch.sbatch.mail-type=FAIL, such as sbatch --help lists them",
        ),
        (
            "hold",
            "yes",
            "--hold is a flag and has no value.",
            "launch.sbatch.hold=true, or leave it out",
        ),
        (
            "reservation",
            "",
            "--reservation needs a value.",
            "launch.sbatch.reservation=<value>, or leave it out",
        ),
        ("comment", "a\nb", "a value is on one line.", "one without a line break"),
        ("spank", "a\nb", "a value is on one line.", "one without a line break"),
        ("mem-per-cpu", "lots", MEMORY, "launch.sbatch.mem-per-cpu=4G"),
    ],
)
def test_a_key_that_cannot_be_given_to_sbatch_is_refused(
    key: str, value: str, what: str, fix: str
) -> None:
    assert found(sbatch={key: value}) == [(f"launch.sbatch.{key}={value}", what, fix)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"mem": "5G", "sbatch": {"mem-per-cpu": "4G"}},
            [
                (
                    "launch.sbatch.mem-per-cpu=4G",
                    TWO_WAYS.format("launch.mem=5G"),
                    "leave one of them out",
                )
            ],
        ),
        (
            {"sbatch": {"mem_per_cpu": "4G", "mem-per-gpu": "4G"}},
            [
                (
                    "launch.sbatch.mem_per_cpu=4G",
                    TWO_WAYS.format("launch.sbatch.mem-per-gpu"),
                    "leave one of them out",
                ),
                (
                    "launch.sbatch.mem-per-gpu=4G",
                    TWO_WAYS.format("launch.sbatch.mem_per_cpu"),
                    "leave one of them out",
                ),
            ],
        ),
        (
            {"sbatch": {"mail-type": "FAIL", "mail_type": "END"}},
            [
                (
                    "launch.sbatch.mail-type=FAIL",
                    "the same key is there twice, with - and with _.",
                    "leave one out",
                ),
                (
                    "launch.sbatch.mail_type=END",
                    "the same key is there twice, with - and with _.",
                    "leave one out",
                ),
            ],
        ),
        (
            {"exclusive": True, "sbatch": {"oversubscribe": ""}},
            [
                (
                    "launch.sbatch.oversubscribe=",
                    "launch.exclusive=true shares the machines with no other job.",
                    "leave one of them out",
                )
            ],
        ),
        (
            {"exclusive": True, "sbatch": {"exclusive": "user"}},
            [("launch.sbatch.exclusive=user", ITSELF, "leave it out: it is launch.exclusive=true")],
        ),
        (
            {"mem": "lots"},
            [("launch.mem=lots", MEMORY, "launch.mem=64G, or 0 for all of a machine")],
        ),
        (
            {"mem": "1.5G"},
            [("launch.mem=1.5G", MEMORY, "launch.mem=64G, or 0 for all of a machine")],
        ),
        (
            {"constraint": "a b"},
            [("launch.constraint=a b", FEATURES, "'launch.constraint=\"a&b\"'")],
        ),
        (
            {"constraint": "[a | b] c"},
            [("launch.constraint=[a | b] c", FEATURES, "'launch.constraint=\"[a|b]&c\"'")],
        ),
        (
            {"partition": "a b"},
            [("launch.partition=a b", NO_NAME, "launch.partition=null for the cluster's default")],
        ),
        ({"qos": ""}, [("launch.qos=", NO_NAME, "launch.qos=null for the cluster's default")]),
        (
            {"gpu_type": "gpu:h200"},
            [
                (
                    "launch.gpu_type=gpu:h200",
                    "a type is one word; how many GPUs there are is said apart.",
                    "launch.gpu_type=h200 launch.gpus_per_node=8",
                )
            ],
        ),
        (
            {"gpu_type": "h200", "gpus_per_node": 0},
            [
                (
                    "launch.gpu_type=h200",
                    "the job takes no GPUs: launch.gpus_per_node=0.",
                    "launch.gpu_type=null",
                )
            ],
        ),
    ],
)
def test_options_that_contradict_each_other_or_are_no_syntax_of_slurm(
    options: dict[str, Any], expected: list[tuple[str, str, str]]
) -> None:
    assert found(**options) == expected


@pytest.mark.parametrize(
    "sbatch",
    [
        {
            "reservation": "mine",
            "mail-user": "me@here",
            "licenses": "a:1",
            "exclude": "a[1-3]",
            "nodelist": "b",
            "comment": "two words",
        },
        {
            "dependency": "afterok:12",
            "nice": "",
            "gpu-bind": "none",
            "hint": "nomultithread",
            "export": "NONE",
            "gres": "nvme:1",
        },
        {
            "mem-per-cpu": "4G",
            "exclusive": "user",
            "tres-per-task": "cpu=4",
            "hold": "true",
            "oversubscribe": "",
            "nice": "100",
        },
        {
            "container-image": "a.sqsh",
            "container-env": "A",
            "container_mounts": "a:b",
            "x11": "",
            "tmpfs": "1",
            "uenv": "pytorch",
        },
    ],
)
def test_harmless_keys_and_those_of_plugins_pass(sbatch: dict[str, str]) -> None:
    assert found(sbatch=sbatch) == []


def test_a_flag_has_no_value_however_it_is_typed() -> None:
    assert given(
        Slurm(
            sbatch={
                "hold": "True",
                "--spread-job": "true",
                "reboot": "",
                "mail-type": "FAIL",
                "comment": "true",
            }
        )
    ) == {
        "hold": True,
        "spread_job": True,
        "reboot": True,
        "mail_type": "FAIL",
        "comment": "true",
    }


@pytest.mark.parametrize("memory", ["64G", "64GB", "100mb", "500000", "0", "2T"])
def test_memory_as_slurm_reads_it(memory: str) -> None:
    assert found(mem=memory) == []


@pytest.mark.slurm
@pytest.mark.usefixtures("one_box_slurm")
def test_all_long_options_of_this_sbatch_are_known() -> None:
    assert shutil.which("sbatch")
    page = subprocess.run(["sbatch", "--help"], capture_output=True, text=True, check=True).stdout
    told = {
        word.split("=")[0].split("[")[0].strip("-,").replace("-", "_")
        for word in page.split()
        if word.startswith("--")
    }
    assert told - {"mem_per_cpu", ""} <= KNOWN
    assert set(LONG.values()) <= KNOWN
    assert {*OURS} <= KNOWN


@pytest.mark.slurm
@pytest.mark.usefixtures("one_box_slurm")
def test_what_is_shown_with_a_real_slurm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    section = Slurm(
        gpus_per_node=0,
        sbatch={"hold": "true", "comment": "it's two words", "nice": "5"},
        mem="1GB",
    )
    slurm.scripts([(tmp_path / "run", 2)], section, name="run", folder=tmp_path / "slurm")
    assert capsys.readouterr().err.startswith("sbatch --test-only says: Job ")
    assert (
        subprocess.run(
            ["squeue", "--noheader", "--name=run"], capture_output=True, text=True
        ).stdout
        == ""
    )
    assert not list(tmp_path.iterdir())
