"""What is known of jobs that the queue has forgotten, where Slurm keeps accounts in a database."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import one_box
import pytest

from forge.launch.slurm import jobs as slurm

pytestmark = [pytest.mark.slurm, pytest.mark.nightly]
NEEDED = ("slurmdbd", "mariadbd", "mariadb-install-db", "mariadb")
PACKAGES = "slurmdbd mariadb-server-core mariadb-client-core"
NONE = "AccountingStorageType=accounting_storage/none"
DATABASE = """AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
DbdHost=localhost
DbdPort={port}
SlurmUser=root
LogFile={folder}/slurmdbd.log
PidFile={folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={storage}
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct
"""
ACCESS = "create database slurm_acct; create user slurm@'127.0.0.1' identified by 'slurm'; "
ACCESS += "grant all on slurm_acct.* to slurm@'127.0.0.1'"


class WithAccounting(one_box.OneBox):
    """It forgets what has ended after two seconds, as far as its own clean-up comes by."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.port, self.storage = one_box.free_ports(2)

    def settings(self, content: str) -> str:
        kept = "AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageHost=localhost"
        kept += f"\nAccountingStoragePort={self.port}"
        kept += f"\nAccountingStoragePass={self.folder}/munge.socket"
        return content.replace(NONE, kept).replace("MinJobAge=600", "MinJobAge=2")

    def before_controller(self) -> None:
        folder, conf = self.folder, self.folder / "slurmdbd.conf"
        conf.write_text(DATABASE.format(folder=folder, port=self.port, storage=self.storage))
        conf.chmod(0o600)
        files = ["--no-defaults", "--user=root", f"--datadir={folder}/db"]
        access = ["--auth-root-authentication-method=normal", "--skip-test-db"]
        subprocess.run(["mariadb-install-db", *files, *access], check=True, capture_output=True)
        places = [f"--socket={folder}/db.sock", f"--pid-file={folder}/mariadb.pid"]
        address = [f"--port={self.storage}", "--bind-address=127.0.0.1"]
        small = ["--innodb-buffer-pool-size=64M", "--innodb-flush-log-at-trx-commit=0"]
        self.daemon("mariadbd", *files, *places, *address, *small)
        sql = ["mariadb", "--no-defaults", "--user=root", places[0], "--execute"]
        self.wait_for(
            lambda: not subprocess.run([*sql, "select 1"], capture_output=True).returncode
        )
        subprocess.run([*sql, ACCESS], check=True, capture_output=True)
        self.daemon("slurmdbd", "-D")
        self.wait_for(lambda: "Cluster" in self.ask("sacctmgr", "show", "cluster"))
        self.ask("sacctmgr", "-i", "add", "cluster", "forge")


@pytest.fixture
def box(monkeypatch: pytest.MonkeyPatch) -> Iterator[WithAccounting]:
    path = f"{one_box.SEARCHED}/usr/bin:/bin"
    absent = [name for name in NEEDED if shutil.which(name, path=path) is None]
    if why_not := one_box.missing() or (absent and f"apt-get install -y {PACKAGES}"):
        pytest.skip(f"no Slurm with accounting: {why_not}")
    folder = Path(tempfile.mkdtemp(prefix="forge-slurm-"))
    made = WithAccounting(folder)
    monkeypatch.setenv("SLURM_CONF", str(made.conf))
    try:
        made.start()
        yield made
    finally:
        made.stop()
        shutil.rmtree(folder, ignore_errors=True)


def test_sacct_knows_how_jobs_ended_that_squeue_has_forgotten(box: WithAccounting) -> None:
    script = "sleep $SLURM_ARRAY_TASK_ID; test $SLURM_ARRAY_TASK_ID = 0"
    submit = ["sbatch", "--parsable", "--array=0,1,600", "--output=/dev/null", f"--wrap={script}"]
    job = subprocess.run(submit, capture_output=True, text=True, check=True).stdout.strip()
    jobs = [f"{job}_{place}" for place in (0, 1, 600)]
    box.wait_for(lambda: slurm.states(jobs).get(jobs[2]) == "RUNNING", 60)
    slurm.cancel([jobs[2]])
    ends = {jobs[0]: "COMPLETED", jobs[1]: "FAILED", jobs[2]: "CANCELLED"}
    assert slurm.wait(jobs, poll=0.5) == ends
    box.wait_for(lambda: not box.ask("squeue", "--noheader", "--states=all").strip(), 180)
    assert slurm.states(jobs) == ends
    assert slurm.states(["999999"]) == {}
