"""The one-box Slurm with its database, so that sacct answers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from one_box import SEARCHED, OneBox, free_ports

NEEDED = ("slurmdbd", "mariadbd", "mariadb-install-db", "mariadb")
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
ACCESS = "create database slurm_acct; create user slurm@'127.0.0.1' identified by 'slurm'; grant all on slurm_acct.* to slurm@'127.0.0.1'"


def missing() -> str | None:
    """Why there can be no accounting here."""
    absent = [
        name for name in NEEDED if shutil.which(name, path=SEARCHED + "/usr/bin:/bin") is None
    ]
    packages = "apt-get install -y --no-install-recommends slurmdbd mariadb-server-core mariadb-client-core"
    return f"{', '.join(absent)} not installed: {packages}" if absent else None


class WithAccounting(OneBox):
    """It forgets what has ended after two seconds, as far as its own clean-up comes by."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.port, self.storage = free_ports(2)

    def settings(self, content: str) -> str:
        kept = "accounting_storage/slurmdbd\nAccountingStorageHost=localhost"
        accounting = f"AccountingStorageType={kept}\nAccountingStoragePort={self.port}\nAccountingStoragePass={self.folder}/munge.socket"
        return content.replace(NONE, accounting).replace("MinJobAge=600", "MinJobAge=2")

    def before_controller(self) -> None:
        folder, conf = self.folder, self.folder / "slurmdbd.conf"
        conf.write_text(
            DATABASE.format(folder=folder, port=self.port, storage=self.storage), encoding="utf-8"
        )
        conf.chmod(0o600)
        files = ["--no-defaults", "--user=root", f"--datadir={folder}/db"]
        make = [
            "mariadb-install-db",
            *files,
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
        ]
        subprocess.run(make, check=True, capture_output=True)
        address = [
            f"--socket={folder}/db.sock",
            f"--port={self.storage}",
            "--bind-address=127.0.0.1",
            f"--pid-file={folder}/mariadb.pid",
        ]
        self.daemon(
            "mariadbd",
            *files,
            *address,
            "--innodb-buffer-pool-size=64M",
            "--innodb-flush-log-at-trx-commit=0",
        )
        sql = ["mariadb", "--no-defaults", "--user=root", f"--socket={folder}/db.sock", "--execute"]
        self.wait_for(
            lambda: subprocess.run([*sql, "select 1"], capture_output=True).returncode == 0
        )
        subprocess.run([*sql, ACCESS], check=True, capture_output=True)
        self.daemon("slurmdbd", "-D")
        self.wait_for(lambda: "Cluster" in self.ask("sacctmgr", "show", "cluster"))
        self.ask("sacctmgr", "-i", "add", "cluster", "forge")
