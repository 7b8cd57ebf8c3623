"""Progress in a notebook: one line that is rewritten, where a terminal has a bar."""

from __future__ import annotations

import re
import sys
from typing import Any

STEP = re.compile(r"step +\d+/\d+ \| ")
OF_TRAINING = re.compile(STEP.pattern + "loss ")


def in_notebook() -> bool:
    """Whether a kernel of Jupyter runs this, rather than a terminal or a script."""
    ipython: Any = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


class OneLine:
    """A file of console lines: a notebook shows the newest line of training, and of evaluation
    below, in place of earlier lines.
    """

    def __init__(self) -> None:
        self._training = self._evaluation = ""
        self._shown: Any = None

    def write(self, text: str) -> int:
        if line := text.strip():
            if OF_TRAINING.match(line):
                self._training = line
            else:
                self._evaluation = line
            self._show("\n".join(filter(None, (self._training, self._evaluation))))
        return len(text)

    def flush(self) -> None:
        """Do nothing: every write is shown at once."""

    def _show(self, text: str) -> None:
        from IPython.display import display  # present in every kernel

        content = {"text/plain": text}
        if self._shown is None:
            self._shown = display(content, raw=True, display_id=True)
        else:
            self._shown.update(content, raw=True)
