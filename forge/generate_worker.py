"""`python -m forge.generate_worker FOLDER [TRUSTED ...]`: one rank of `forge.generate --parallel`.

The folder has a config with the layout, and what is to be written.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from forge.generate import write_texts
from forge.launch.local.child import die_with_parent, end_on_interrupt, leave
from forge.launch.local.verb_ranks import REQUEST, run_rank
from forge.rundir.files import read_json
from forge.rundir.saved_config import CONFIG, load_config


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code is 0, 1 for a failure, 2 for the user's mistake."""
    return run_rank(_write, argv)


def _write(folder: Path, trust: Sequence[str]) -> None:
    from forge.parallel.join import join_ranks
    from forge.training.models import load_on_ranks
    from forge.training.process import set_up
    from forge.training.writing import Writer

    # Torch warns of tensors gathered with two collectives, harmless in this verb.
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
    config, request = load_config(folder / CONFIG, trust=trust), read_json(folder / REQUEST)
    device = set_up(config)
    ranks = join_ranks(config, device)
    trained = load_on_ranks(Path(request["path"]), config, ranks, device)
    agree = ranks.copy_from_main
    writer = Writer(trained.model, trained.tokenizer, device, agree=agree, **request["how"])
    out = Path(request["out"]) if request["out"] else None
    write_texts(writer, request["prompts"], out, main=ranks.main)
    ranks.close()


if __name__ == "__main__":
    end_on_interrupt()
    die_with_parent()
    leave(main())
