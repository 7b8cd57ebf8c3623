"""The `scaling` group: options that follow from the size of a model."""

from __future__ import annotations

from typing import Any

from forge.config.field import Section, section
from forge.config.hydra_names import translate
from forge.config.problems import Problem
from forge.config.rule import Derived, OverriddenValue, get, put

Row = tuple[str, str]


class Settings:
    """Values that a scaling rule gives to options, where the user states no others.

    config: a copy with all values set so far. steps: those values, and the values against which a
    stated value stays. problems: reasons why the rule cannot be followed.
    """

    def __init__(self, config: Any) -> None:
        self.config = config.clone()
        self.config.thaw()
        self.steps: list[Derived] = []
        self.problems: list[Problem] = []
        words = (translate(text).lstrip("+~").partition("=")[0] for text in config.overrides)
        self.typed = frozenset(word for word in words if "." in word)
        self.in_files: frozenset[str] = config._source.stated

    def is_typed(self, key: str) -> bool:
        """Whether the command line, or code, states the value of a key or of its section."""
        return any(f"{key}.".startswith(f"{word}.") for word in self.typed)

    def is_stated(self, key: str) -> bool:
        """Whether the value is typed, or stands in a file of a whole experiment."""
        return self.is_typed(key) or key in self.in_files

    def get(self, key: str) -> Any:
        """The value at a dotted key, after the values set so far."""
        return get(self.config, key)

    def set(self, key: str, value: Any, why: str, *, over_typed: bool = False) -> Any:
        """Give an option its value, and return it; a stated value stays and is returned.

        over_typed: `value` is worked out of the stated one, which it replaces.
        """
        if self.is_stated(key) and not over_typed:
            present = self.get(key)
            if present != value:
                self.steps.append(OverriddenValue(key, value, why))
            return present
        put(self.config, key, value)
        self.steps.append(Derived(key, value, why))
        return value

    def note(self, key: str, why: str) -> None:
        """Say why an option keeps its value."""
        self.steps.append(Derived(key, self.get(key), why))

    def lacks_decoder(self) -> bool:
        """Whether the model has no shape to be set, which is refused."""
        message = ""
        if self.config.decoder is None:
            message = "its widths and heads are those of a decoder, and this model is none."
        elif hasattr(self.config.model, "pretrained"):
            message = "the shape of model=hf is that of its folder."
        if message:
            self.refuse("scaling", message, "scaling=none, or a model by its shape, model=small")
        return bool(message)

    def refuse(self, key: str, message: str, hint: str) -> None:
        """Add a problem; the values set after it are not used."""
        self.problems.append(Problem(key, message, hint, rule="scaling"))


@section
class Scaling(Section):
    """Base of every scaling rule: `shape` before the parameters are counted, `rates` after."""

    all_free = True  # what a run is, the values that follow say

    _applied = False  # no option: set once the values are worked out, so that they are only once

    @property
    def applied(self) -> bool:
        """Whether the values have been worked out."""
        return self._applied

    def set_applied(self) -> None:
        """Keep the values from being worked out of themselves, where a config is resolved twice."""
        self.__dict__["_applied"] = True

    def shape(self, settings: Settings) -> None:
        """Set widths and numbers of layers and heads."""

    def rates(self, settings: Settings) -> None:
        """Set batch, steps, learning rates and weight decay."""

    def facts(self, config: Any) -> list[Row]:
        """Rows of the numbers behind the values, for forge.check."""
        return []


@section
class NoScaling(Scaling):
    """Every option has its own value."""

    schema_name = "none"
