"""A rank in place of forge.worker: it dies, stops or ends as plan.json of its directory says.

plan.json: for each start, the step it comes to, and what happens then: {"rank": "kill"}, an exit
code for all ranks, or "stop", which waits for SIGUSR1.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from forge.rundir.wall_clock.ledger import Ledger


def main() -> None:
    run_dir, rank = Path(sys.argv[1]), os.environ["RANK"]
    go = run_dir / f"go_{os.environ.get('MASTER_PORT')}"  # of this start
    starts = run_dir / "starts"
    if rank == "0":
        seen = [*json.loads(starts.read_text() or "[]"), int(os.environ["WORLD_SIZE"])]
        ledger = Ledger.open(run_dir)
        ledger.begin(0)
    else:
        while not go.exists():
            time.sleep(0.005)
        seen = json.loads(starts.read_text())
    step, what = json.loads((run_dir / "plan.json").read_text())[len(seen) - 1]
    stopped: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _: stopped.append(number))
    if rank == "0":
        if step >= 0:
            ledger.step(step)
        starts.write_text(json.dumps(seen))
        go.touch()
    if isinstance(what, dict):
        dying = go.with_name(f"dying_{go.name}")
        if what.get(rank) == "kill":
            dying.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        while not dying.exists():
            time.sleep(0.005)
        time.sleep(0.5)
        os._exit(1)  # as by a lost peer
    while what == "stop" and not stopped:
        time.sleep(0.005)
    os._exit(128 + signal.SIGUSR1 if what == "stop" else what)


if __name__ == "__main__":
    main()
