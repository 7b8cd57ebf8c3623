"""`python -m forge.evaluate_worker FOLDER [TRUSTED ...]`: one rank of `forge.evaluate` on a layout.

The folder has a config with the layout, and what is to be evaluated.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from forge.launch.local.child import die_with_parent, end_on_interrupt, leave
from forge.launch.local.verb_ranks import REQUEST, RESULT, run_rank
from forge.rundir.files import read_json, write_json
from forge.rundir.saved_config import CONFIG, load_config


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code is 0, 1 for a failure, 2 for the user's mistake."""
    return run_rank(_evaluate, argv)


def _evaluate(folder: Path, trust: Sequence[str]) -> None:
    from forge.parallel.join import join_ranks
    from forge.training.evaluating import evaluated
    from forge.training.models import load_on_ranks
    from forge.training.process import set_up

    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
    config, request = load_config(folder / CONFIG, trust=trust), read_json(folder / REQUEST)
    device = set_up(config)
    ranks = join_ranks(config, device)
    trained = load_on_ranks(Path(request["path"]), config, ranks, device)
    summaries = evaluated(config, request, trained, ranks)
    if ranks.main:
        write_json(folder / RESULT, summaries)
    ranks.close()


if __name__ == "__main__":
    end_on_interrupt()
    die_with_parent()
    leave(main())
