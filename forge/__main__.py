"""`python -m forge VERB ...`, also installed as `forge VERB ...`: one of forge's verbs; without one
the list of them.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from forge import cli, verbs
from forge.config.problems import COMMAND_LINE, closest, did_you_mean, refusal

WORDS = {
    word: ours
    for ours, words in {
        "forge train eval.enabled=true evaluates while it trains": "eval evaluate test validate",
        "forge runs lists the runs": "ls list ps",
        "forge train -m optimizer.lr=1e-3,1e-4 runs a sweep": "sweep multirun tune",
        "forge serve RUN answers scripts and browsers": "api server",
        "forge generate RUN --prompt TEXT": "sample infer inference predict",
        "forge train objective=sft data=chat data.path=FILE": "finetune sft",
        "forge train objective=dpo data=chat_preference data.path=FILE": "dpo",
        "forge train": "fit pretrain run",
    }.items()
    for word in words.split()
}
"""What to type for the verbs of other tools."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb; 2 for an unknown verb."""
    name, *words = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    commands = verbs.verbs()
    if name in ("-h", "--help", "help"):
        return cli.print_text(verbs.overview(commands))
    if name == "--version":
        name, words = "train", ["--version"]
    if name not in commands:
        return cli.refuse(lambda: _unknown(name, list(commands)))
    sys.argv = [f"forge {name}", *words]  # read by verbs called without arguments
    return importlib.import_module(commands[name].module).main()


def _unknown(name: str, known: Sequence[str]) -> int:
    is_override = "=" in name or name.startswith(("-", "+", "~"))
    meant = did_you_mean([f"forge {near}" for near in closest(name, known)])
    meant = WORDS.get(name, "") or meant
    hint = f"forge train {name} ..." if is_override else meant or "forge --help lists them"
    raise refusal(name, "forge has no such verb.", hint, COMMAND_LINE)


if __name__ == "__main__":
    sys.exit(main())
