"""The log of a rank, kept in the run directory."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from forge.rundir import outcome


@contextmanager
def write_log(run_dir: Path) -> Iterator[None]:
    """Write the log to logs/rank_N.log; warnings go to the terminal too."""
    path = run_dir / "logs" / f"rank_{outcome.rank()}.log"
    root, forge = logging.getLogger(), logging.getLogger("forge")
    former_settings = forge.level, logging.raiseExceptions
    handlers: list[logging.Handler] = []
    if not root.handlers:
        handlers.append(logging.StreamHandler())
        handlers[0].setLevel(logging.WARNING)
    try:
        path.parent.mkdir(exist_ok=True)
        handlers.append(file_handler := logging.FileHandler(path, encoding="utf-8"))
        file_handler.setFormatter(
            logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
        )
    except OSError as error:
        message = f"{path} cannot be written: {error.strerror}; the run continues without it"
        print(message, file=sys.stderr)
    forge.setLevel(logging.DEBUG)
    logging.raiseExceptions = False  # a full disk, where no log can be written, ends no run
    for handler in handlers:
        root.addHandler(handler)
    try:
        yield
    finally:
        level, logging.raiseExceptions = former_settings
        forge.setLevel(level)
        for handler in handlers:
            root.removeHandler(handler)
            with suppress(OSError):
                handler.close()
