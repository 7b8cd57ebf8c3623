"""Mamba-2 and short convolutions: the layer of transformers, and their forms against each other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_transformers_parity import randomise
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from transformers import BambaConfig
from transformers.models.bamba.modeling_bamba import BambaMixer

from forge.config.model.decoder import Decoder as DecoderConfig
from forge.config.model.mixers.mamba2 import Mamba2 as Mamba2Config
from forge.config.model.mixers.short_conv import ShortConv as ShortConvConfig
from forge.families.each.hybrid.mamba import mamba_table
from forge.families.table import FolderTensor, row
from forge.models.cache import LayerCache
from forge.models.decoder import Decoder
from forge.models.init import init_weights
from forge.models.mixers.mamba2 import Mamba2
from forge.models.mixers.short_conv import ShortConv
from forge.models.mixers.state_space import Inputs, scan_chunks, scan_tokens

DIM, SEQ, HEADS, WIDTH, STATE, GROUPS = 24, 43, 6, 8, 10, 2


def mixer(**options: Any) -> Mamba2Config:
    sizes = {"ssm_num_heads": HEADS, "ssm_head_dim": WIDTH, "ssm_state_size": STATE}
    return Mamba2Config(**(sizes | {"ssm_n_groups": GROUPS, "ssm_chunk_size": 8} | options))


def section(own: Any) -> DecoderConfig:
    return DecoderConfig(dim=DIM, n_heads=4, max_seq_len=SEQ, norm_eps=1e-5, mixer=own)


def inputs(*, begins: bool) -> Inputs:
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        made = torch.randn(2, SEQ, *shape, generator=generator, dtype=torch.float64)
        return made.requires_grad_()

    starts = torch.zeros(2, SEQ, dtype=torch.bool)
    for places, of_row in zip(([0, 1, 5, 6, 7, 8, 23], [0, 16, 29, 30]), starts, strict=True):
        of_row[places] = True
    step = drawn(HEADS).exp()
    return Inputs(
        x=drawn(HEADS, WIDTH),
        b=drawn(GROUPS, STATE),
        c=drawn(GROUPS, STATE),
        step=step,
        decay=-0.3 * step,
        begins=starts if begins else None,
    )


@pytest.mark.parametrize("begins", [False, True], ids=["one document", "documents"])
@pytest.mark.parametrize("size", [1, 5, 64])
@pytest.mark.parametrize("given", [False, True], ids=["empty", "state"])
def test_chunks_equal_the_recurrence(size: int, begins: bool, given: bool) -> None:
    """Outputs, the last state and all gradients, in fp64."""
    generator = torch.Generator().manual_seed(9)
    shapes = ((2, SEQ, HEADS, WIDTH), *[(2, HEADS, STATE, WIDTH)] * 2)
    to, after, state = (
        torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes
    )
    results = []
    for chunk in (0, size):
        read, first = inputs(begins=begins), state.clone() if given else None
        leaves = [read.x, read.b, read.c, read.step]
        outputs, last = scan_chunks(read, chunk, first) if chunk else scan_tokens(read, first)
        total = (outputs * to).sum() + (last * after).sum()
        results.append([outputs, last, *torch.autograd.grad(total, leaves)])
    for a, b in zip(*results, strict=True):
        assert a.norm() > 0
        assert (a - b).norm() <= 1e-10 * a.norm()


def test_steps_within_bounds_are_those_of_transformers() -> None:
    """A whole layer with a bound on both sides, its outputs and gradients."""
    config = BambaConfig(
        hidden_size=DIM,
        mamba_n_heads=HEADS,
        mamba_d_head=WIDTH,
        mamba_d_state=STATE,
        mamba_n_groups=GROUPS,
        mamba_chunk_size=8,
        time_step_limit=(0.5, 1.5),
        rms_norm_eps=1e-5,
    )
    theirs = BambaMixer(config, 0)
    randomise(theirs)
    own = section(mixer(ssm_time_step_min=0.5, ssm_time_step_max=1.5))
    ours = Mamba2(own)
    rows = {}
    for spec in own.mixer.tensors(own):
        entry = mamba_table(own.mixer, "")[f"attention.{spec.name}"]
        rows[spec.name] = row(own, spec, entry, "", "")

    def stored(name: str, grad: bool = False) -> Tensor:
        place: FolderTensor = rows[name].theirs
        values = theirs.get_parameter(place.name)
        values = values.grad if grad else values.detach()
        assert values is not None
        values = values if place.singleton is None else values.squeeze(place.singleton)
        index = rows[name].index
        return values if index is None else values[list(index)]

    ours.load_state_dict({name: stored(name) for name in rows})
    x, to = torch.randn(2, 2, SEQ, DIM, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        steps = ours.steps(x)
        assert min((steps == 0.5).sum(), (steps == 1.5).sum()) > 20
    found, expected = ours(x), theirs(x)
    assert expected.std() > 0.1
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    (found * to).sum().backward()
    (expected * to).sum().backward()
    for name, parameter in ours.named_parameters():
        assert parameter.grad is not None
        gradient = stored(name, grad=True)
        assert (parameter.grad - gradient).norm() <= 2e-5 * gradient.norm(), name


@pytest.mark.parametrize(
    ("kind", "own"),
    [(Mamba2, mixer(ssm_proj_bias=True)), (ShortConv, ShortConvConfig(conv_bias=True))],
    ids=["mamba2", "short_conv"],
)
@pytest.mark.parametrize("pieces", [[1] * SEQ, [20, *[1] * 23], [2, 1, 17, 8, 15]], ids=len)
@torch.no_grad()
def test_a_text_in_pieces_is_read_as_the_whole(kind: Any, own: Any, pieces: list[int]) -> None:
    """In fp64, with pieces shorter than the convolutions see."""
    layer = kind(section(own)).double()
    randomise(layer)
    x = torch.randn(2, SEQ, DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    cache = LayerCache(SEQ)
    parts = [layer(part, None, cache) for part in x.split(pieces, 1)]
    assert cache.length == SEQ
    torch.testing.assert_close(torch.cat(parts, 1), layer(x), rtol=1e-10, atol=1e-12)


def test_the_state_of_mamba_is_fp32_in_16_bits() -> None:
    layer, cache = Mamba2(section(mixer())).to(torch.bfloat16), LayerCache(SEQ)
    with torch.no_grad():
        y = layer(torch.randn(2, 5, DIM, dtype=torch.bfloat16), None, cache)
    assert y.dtype == cache.held[0].dtype == torch.bfloat16
    assert cache.held[-1].dtype == torch.float32


def test_first_values_are_those_of_the_paper(small_section) -> None:
    """Decays from 1 to 16, steps from 0.001 to 0.1."""
    own = mixer(ssm_num_heads=4000, ssm_head_dim=1)
    model = Decoder(small_section(n_layers=1, mixer=own))
    init_weights(model, 3)
    layer: Any = model.blocks["0"].attention
    decays, steps = layer.a_log.detach().exp(), layer.dt_bias.detach().exp().log1p()
    assert 1 <= decays.min() < 1.1 < 15.9 < decays.max() <= 16
    assert abs(decays.mean() - 8.5) < 0.5
    assert 0.99e-3 < steps.min() < 1.1e-3 < 0.09 < steps.max() < 0.101
    assert abs(steps.log().mean() + 4.6) < 0.1
    assert torch.all(layer.d == 1)
    assert layer.conv_x.abs().max() <= 0.5


def test_flops_are_those_counted(small_section) -> None:
    """All chunks are multiplied at once, the first and last ones too."""
    chosen = small_section(mixer=mixer(), max_seq_len=24)
    with FlopCounterMode(display=False) as counter:
        Decoder(chosen)(torch.arange(24)[None]).sum().backward()
    assert counter.get_total_flops() == 24 * chosen.flops_per_token(24)
