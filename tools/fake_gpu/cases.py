"""The runs of the fake GPU, by the lines of cases.txt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("cases.txt")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A run of three steps.

    words: forge's own. ranks: this process is the first of them. gib: of the device, if it is of
    another size. local_rank: the device of this process. waits: why step 2 may wait; without a
    reason it runs under torch's sync-debug mode "error". uncounted: why the FLOPs of products are
    not those of the model. beside: a kind of collective, and why the model of traffic has none of
    it. kernels: parts of names that step 2 must have launched. fails: a part of
    the message with which the run must end. saves: number of checkpoints. generate: tokens to draw,
    in place of training. smoke: run by `make test`.
    """

    name: str
    words: str
    device: str = "h100"
    ranks: int = 1
    gib: float = 0
    local_rank: int = 0
    waits: str = ""
    uncounted: str = ""
    beside: str = ""
    kernels: str = ""
    fails: str = ""
    saves: int = 0
    generate: int = 0
    smoke: bool = False

    def argument(self) -> dict[str, Any]:
        """The case as `fake_gpu.child` takes it."""
        argument: dict[str, Any] = {"words": self.words.split(), "device": self.device}
        argument |= {"ranks": self.ranks, "waits": bool(self.waits), "generate": self.generate}
        if self.gib:
            argument["gib"] = self.gib
        if self.local_rank:
            argument["gpus"] = self.local_rank + 1
            argument["environ"] = {"LOCAL_RANK": str(self.local_rank)}
        return argument


def read(text: str) -> list[Case]:
    """The cases of a table; raises ValueError for an unknown setting."""
    cases, words_by_name = [], {}
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if "|" not in line:
            name, _, words = line.partition("=")
            words_by_name[name.strip()] = words.strip().format_map(words_by_name)
            continue
        name, settings, words = (part.strip() for part in line.split("|", 2))
        values = _values(name, settings)
        cases.append(Case(name=name, words=words.format_map(words_by_name), **values))
    return cases


def _values(name: str, settings: str) -> Mapping[str, Any]:
    values: dict[str, Any] = {}
    for setting in filter(None, map(str.strip, settings.split(";"))):
        key, _, value = setting.partition("=")
        if key not in Case.__dataclass_fields__:
            raise ValueError(f"{TABLE.name}, {name}: there is no setting {key}")
        default = Case.__dataclass_fields__[key].default
        values[key] = True if default is False else type(default)(value)
    return values


CASES = read(TABLE.read_text())
