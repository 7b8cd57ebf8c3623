"""Keys under launch.sbatch: those that forge sets itself are refused, all others reach sbatch."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from forge.config.launch import Slurm
from forge.config.sbatch import SOURCES, given
from forge.launch.slurm import jobs as slurm
from forge.planning.allocation import allocation_faults

ITSELF = "forge sets this key of sbatch itself."
SPOILS = "forge cannot work with this key of sbatch."


@pytest.mark.parametrize(
    ("key", "value", "what", "fix"),
    [
        ("partition", "gpu", ITSELF, "leave it out: it is launch.partition"),
        ("--job-name", "x", ITSELF, "leave it out: it is run.name, or sweep.name"),
        ("exclusive", "", ITSELF, "leave it out: it is launch.exclusive=true"),
        ("gres", "nvme:1,gpu:8", ITSELF, "leave it out: it is launch.gpus_per_node and launch.gpu"),
        ("wait", "", SPOILS, "launch.wait=true"),
    ],
)
def test_a_key_that_forge_sets_or_cannot_work_with_is_refused(
    key: str, value: str, what: str, fix: str
) -> None:
    (fault,) = allocation_faults(Slurm(sbatch={key: value}))
    assert (fault.key, fault.what) == (f"launch.sbatch.{key}={value}", what)
    assert fault.fix.startswith(fix)


def test_all_other_keys_reach_the_script_and_a_flag_has_no_value() -> None:
    kept = {"mail_type": "FAIL", "gres": "nvme:1", "exclusive": "user", "container_image": "a.sqsh"}
    typed = {key.replace("_", "-"): value for key, value in kept.items()}
    section = Slurm(sbatch={**typed, "hold": "True", "--spread-job": ""})
    assert list(allocation_faults(section)) == []
    assert given(section) == {**kept, "hold": True, "spread_job": True}


@pytest.mark.slurm
@pytest.mark.usefixtures("one_box_slurm")
def test_a_real_sbatch_knows_the_keys_and_takes_the_script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = subprocess.run(["sbatch", "--help"], capture_output=True, text=True, check=True).stdout
    unknown = {key for key in SOURCES if f"--{key.replace('_', '-')}" not in page}
    assert unknown <= {"ntasks_per_gpu", "open_mode"}, "which its help leaves out"
    sbatch = {"hold": "true", "comment": "it's two words", "nice": "5"}
    section = Slurm(gpus_per_node=0, sbatch=sbatch, mem="1GB")
    slurm.scripts([(tmp_path / "run", 2)], section, name="run", folder=tmp_path / "slurm")
    assert capsys.readouterr().err.startswith("sbatch --test-only says: Job ")
    assert not list(tmp_path.iterdir())
