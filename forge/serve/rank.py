"""`python -m forge.serve.rank FOLDER [TRUSTED ...]`: one rank of `forge.serve --parallel`.

The main rank answers requests; all ranks make its steps. The folder has a config with the layout,
and the options of the server.
"""

from __future__ import annotations

import argparse
import logging
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forge.launch.local.child import die_with_parent, end_on_interrupt, leave
from forge.launch.local.processes import stop_signals
from forge.launch.local.verb_ranks import REQUEST, run_rank
from forge.rundir.files import read_json
from forge.rundir.saved_config import CONFIG, load_config


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code is 0, 1 for a failure, 2 for the user's mistake."""
    return run_rank(_serve, argv)


def _serve(folder: Path, trust: Sequence[str]) -> None:
    from forge.parallel.join import join_ranks
    from forge.serve.loading import engine_of, server_of
    from forge.serve.lockstep import Lead, follow
    from forge.training.models import load_on_ranks
    from forge.training.process import set_up

    # Torch warns of tensors gathered with two collectives, harmless in this verb.
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
    config, request = load_config(folder / CONFIG, trust=trust), read_json(folder / REQUEST)
    options = argparse.Namespace(**request["options"])
    device = set_up(config)
    ranks = join_ranks(config, device)
    trained = load_on_ranks(Path(request["path"]), config, ranks, device)
    lead = Lead(ranks.from_main)
    engine = engine_of(trained, options, lead=lead, agree=ranks.copy_from_main)
    if ranks.main:
        serve_engine(server_of(trained, engine, request["name"], options), options)
    else:
        for number in stop_signals():  # the main rank ends its answers first
            signal.signal(number, signal.SIG_IGN)
        how, size, length = engine.how, engine.slots, engine.length
        follow(trained.model, size, length, how, device, lambda: ranks.from_main(None))
    ranks.close()


def serve_engine(server: Any, options: argparse.Namespace) -> None:
    """Serve on the main rank until a signal, or the loss of another rank, which is raised."""
    from forge.serve.__main__ import LOCAL, listening_socket, run_server

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    with listening_socket(options.host or LOCAL, options.port) as listening:
        run_server(server, [server.engine], listening, options)
    if server.engine.error is not None:
        raise server.engine.error


if __name__ == "__main__":
    end_on_interrupt()
    die_with_parent()
    leave(main())
