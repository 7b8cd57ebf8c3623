"""Recomputation keeps and repeats what it says; its gradients are in test_parity."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from forge.parallel.activation_checkpoint import recompute_blocks


class Kept(TorchDispatchMode):
    """Bytes of what was computed under this mode that are still alive, the model's own left out."""

    def __init__(self, model) -> None:
        super().__init__()
        owned = (*model.parameters(), *model.buffers())
        self.held = {tensor.untyped_storage()._cdata for tensor in owned}
        self.storages: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self.held:
                    self.storages[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        return out

    def bytes(self) -> int:
        return sum(size for reference, size in self.storages.values() if not reference.expired())


def kept_bytes(model, tokens) -> int:
    with Kept(model) as kept:
        logits = model(tokens)
    size = kept.bytes()
    del logits
    return size


def step_flops(model, tokens) -> int:
    with FlopCounterMode(display=False) as counter:
        model(tokens).square().mean().backward()
    return counter.get_total_flops()


def test_full_keeps_least_and_selective_less_than_nothing_recomputed(small_decoder, tokens) -> None:
    size = {}
    for mode in ("none", "selective", "full"):
        model = small_decoder(n_layers=6, vocab_size=64)
        recompute_blocks(model, mode)
        size[mode] = kept_bytes(model, tokens)
    stream = tokens.numel() * 32 * 4
    assert size["full"] < 0.15 * size["none"]
    assert size["selective"] < 0.75 * size["none"]
    # Beside the block's input: q, k, v, attention, its log-sum-exp, wo, gate, up; heads share half
    # the keys and values. Nobody reads again what down gives.
    saved_a_layer = stream * (1 + 0.5 + 0.5 + 1 + 1 + 1.5 + 1.5) + tokens.numel() * 4 * 4
    assert size["selective"] - size["full"] == pytest.approx(6 * saved_a_layer, rel=0.02)


@pytest.mark.parametrize("bias", [False, True])
def test_selective_repeats_no_matrix_product_and_full_repeats_all(
    small_decoder, tokens, bias
) -> None:
    flops = {}
    for mode in ("none", "selective", "full"):
        model = small_decoder(bias=bias)
        recompute_blocks(model, mode)
        flops[mode] = step_flops(model, tokens)
    section = model.section
    weights = sum(p.numel() for p in model.blocks.parameters() if p.dim() == 2)
    assert flops["selective"] == flops["none"]
    last_product_of_each_block = section.n_layers * section.computed_ffn_hidden_dim * section.dim
    again = flops["full"] - flops["none"]
    # Recomputation stops when backward has what it needs, before w_down's own product.
    assert again == 2 * (weights - last_product_of_each_block) * tokens.numel()


def test_a_copy_runs_its_own_weights(small_decoder, tokens) -> None:
    model = small_decoder()
    recompute_blocks(model, "full")
    twin = copy.deepcopy(model)
    before = model(tokens)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.mul_(1.5)
    assert torch.equal(model(tokens), before)
    assert not torch.allclose(twin(tokens), before)


def test_a_model_without_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="Linear keeps no transformer blocks"):
        recompute_blocks(torch.nn.Linear(2, 2), "full")
