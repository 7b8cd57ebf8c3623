"""What is known of jobs that the queue has forgotten, where Slurm keeps accounts."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import accounting
import one_box
import pytest

from forge.launch.slurm import jobs as slurm

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


@pytest.fixture
def with_accounting(monkeypatch: pytest.MonkeyPatch) -> Iterator[accounting.WithAccounting]:
    why_not = one_box.missing() or accounting.missing()
    if why_not:
        pytest.skip(f"no Slurm with accounting: {why_not}")
    folder = Path(tempfile.mkdtemp(prefix="forge-slurm-"))
    box = accounting.WithAccounting(folder)
    monkeypatch.setenv("SLURM_CONF", str(box.conf))
    try:
        box.start()
        yield box
    finally:
        box.stop()
        shutil.rmtree(folder, ignore_errors=True)


def test_sacct_knows_how_jobs_ended_that_squeue_has_forgotten(
    with_accounting: accounting.WithAccounting,
) -> None:
    script = "sleep $SLURM_ARRAY_TASK_ID; test $SLURM_ARRAY_TASK_ID = 0"
    submit = ["sbatch", "--parsable", "--array=0,1,600", "--output=/dev/null", f"--wrap={script}"]
    job = subprocess.run(submit, capture_output=True, text=True, check=True).stdout.strip()
    jobs = [f"{job}_{place}" for place in (0, 1, 600)]
    with_accounting.wait_for(lambda: slurm.states(jobs).get(jobs[2]) == "RUNNING", 60)
    slurm.cancel([jobs[2]])
    ends = {jobs[0]: "COMPLETED", jobs[1]: "FAILED", jobs[2]: "CANCELLED"}
    assert slurm.wait(jobs, poll=0.5) == ends
    with_accounting.wait_for(
        lambda: not with_accounting.ask("squeue", "--noheader", "--states=all").strip(), 180
    )
    assert slurm.states(jobs) == ends
    assert slurm.states(["999999"]) == {}
