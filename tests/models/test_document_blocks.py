"""Documents kept apart in blocks of flex_attention: as by masks, which are checked against each
document alone.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_documents import DOCUMENTS, MODELS, ROWS, SEQ, VOCAB, decoder, loss_of
from torch._dynamo.utils import counters
from torch.nn.attention import flex_attention

from forge.compose import composition
from forge.config.model.attention_options import Span
from forge.config.model.document_attention import in_blocks
from forge.models import documents
from forge.models.decoder import Decoder
from forge.models.documents import BLOCK, positions_and_masks, visible_blocks
from forge.parallel.activation_checkpoint import recompute_blocks
from forge.parallel.modules import compile_blocks

BY_MASK = {name for name in MODELS if name.startswith(("latent", "indexer"))}  # of another mixer


@pytest.fixture
def backward_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch refuses there though its plain arithmetic has it."""
    monkeypatch.setattr(flex_attention, "_validate_device", lambda *tensors: None)


def both(model: Decoder, tokens: torch.Tensor, numbers: torch.Tensor) -> list[dict[str, Any]]:
    """Logits and gradients by masks, and in blocks."""
    drawn = torch.Generator().manual_seed(2)
    weights = torch.randn(*tokens.shape, VOCAB, generator=drawn, dtype=torch.float64)
    found = []
    for model.in_blocks in (False, True):
        model.zero_grad()
        logits = F.linear(model.hidden(tokens, documents=numbers), model.output_weight)
        loss_of(logits, weights).backward()
        grads = {name: p.grad.clone() for name, p in model.named_parameters()}
        found.append({"logits": logits.detach()} | grads)
    return found


@pytest.mark.parametrize("name", sorted(set(MODELS) - BY_MASK))
def test_blocks_are_as_masks(name: str, backward_on_a_cpu: None) -> None:
    torch._dynamo.reset()  # or flex_attention takes widths of the models before for dynamic ones
    tokens = torch.randint(VOCAB, (len(ROWS), SEQ), generator=torch.Generator().manual_seed(1))
    masks, blocks = both(decoder(MODELS[name]), tokens, DOCUMENTS)
    for key, expected in masks.items():
        limit = 1e-12 if key == "logits" else 1e-10
        assert (blocks[key] - expected).norm() <= limit * expected.norm() + 1e-12, key


@pytest.mark.parametrize("seq", [2 * BLOCK, 3 * BLOCK + 40])
@pytest.mark.parametrize("span", ["sliding_window_size", "chunk_attn_window_size"])
def test_rows_of_several_blocks(seq: int, span: str, backward_on_a_cpu: None) -> None:
    """Documents that end within a block and at its border, and one over several."""
    ends = torch.zeros(2, seq, dtype=torch.int64)
    ends[0, [3, BLOCK - 1, BLOCK, 2 * BLOCK - 1]] = 1
    numbers = (ends.cumsum(1) - ends).int()
    near = {"near": {span: 150, "n_kv_heads": 2}}
    model = decoder({"max_seq_len": seq, "kinds": near, "layers": ["near", "default"]})
    tokens = torch.randint(VOCAB, (2, seq), generator=torch.Generator().manual_seed(1))
    masks, blocks = both(model, tokens, numbers)
    for key, expected in masks.items():
        limit = 1e-12 if key == "logits" else 1e-10
        assert (blocks[key] - expected).norm() <= limit * expected.norm() + 1e-12, key


@pytest.mark.parametrize("window", [0, 1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 300])
def test_blocks_are_those_that_the_mask_has_something_in(window: int) -> None:
    """And no others; in full only where all of them is seen."""
    generator = torch.Generator().manual_seed(window)
    for seq in (BLOCK, 4 * BLOCK, 5 * BLOCK + 17):
        ends = (torch.rand(3, seq, generator=generator) < 0.01).int()
        ends[2] = 0
        numbers = ends.cumsum(1) - ends
        here = torch.arange(seq)
        mask = positions_and_masks(numbers, [Span(window)], tokens=here, queries=here).seen[
            Span(window)
        ]
        count = -(-seq // BLOCK)
        padded = F.pad(mask.float(), (0, count * BLOCK - seq) * 2)
        shares = F.avg_pool2d(padded, BLOCK)
        found = visible_blocks(numbers, window)
        partly, full = (
            _dense(getattr(found, f"{which}kv_num_blocks"), getattr(found, f"{which}kv_indices"))
            for which in ("", "full_")
        )
        assert torch.equal(partly | full, shares > 0)
        assert torch.equal(full, shares == 1)
        assert found.shape == (3, 1, seq, seq)


def _dense(number: torch.Tensor, listed: torch.Tensor) -> torch.Tensor:
    found = torch.zeros_like(listed, dtype=torch.bool)
    first = torch.arange(listed.shape[-1]) < number[..., None]
    return found.scatter(-1, listed.long(), first)


def test_layers_of_one_window_share_blocks_and_they_are_made_once(monkeypatch) -> None:
    made: list[int] = []

    def counting(numbers: torch.Tensor, window: int) -> Any:
        made.append(window)
        return visible_blocks(numbers, window)

    monkeypatch.setattr(documents, "visible_blocks", counting)
    kinds = {"near": {"sliding_window_size": 3}}
    model = decoder({"n_layers": 6, "kinds": kinds, "layers": ["near", "near", "default"]})
    model.in_blocks = True
    with torch.no_grad():
        model.hidden(torch.zeros(1, SEQ, dtype=torch.int64), documents=DOCUMENTS[:1])
    assert sorted(made) == [0, 3]


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("", True),
        ("model.document_attention=mask", False),
        ("data.pack_sequences=false", False),
        ("train.compile_model=false", False),
        ("precision=fp32 model.document_attention=flex", True),
        ("train.compile_backend=aot_eager", False),
        ("model.sdpa_backend=math", False),
        ("precision=fp32", False),
        ("parallel.cp=2 run.num_processes=2", False),
        ("+mixer@model.mixer=mla", False),
        ("model.head_dim=8", False),
        ("run.device=cpu precision=fp32", False),
    ],
)
def test_auto_is_flex_where_a_compiled_run_on_a_gpu_can(typed: str, expected: bool) -> None:
    cuda = "data.pack_sequences=true run.device=cuda precision=bf16 train.compile_model=true"
    config = composition.config([*cuda.split(), *typed.split()])
    assert in_blocks(config, config.run.device) is expected


