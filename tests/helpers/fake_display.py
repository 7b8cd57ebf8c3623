"""A kernel of Jupyter that keeps what it is given to show."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest


class Display:
    """In place of IPython.display: what is shown, each as often as it was rewritten."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shown: list[list[str]] = []
        shell = types.SimpleNamespace(kernel=object())
        module: Any = types.ModuleType("IPython")
        module.get_ipython, module.display = lambda: shell, types.ModuleType("IPython.display")
        module.display.display = self.display
        monkeypatch.setitem(sys.modules, "IPython", module)
        monkeypatch.setitem(sys.modules, "IPython.display", module.display)

    def display(self, content: dict[str, str], *, raw: bool, display_id: bool) -> Any:
        assert raw
        assert display_id
        self.shown.append([content["text/plain"]])

        def update(content: dict[str, str], *, raw: bool) -> None:
            self.shown[-1].append(content["text/plain"])

        return types.SimpleNamespace(update=update)
