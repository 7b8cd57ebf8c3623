"""AdamW with moments of 8 and 4 bits against torchao's own, and in checkpoints."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torchao.optim import AdamW4bit, AdamW8bit, AdamWFp8
from updates import RATES, set_gradients

from forge.config.optimizers.low_bit import AdamWLowBit
from forge.optim.adam_update import Options, _update
from forge.optim.low_bit import LowBitAdamW

THEIRS = {"8bit": AdamW8bit, "4bit": AdamW4bit, "fp8": AdamWFp8}
OPTIONS = {"lr": 1.0, "betas": (0.8, 0.95), "eps": 1e-3}
SHAPES = [(16, 256), (3, 8, 512), (4, 64), (5000,)]
"""Two whose rows are whole blocks, a small one, and a vector."""


def parameters_of(shapes=SHAPES):
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]


def as_groups(parameters):
    return [
        {"params": parameters[:2], "weight_decay": 0.2},
        {"params": parameters[2:], "weight_decay": 0.0},
    ]


@pytest.mark.parametrize("kind", THEIRS)
def test_updates_and_codes_are_those_of_torchao(kind):
    """Where rows are whole blocks; theirs are called uncompiled, see torch_2.13 facts."""
    ours, theirs = parameters_of(), parameters_of()
    optimizer = LowBitAdamW(
        as_groups(ours), AdamWLowBit(**OPTIONS, weight_decay=0.0, state_format=kind)
    )
    reference = THEIRS[kind](as_groups(theirs), **OPTIONS)
    for step, rate in enumerate(RATES):
        for parameters in (ours, theirs):
            set_gradients(parameters, step)
        for group, their_group in zip(optimizer.param_groups, reference.param_groups, strict=True):
            group["lr"] = float(rate)
            their_group["lr"].fill_(rate)
        optimizer.step()
        with torch.compiler.set_stance("force_eager"):
            reference.step()
    # Their sums are in another order, so a value at the middle of two codes may get the other one.
    close = [torch.isclose(a, b, rtol=1e-5, atol=1e-6) for a, b in zip(ours, theirs, strict=True)]
    assert all(share.double().mean() > 0.995 for share in close)
    assert all(map(torch.all, close[2:]))
    for index, (parameter, other) in enumerate(zip(ours, theirs, strict=True)):
        state, their_state = optimizer.state[parameter], reference.state[other]
        for name in ("exp_avg", "exp_avg_sq"):
            if index < 2:
                codes = state[f"{name}.codes"].view(torch.uint8).flatten()
                same = codes == their_state[name].codes.view(torch.uint8).flatten()
                assert same.double().mean() > 0.99
                scale = state[f"{name}.scale"].flatten()
                torch.testing.assert_close(scale, their_state[name].scale, rtol=1e-4, atol=0)
            elif index == 2:
                torch.testing.assert_close(state[name], their_state[name])


class Counted(TorchDispatchMode):
    """Counts operators by name, of lists with the overload."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        self.calls[f"{name}.{func._overloadname}" if "_foreach" in name else name] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", THEIRS)
def test_a_skipped_update_selects_codes_and_clones_none(kind):
    section = AdamWLowBit(**OPTIONS, weight_decay=0.1, state_format=kind)
    parameters = parameters_of(SHAPES[:2])
    optimizer = LowBitAdamW(parameters, section)
    set_gradients(parameters, 0)
    optimizer.step()  # makes the state
    states = [optimizer.state[parameter] for parameter in parameters]
    tensors = [*parameters, *(value for state in states for value in state.values())]
    before = [tensor.detach().clone() for tensor in tensors]
    set_gradients(parameters, 1)
    parameters[0].grad[0, 0] = torch.nan
    optimizer.found_inf = torch.tensor(1.0)
    with Counted() as counted:
        optimizer.step()
    assert all(map(torch.equal, tensors, before))
    assert not counted.calls["clone"]
    # A weight, two moments' codes and scales are selected and written, each once.
    extra = {"fp8": 0, "8bit": 20, "4bit": 10}[kind] * len(parameters)  # the search for codes
    assert counted.calls["copy_"] == 5 * len(parameters)
    assert counted.calls["where"] <= 5 * len(parameters) + extra
    assert counted.calls["_foreach_add_.List"] == 1  # of a tensor CUDA would wait for


@pytest.mark.parametrize("kind", THEIRS)
def test_the_compiled_update_is_one_graph_with_the_same_values(kind):
    """By the tracer of CUDA's kernel; codes are selected inside of the graph."""
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(_update, fullgraph=True, dynamic=False, backend=backend)
    section = AdamWLowBit(**OPTIONS, weight_decay=0.1, state_format=kind)
    results = []
    for act in (_update, compiled):
        (parameter,) = parameters_of(SHAPES[:1])
        optimizer = LowBitAdamW([parameter], section)
        set_gradients([parameter], 0)
        optimizer.step()
        for step, bad in ((1, 0.0), (2, 1.0)):
            set_gradients([parameter], step)
            first, second, quantize = optimizer.moments(parameter)
            options = Options((0.8, 0.95), 1e-3, quantize=quantize)
            count, flag = torch.tensor(2.0), torch.tensor(bad)
            numbers = torch.tensor(0.1), torch.tensor(0.0)
            with torch.no_grad():
                act(options, parameter, None, parameter.grad, first, second, count, None, flag,
                    None, *numbers)  # fmt: skip
        results.append([parameter.detach(), *optimizer.state[parameter].values()])
    assert len(graphs) == 1
    assert all(map(torch.equal, *results))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind", ["8bit", "4bit"])
def test_the_kernel_on_a_gpu_updates_as_the_cpu(kind):
    section = AdamWLowBit(**OPTIONS, weight_decay=0.1, state_format=kind)
    results = []
    for device in ("cpu", "cuda"):
        parameters = [torch.nn.Parameter(p.detach().to(device)) for p in parameters_of(SHAPES[:2])]
        optimizer = LowBitAdamW(parameters, section)
        for step in range(3):
            torch.manual_seed(step)
            for parameter in parameters:
                parameter.grad = torch.randn(parameter.shape).to(device)
            optimizer.step()
        state = [value for p in parameters for value in optimizer.state[p].values()]
        results.append([tensor.detach().cpu().float() for tensor in (*parameters, *state)])
    for ours, reference in zip(*results, strict=True):
        assert (ours - reference).norm() <= 1e-3 * reference.norm()
