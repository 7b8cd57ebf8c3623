"""Which experts tokens go to, counted so that all layouts of the same steps give equal counts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from parity_models import TOKENIZER
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from forge.build import build
from forge.config.model.decoder import Decoder
from forge.config.root import Config
from forge.models.moe import MoE
from forge.models.router import Router
from forge.parallel.ranks import Ranks
from forge.training.data import train_loader


@dataclass
class Calls:
    """The experts that routers chose, [tokens, top_k], by layer, in the order of micro-batches."""

    of_layer: dict[int, list[Tensor]] = field(default_factory=dict)

    def counts(self, config: Config, ranks: Ranks, store: Any, steps: int) -> Tensor:
        """[layers with experts, vocab, experts]: how often a token id went to an expert, anywhere.

        Most ids occur once or never, so that two choices that are exchanged change it.
        """
        section = config.model
        assert isinstance(section, Decoder)
        sizes = section.n_mixtures, section.vocab_size, section.moe.num_experts
        found = torch.zeros(sizes, dtype=torch.int64)
        tokens = self._tokens(config, ranks, store, steps)
        for layer, choices in self.of_layer.items():
            assert len(choices) == len(tokens), (layer, len(choices), len(tokens))
            for read, experts in zip(tokens, choices, strict=True):
                assert len(read) == len(experts), (len(read), len(experts))
                index = read.unsqueeze(1), experts
                found[layer].index_put_(index, torch.ones(()).long(), accumulate=True)
        return ranks.total(found)

    @staticmethod
    def _tokens(config: Config, ranks: Ranks, store: Any, steps: int) -> list[Tensor]:
        """What this rank reads in each micro-batch, [tokens]."""
        found: list[Tensor] = []
        objective = build(config.objective, path="objective", tokenizer=TOKENIZER)
        loader = train_loader(config, store, objective, ranks, torch.device("cpu"))
        for _, step in zip(range(steps), loader, strict=False):
            batches = [ranks.own_part(batch["tokens"]) for batch in step.batches]
            if config.parallel.pp > 1:
                assert config.parallel.pp_microbatches is not None
                batches = list(torch.cat(batches).chunk(config.parallel.pp_microbatches))
            found += [batch.flatten() for batch in batches]
        return found


@contextmanager
def recorded() -> Iterator[Calls]:
    """What routers choose meanwhile, except when a block is recomputed. Not of what is compiled."""
    calls, layer = Calls(), [0]

    def enter(module: nn.Module, args: Any) -> None:
        if isinstance(module, MoE):
            layer[0] = module.number

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(module, Router) and torch._C._current_graph_task_id() == -1:
            calls.of_layer.setdefault(layer[0], []).append(output.experts.detach().clone())

    hooks = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave)]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()
