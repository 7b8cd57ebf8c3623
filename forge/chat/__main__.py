"""`python -m forge.chat RUN`: talk to a trained model in the terminal.

Examples:
    python -m forge.chat runs/mine
    python -m forge.chat runs/mine --system 'Be brief.' --temperature 0.7 --tokens 400
    python -m forge.chat runs/mine --best --top-k 0 --top-p 0.95 --seed 1
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from forge.compose.trust import for_run
from forge.config.eval import EMA, TRAINED
from forge.generate import add_sampling, checkpoint_path, reader


def main(argv: Sequence[str] | None = None) -> int:
    """Talk until /quit or the end of the input; exit 2 for a run without a usable checkpoint."""
    parser = reader("forge.chat", "Talk to the newest checkpoint of a run. /help lists commands.")
    add = parser.add_argument
    add("--system", metavar="TEXT", help="the system turn before the conversation")
    add("--device", metavar="NAME", help="cpu, cuda, cuda:N or mps (default: as in the run)")
    add("--tokens", type=int, default=512, help="tokens of an answer at most (default 512)")
    add_sampling(parser)
    stops = "end an answer before this string, or the first of several"
    add("--stop", action="append", default=[], metavar="TEXT", help=stops)
    add("--seed", type=int, default=0, help="of the first answer; +1 for each one more (default 0)")
    try:
        return _chat(parser.parse_args(argv))
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2


def _chat(options: argparse.Namespace) -> int:
    if options.tokens < 1:
        raise ValueError(f"--tokens {options.tokens}: must be at least 1")
    if "" in options.stop:
        raise ValueError("--stop '': every text begins with it; give a text that is not empty")
    path = checkpoint_path(options)
    weights = EMA if options.ema else TRAINED
    from forge.chat.talk import Talk
    from forge.training.checkpoints.restore import load_run
    from forge.training.loaded import chosen_device

    device = chosen_device(options.device)
    trained = load_run(path, trust=for_run(path, options.trust), weights=weights, device=device)
    return Talk(trained, options).run()


if __name__ == "__main__":
    sys.exit(main())
