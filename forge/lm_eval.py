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

MODEL = "forge"
TARGET = "forge.training.lm_eval_run:RunLM"
INSTALL = "lm-eval is not installed: pip install 'forge-lm[eval]'"


def register() -> None:
    """Add the model `forge` to lm-eval's table, for its command line and `simple_evaluate`."""
    import lm_eval.models  # noqa: F401 - registers lm-eval's own
    from lm_eval.api.registry import model_registry

    if MODEL not in model_registry:
        model_registry.register(MODEL, target=TARGET)


def main(argv: Sequence[str] | None = None) -> int:
    """Run lm-eval; exit 2 for a run, a task or data that it cannot read."""
    try:
        from lm_eval.__main__ import cli_evaluate
    except ImportError:
        print(INSTALL, file=sys.stderr)
        return cli.REFUSED
    register()
    if argv is not None:
        sys.argv = [MODEL, *argv]
    try:
        cli_evaluate()
    except (ValueError, FloatingPointError, OSError) as error:  # a ConnectionError is an OSError
        print(cli.printable(str(error)), file=sys.stderr)
        return cli.REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main())
