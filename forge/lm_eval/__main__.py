"""`python -m forge.lm_eval OPTIONS`: lm-eval's own command line, with runs of forge as models.

lm-eval has no way to find models of other packages, so `forge` is added to its table here first.

Examples:
    python -m forge.lm_eval --model forge --model_args run=runs/mine --tasks hellaswag
    python -m forge.lm_eval --model forge --model_args run=my/folder,device=cuda --tasks gsm8k
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from forge import cli
from forge.lm_eval import MODEL, register_model

DESCRIPTION = "Ask a run the tasks of lm-eval; its options: python -m forge.lm_eval run --help."
INSTALL = "lm-eval is not installed: pip install 'forge-lm[eval]'"


def main(argv: Sequence[str] | None = None) -> int:
    """Run lm-eval; exit 2 for a run, a task or data that it cannot read."""
    words = sys.argv[1:] if argv is None else list(argv)
    if words in (["--help"], ["-h"]):
        arguments = cli.Parser("forge.lm_eval", DESCRIPTION, add_help=False)
        return cli.print_text(arguments.format_help())
    try:
        from lm_eval.__main__ import cli_evaluate
    except ImportError:
        print(INSTALL, file=sys.stderr)
        return cli.REFUSED
    register_model()
    sys.argv = [MODEL, *words]
    try:
        cli_evaluate()
    except (ValueError, FloatingPointError, OSError) as error:  # a ConnectionError is an OSError
        print(cli.printable(str(error)), file=sys.stderr)
        return cli.REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main())
