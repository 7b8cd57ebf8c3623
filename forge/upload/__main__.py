"""`python -m forge.upload RUN [ADDRESS]`: copy a run to a remote store: its files, its page, and
its newest checkpoint.

Examples:
    python -m forge.upload runs/mine s3://bucket/runs
    python -m forge.upload runs/mine
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from forge import cli
from forge.config.places import is_remote
from forge.config.problems import COMMAND_LINE, refusal
from forge.report.run_page import write_page
from forge.rundir import directory
from forge.rundir.checkpoints import saved_folder
from forge.rundir.remote.copies import Copies, Retention
from forge.rundir.remote.runs import place_of
from forge.rundir.remote.store import RemoteError
from forge.rundir.saved_config import is_run, read_plain

ABOUT = (
    "Copy a run to a remote store; without ADDRESS to the one of checkpoint.remote. "
    "What is there already and has not changed is not copied again."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Copy a run; 2 for a store that cannot be used."""
    parser = cli.Parser("forge.upload", ABOUT)
    parser.add_argument("run", type=Path, help="a run directory")
    parser.add_argument("address", nargs="?", metavar="ADDRESS", help="as s3://bucket/runs")
    options = parser.parse_args(argv)
    return cli.refuse(lambda: _upload(options.run, options.address))


def _upload(run: Path, address: str | None) -> int:
    if not is_run(run):
        message, hint = "it is no run directory.", "give the directory of a run"
        raise refusal(str(run), message, hint, COMMAND_LINE)
    section = read_plain(run).get("checkpoint") or {}
    remote = address or section.get("remote")
    if not remote:
        message = "no store is given, and the run has none."
        raise refusal("ADDRESS", message, f"{run} s3://bucket/runs", COMMAND_LINE)
    if not is_remote(remote):
        message = "it is no address of a store."
        raise refusal(remote, message, "as s3://bucket/runs", COMMAND_LINE)
    run = run.resolve()
    metric = str((read_plain(run).get("eval") or {}).get("metric", ""))
    retention = Retention(
        last=section.get("keep_last_n", 0), best=section.get("keep_best", 0), metric=metric
    )
    try:
        store = place_of(run, remote)
        write_page(run)
        step = Copies(run, saved_folder(run), store, directory.run_id(run), retention).copy_now()
    except RemoteError as error:
        raise refusal(remote, f"{error.address}: {error.why}.", error.hint, COMMAND_LINE) from None
    content = f"step {step} and the files of the run" if step else "the files of the run"
    print(f"{store.address}: {content}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
