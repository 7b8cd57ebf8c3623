"""Slurm's commands: none, some, a controller that hangs or refuses, no accounting, all well."""

from __future__ import annotations

from pathlib import Path

import pytest

from forge.doctor.finding import MISSING, OK, WARN
from forge.doctor.slurm import COMMANDS, slurm

ONLY = "only needed for launch=slurm"
PARTITIONS = "echo 'gpu* up 4'; echo 'cpu up 9'; echo 'gpu* up 1'"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Put commands on a PATH of their own: name to shell text."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def put(**commands: str) -> None:
        for name in COMMANDS:
            (tmp_path / name).write_text(f"#!/bin/sh\n{commands.get(name, 'exit 0')}\n")
            (tmp_path / name).chmod(0o755)

    return put


def test_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    found = slurm()
    assert (found.status, found.needed, found.found) == (
        MISSING,
        False,
        "no sinfo, sbatch, srun, sacct on PATH",
    )
    assert found.fix == f"{ONLY}: use a login node, or load the site's slurm module"


def test_some(tmp_path: Path, site, monkeypatch: pytest.MonkeyPatch):
    site()
    (tmp_path / "sacct").unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    found = slurm()
    assert (found.status, found.found) == (WARN, "sinfo, sbatch, srun on PATH, but no sacct")
    assert found.fix == f"install the rest of Slurm's client commands; {ONLY}"


def test_all_well(site):
    site(sinfo=PARTITIONS)
    found = slurm()
    assert (found.status, found.found, found.fix) == (OK, "partitions: gpu*, cpu", "")


def test_a_controller_that_does_not_answer(site):
    site(sinfo="sleep 30")
    found = slurm(seconds=0.5)
    assert (found.status, found.fix) == (WARN, f"ask the administrator; {ONLY}")
    assert (
        found.found == "sinfo gives no answer in 0.5 s: the controller is down or cannot be reached"
    )


def test_a_controller_that_cannot_be_found(site):
    site(sinfo="echo 'slurm_load_partitions: Unable to contact slurm controller' >&2; exit 1")
    found = slurm()
    assert (found.status, found.fix) == (WARN, f"check SLURM_CONF; {ONLY}")
    assert found.found == "sinfo fails: slurm_load_partitions: Unable to contact slurm controller"


def test_no_partition(site):
    site(sinfo="exit 0")
    assert (slurm().status, slurm().found) == (WARN, "sinfo lists no partition that you may use")


def test_no_accounting(site):
    site(sinfo=PARTITIONS, sacct="echo 'Slurm accounting storage is disabled' >&2; exit 1")
    found = slurm()
    assert (found.status, found.found) == (
        WARN,
        "partitions: gpu*, cpu; sacct fails: Slurm accounting storage is disabled",
    )
    assert found.fix.startswith("the end of a job is then learned from squeue")


def test_accounting_that_hangs(site):
    site(sinfo=PARTITIONS, sacct="sleep 30")
    assert slurm(seconds=0.5).found == "partitions: gpu*, cpu; sacct fails: no answer in 0.5 s"
