"""`python -m forge VERB ...`, also installed as `forge VERB ...`: one of forge's verbs; without one
the list of them.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from forge import cli, verbs
from forge.config.problems import COMMAND_LINE, closest, did_you_mean, refusal


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the verb does; 2 for a word that is none."""
    name, *words = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    known = verbs.verbs()
    if name in ("-h", "--help", "help"):
        return cli.show(verbs.page(known))
    if name == "--version":
        name, words = "train", ["--version"]
    if name not in known:
        return cli.refuse(lambda: _unknown(name, list(known)))
    sys.argv = [f"forge {name}", *words]  # what a verb reads that is given none
    return importlib.import_module(known[name].module).main()


def _unknown(name: str, known: Sequence[str]) -> int:
    is_override = "=" in name or name.startswith(("-", "+", "~"))
    meant = did_you_mean([f"forge {near}" for near in closest(name, known)])
    fix = f"forge train {name} ..." if is_override else meant or "forge --help lists them"
    raise refusal(name, "forge has no such verb.", fix, COMMAND_LINE)


if __name__ == "__main__":
    sys.exit(main())