@pytest.mark.ci("full")
@pytest.mark.parametrize("mode", ["none", "full", "selective"])
def test_compiled_blocks_are_traced_once(mode: str, backward_on_a_cpu: None) -> None:
    """All rows of a shape, with whatever documents, and the same numbers as without."""
    model = decoder({"kinds": {"near": {"sliding_window_size": 5}}, "layers": ["near", "default"]})
    generator = torch.Generator().manual_seed(1)
    rows = [DOCUMENTS, torch.zeros_like(DOCUMENTS), DOCUMENTS.roll(1, 0)]
    tokens = [torch.randint(VOCAB, (len(ROWS), SEQ), generator=generator) for _ in rows]
    expected = [both(model, *each)[0] for each in zip(tokens, rows, strict=True)]
    recompute_blocks(model, mode)
    compile_blocks(model, "aot_eager")
    model.in_blocks = True
    torch._dynamo.reset()
    counters.clear()
    traced = []
    for each, numbers, wanted in zip(tokens, rows, expected, strict=True):
        found = both(model, each, numbers)[1]
        for key, value in wanted.items():
            assert (found[key] - value).norm() <= 1e-10 * value.norm() + 1e-12, key
        traced.append(counters["stats"]["unique_graphs"])
    assert traced[0] > 0
    assert len(set(traced)) == 1


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("mode", ["none", "full", "selective"])
def test_kernels_are_as_masks(mode: str) -> None:
    """In bf16, as near the masks' fp32 as those of masks; a second step compiles nothing."""
    near = {"near": {"sliding_window_size": 150, "attention_sink": True}}
    near["near"] |= {"attn_logits_soft_cap": 2.0}
    seq, sizes = 3 * BLOCK + 40, {"dim": 128, "n_heads": 4, "n_kv_heads": 2, "qk_norm": True}
    options = {"max_seq_len": seq, "kinds": near, "layers": ["near", "default"], **sizes}
    generator = torch.Generator().manual_seed(3)
    model = decoder(options).float().cuda()
    weights = torch.randn(4, seq, VOCAB, generator=generator).cuda()
    torch._dynamo.reset()

    def run(tokens: torch.Tensor, numbers: torch.Tensor, half: bool) -> dict[str, torch.Tensor]:
        model.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            logits = F.linear(model.hidden(tokens, documents=numbers), model.output_weight)
        loss_of(logits.float(), weights).backward()
        found = {name: p.grad.clone() for name, p in model.named_parameters()}
        return {"logits": logits.detach().float()} | found

    def batch() -> list[torch.Tensor]:
        ends = (torch.rand(4, seq, generator=generator) < 0.02).int()
        tokens = torch.randint(VOCAB, (4, seq), generator=generator)
        return [tokens.cuda(), (ends.cumsum(1) - ends).int().cuda()]

    batches = [batch() for _ in range(3)]
    expected = [run(*each, half=False) for each in batches]
    masks = [run(*each, half=True) for each in batches]
    model.in_blocks = True
    recompute_blocks(model, mode)
    compile_blocks(model, "inductor")
    for number, each in enumerate(batches):
        found = run(*each, half=True)
        if number == 0:
            graphs = counters["stats"]["unique_graphs"]
        for key, one in found.items():
            scale = expected[number][key].norm()
            wrong = ((one - expected[number][key]).norm() / scale).item()
            usual = ((masks[number][key] - expected[number][key]).norm() / scale).item()
            assert wrong < 1.5 * usual + 1e-3, (key, wrong, usual)
        again = run(*each, half=True)
        assert all(torch.equal(again[key], one) for key, one in found.items())
    assert counters["stats"]["unique_graphs"] == graphs
