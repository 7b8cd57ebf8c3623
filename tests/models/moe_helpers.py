"""Small mixtures of experts, a plain reading of their formulas, and a step of training by hand."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forge.config.model.decoder import Decoder as DecoderConfig
from forge.config.model.moe import MoE as MoEConfig
from forge.models.balance import Balance
from forge.models.contract import StepReport
from forge.models.decoder import Decoder
from forge.models.init import init_weights
from forge.models.moe import MoE

BATCH, SEQ, DIM, VOCAB = 3, 16, 32, 61
NOT_SKIPPED = torch.tensor(False)


def section(*, model: dict[str, Any] | None = None, **moe: Any) -> DecoderConfig:
    sizes = {"dim": DIM, "n_layers": 2, "n_heads": 4, "ffn_hidden_dim": 48, "init_std": 0.2}
    sizes |= {"vocab_size": VOCAB, "max_seq_len": SEQ} | (model or {})
    experts = MoEConfig(**({"num_experts": 8, "top_k": 2, "ffn_hidden_dim": 24} | moe))
    return DecoderConfig(**sizes, moe=experts)


def decoder(
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    model: dict[str, Any] | None = None,
    **moe: Any,
) -> Decoder:
    made = Decoder(section(model=model, **moe))
    init_weights(made, seed)
    return made.to(dtype)


def layer(*, dtype: torch.dtype = torch.float64, **moe: Any) -> MoE:
    """One layer in training mode, in fp64 with a loop over experts, and a bias that counts."""
    made = decoder(dtype=dtype, **({"kernel": "loop"} | moe)).blocks["0"].feed_forward
    assert isinstance(made, MoE)
    bias = made.router.selection_bias
    bias.copy_(0.05 * torch.randn(len(bias), generator=torch.Generator().manual_seed(4)))
    return made


def states(*, dtype: torch.dtype = torch.float64, batch: int = BATCH) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    drawn = torch.randn(batch, SEQ, DIM, generator=generator, dtype=torch.float64)
    return drawn.to(dtype).requires_grad_()


def tokens(batch: int = BATCH) -> Tensor:
    return torch.randint(VOCAB, (batch, SEQ), generator=torch.Generator().manual_seed(2))


def expert(moe: MoE, number: int, x: Tensor) -> Tensor:
    """One expert of one token or more, written out."""
    experts = moe.experts
    assert experts.w_gate is not None
    gate, up = F.linear(x, experts.w_gate[number]), F.linear(x, experts.w_up[number])
    return F.linear(F.silu(gate) * up, experts.w_down[number])


def written_out(moe: MoE, x: Tensor) -> Tensor:
    """The layer token by token, from the router's choices and weights."""
    routed = moe.router(x.flatten(0, 1))
    rows = []
    for token, choice, weights in zip(x.flatten(0, 1), routed.experts, routed.weights, strict=True):
        pairs = zip(choice.tolist(), weights, strict=True)
        rows.append(sum(weight * expert(moe, number, token) for number, weight in pairs))
    y = torch.stack(rows).view_as(x)
    return y if moe.shared is None else y + moe.shared(x)


class Trained(NamedTuple):
    logits: Tensor
    gradients: dict[str, Tensor]
    report: StepReport


def train_step(
    model: Decoder, batches: list[Tensor], *, done: float = 0.0, balance: Balance | None = None
) -> Trained:
    """Forward and backward of micro-batches in one step of the balance; no optimizer."""
    balance = balance or Balance(model)
    n_targets = sum(batch.numel() for batch in batches)
    model.zero_grad()
    balance.begin_step(1 / n_targets)
    logits = []
    for batch in batches:
        logits.append(model(batch))
        targets = batch.roll(-1, 1).flatten()
        loss = F.cross_entropy(logits[-1].flatten(0, 1), targets, reduction="sum")
        (loss / n_targets).backward()
    report = balance.end_of_step(done, skipped=NOT_SKIPPED)
    return Trained(torch.cat(logits).detach(), gradients(model), report)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    named = model.named_parameters()
    return {name: each.grad.clone() for name, each in named if each.grad is not None}


def furthest(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """The largest relative distance of two gradients; all must be there, and none be zero."""
    assert found.keys() == expected.keys()
    assert all(value.norm() > 0 for value in expected.values())
    return max(
        float((found[name] - value).norm() / value.norm()) for name, value in expected.items()
    )


def moe_layers(model: nn.Module) -> list[MoE]:
    return [module for module in model.modules() if isinstance(module, MoE)]
