"""Context parallelism: parts of sequences, and generated text; its training is in test_parity."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from parity_run import config_of
from ranks import on_ranks

from forge.models.decoder import Decoder
from forge.models.init import init_weights
from forge.models.sampling import generate
from forge.models.sdpa import causal_attention
from forge.parallel.context import Part, own_part, spread_context
from forge.parallel.fsdp import shard
from forge.parallel.materialize import materialize
from forge.parallel.mesh import make_mesh

BALANCED, CONTIGUOUS = "parallel.cp=2", "parallel.cp=2 parallel.cp_load_balance=false"
ULYSSES = "parallel.cp=2 parallel.cp_method=ulysses"


@pytest.mark.parametrize(
    ("layout", "model"), [(BALANCED, "llama"), (CONTIGUOUS, "gpt2"), (ULYSSES, "gpt2")]
)
def test_text_of_one_device(layout: str, model: str) -> None:
    """Also after whole sequences were read, of which each rank reads a part."""
    cfg = config_of(model, layout)
    whole = Decoder(cfg.model)  # type: ignore[arg-type]
    init_weights(whole, 3)
    whole = whole.double()
    prompt = torch.randint(0, 301, (2, 5), generator=torch.Generator().manual_seed(1))
    text = generate(whole, prompt, 9, temperature=0.0)
    logits = whole(text).detach()

    def work(_: int) -> None:
        mesh = make_mesh(cfg.parallel, "cpu")
        with torch.device("meta"):
            spread = Decoder(cfg.model).double()  # type: ignore[arg-type]
        spread_context(spread, cfg, mesh)
        shard(spread, mesh)
        materialize(spread, torch.device("cpu"), 3)
        with torch.no_grad():
            tokens = torch.randint(0, 301, (4, 16))
            assert spread.hidden(own_part(tokens, mesh)).shape[:2] == (4, 8)
            assert torch.equal(generate(spread, prompt, 9, temperature=0.0), text)
            cache = spread.new_cache(14)
            for run in text.split(4, 1):  # runs of tokens, not only one by one
                seen = cache.length
                here = F.linear(spread.hidden(run, cache=cache), whole.output_weight)
                assert (here - logits[:, seen : seen + run.shape[1]]).abs().max() < 1e-12

    on_ranks(2, work)


def test_parts_cover_a_sequence_with_equal_work() -> None:
    for ranks in (1, 2, 4):
        every = [Part(rank=rank, ranks=ranks, balanced=True) for rank in range(ranks)]
        parts = [part.of(torch.arange(16), 0) for part in every]
        assert sorted(torch.cat(parts).tolist()) == list(range(16))
        assert len({int(part.sum()) for part in parts}) == 1  # keys that the queries of a rank read
    assert Part(rank=1, ranks=2, balanced=True).of(torch.arange(8), 0).tolist() == [2, 3, 4, 5]
    contiguous = Part(rank=1, ranks=2, balanced=False).of(torch.arange(8)[None], 1)
    assert contiguous.tolist() == [[4, 5, 6, 7]]
    with pytest.raises(AssertionError):
        Part(rank=0, ranks=2, balanced=True).of(torch.arange(6), 0)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("compiled", [False, True])
def test_flash_after_a_past(compiled: bool) -> None:
    """Queries of a late chunk over all keys before them: a kernel without a mask against one."""
    sizes = ((8, 128), (2, 512), (2, 512))
    q, k, v = (
        torch.randn(2, heads, seq, 64, device="cuda", dtype=torch.bfloat16) for heads, seq in sizes
    )
    function = causal_attention
    if compiled:
        function = torch.compile(causal_attention, backend="aot_eager", fullgraph=True)
    results = []
    for backend in ("flash", "math"):
        inputs = [tensor.clone().requires_grad_() for tensor in (q, k, v)]
        out = function(*inputs, backend)
        out.float().square().sum().backward()
        results.append([out.detach(), *(tensor.grad for tensor in inputs)])
    for mine, reference in zip(*results, strict=True):
        assert (mine.float() - reference.float()).norm() <= 2e-2 * reference.float().norm()
