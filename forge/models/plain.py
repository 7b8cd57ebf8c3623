"""User models without knowledge of forge: mixins add the parts of a `LanguageModel` missing from a
model with as little as `forward(tokens)`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from forge.build import bind
from forge.config.model.layer import Model
from forge.config.targets.own import Own
from forge.models.contract import check_model
from forge.models.head import Head
from forge.models.mixin import mix_in

log = logging.getLogger(__name__)


def make_model(section: Model, trust: Sequence[str] = ()) -> Any:
    """Build the model of a section, with every part of a `LanguageModel`. Raises ConfigError for a
    target not allowed or not buildable, ValueError for an object that is no model.
    """
    make = bind(section, path="model", trust=trust)
    model = make()
    if isinstance(section, Own) and isinstance(model, nn.Module):
        _complete(model, make, section)
    check_model(model, section._target_)
    return model


def _complete(model: nn.Module, make: Callable[[], nn.Module], section: Model) -> None:
    """Mix in the missing parts of a model, in place. make: builds the model again."""
    name, key = type(model).__name__, f"model._target_={section._target_}"
    if taken := [part for part in ("hidden", "spread_head") if part in model._modules]:
        message = f"{name} has a module called {taken[0]}, which means something else to forge"
        raise ValueError(f"{key}: {message}; give it another name")
    if drops := [n for n, module in model.named_modules() if _draws(module)]:
        message = (
            "%s: %s draws random numbers, which a run that continues draws again: it differs a"
        )
        log.warning(f"{message} little from one that never stopped", key, ", ".join(drops))
    if not hasattr(model, "max_seq_len"):
        model.max_seq_len = section.max_seq_len  # type: ignore[assignment]
    if not hasattr(model, "hidden") and not hasattr(model, "output_weight"):
        mix_in(model, LogitsMixin, vocab_size_needed=section.vocab_size)
    for part, mixin in {"init_std": OwnInitMixin, "reset_buffers": KeepsBuffers}.items():
        if not hasattr(model, part):
            mix_in(model, mixin)
            model.make_again = partial(_on_cpu, make)  # type: ignore[assignment]


def _draws(module: nn.Module) -> bool:
    rate = getattr(module, "p", getattr(module, "dropout", 0))
    is_dropout = isinstance(module, nn.modules.dropout._DropoutNd | nn.RNNBase)
    return is_dropout and bool(rate)


def _on_cpu(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Make a model on the CPU after `torch.manual_seed(seed)`."""
    # Forked, so that the run's own generators do not move.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.manual_seed(seed)
        return make()


class LogitsMixin(nn.Module):
    """Mixin of a model without an accessible output head: the hidden states are logits."""

    output_weight = None
    vocab_size_needed: int
    n_logits = 0

    def hidden(self, tokens: Tensor) -> Tensor:
        """tokens: [batch, seq] -> logits [batch, seq, vocab]."""
        logits: Any = self.forward(tokens)
        name, rows = type(self).__name__.removeprefix("LogitsMixin"), self.vocab_size_needed
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        if not isinstance(logits, Tensor) or logits.dim() != 3 or shape[:2] != tuple(tokens.shape):
            message = f"gives {shape} for tokens {tuple(tokens.shape)}, and no [batch, seq, vocab]"
            raise ValueError(f"model._target_: {name} {message}")
        self.n_logits = logits.shape[-1]
        if self.n_logits < rows:
            message = f"gives {self.n_logits} logits, and model.vocab_size={rows} are needed"
            raise ValueError(f"model._target_: {name} {message}")
        return logits

    def spread_head(self) -> Head:
        return Logits(self.n_logits)


class Logits(Head):
    """The head of a model with logits as hidden states."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    @property
    def weight(self) -> Tensor:
        message = (
            "objective.loss_fn=chunked_cross_entropy makes logits a part at a time, and the model"
        )
        raise ValueError(f"{message} gives all at once; objective.loss_fn=cross_entropy")

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden


class OwnInitMixin(nn.Module):
    """Mixin of a model with initial values from the constructor."""

    make_again: Callable[[int], nn.Module]

    def initial_values(self, seed: int) -> dict[str, Tensor]:
        """Initial values of all parameters by name, equal on every rank."""
        return {
            name: parameter.detach() for name, parameter in self.make_again(seed).named_parameters()
        }

    def init_std(self, name: str) -> float:
        raise AssertionError(f"{name} has initial values")


class KeepsBuffers(nn.Module):
    """Mixin of a model with first values of buffers from the constructor."""

    make_again: Callable[[int], nn.Module]

    def reset_buffers(self) -> None:
        first = dict(self.make_again(0).named_buffers())
        for name, buffer in self.named_buffers():
            buffer.copy_(first[name])
