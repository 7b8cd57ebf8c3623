"""What a rule is, and how one is declared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from forge.config.problems import Problem
from forge.config.root import Config
from forge.plan.world import World

Finding = tuple[str, str, str]
Body = Callable[[Config, World], Iterator[Finding]]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A named rule: the keys it reads, what it demands in one sentence, and its body.

    The body yields (key, what is wrong, what to do) for every problem it sees.
    """

    id: str
    reads: tuple[str, ...]
    warning: bool
    body: Body

    @property
    def sentence(self) -> str:
        """What the rule demands: the first paragraph of its body's docstring."""
        return " ".join((self.body.__doc__ or "").partition("\n\n")[0].split())

    def check(self, config: Config, world: World) -> Iterator[Problem]:
        """The problems of a config; `world` is what it would run on."""
        for key, what, fix in self.body(config, world):
            yield Problem(key=key, what=what, fix=fix, rule=self.id, warning=self.warning)


def rule(id: str, *, reads: tuple[str, ...], warning: bool = False) -> Callable[[Body], Rule]:
    """Turn a function over the typed config into a rule."""
    return lambda body: Rule(id=id, reads=reads, warning=warning, body=body)
