"""`python -m forge.parity.worker FOLDER`: one rank of one side of forge.parity.

The main rank leaves what was computed in the folder.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from forge.launch.local.child import die_with_parent, end_on_interrupt
from forge.rundir.files import read_json
from forge.rundir.outcome import report_failure
from forge.rundir.saved_config import load_own


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code is 0, 1 for a failure, 2 for the user's mistake."""
    folder = Path((sys.argv[1:] if argv is None else argv)[0])
    try:
        _measure(folder)
    except Exception as error:
        return report_failure(folder, error)[0]
    return 0


def _measure(folder: Path) -> None:
    import torch

    from forge.parallel.join import join_ranks
    from forge.parity.side import measure
    from forge.training.data import check_vocabulary, prepare_data
    from forge.training.process import set_up

    # torch warns of tensors put together by two collectives: harmless in a parity check.
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
    config, settings = load_own(folder), read_json(folder / "parity.json")
    device = set_up(config)
    torch.set_float32_matmul_precision("highest")  # else fp32 on a GPU would be TF32
    torch.manual_seed(config.seed)
    ranks = join_ranks(config, device)
    prepared = prepare_data(config, ranks)
    check_vocabulary(config, prepared)
    settings["dtype"] = getattr(torch, settings["dtype"])
    settings["tokenizer"] = prepared.tokenizer
    record = measure(config, ranks, prepared.train, device=device, **settings)
    if ranks.main:
        record.save(folder)
    ranks.close()


if __name__ == "__main__":
    end_on_interrupt()
    die_with_parent()
    sys.exit(main())
