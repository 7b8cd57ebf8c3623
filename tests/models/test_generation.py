"""Rows of different lengths continue as each would alone, in caches no longer than windows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_transformers_parity import llama_tensors, peer_shape, randomise, shape
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

from forge.config.model.attention_options import Span
from forge.config.model.decoder import Decoder as DecoderConfig
from forge.config.model.mixers.mla import MLA
from forge.config.model.moe import MoE
from forge.models.cache import LayerCache
from forge.models.decoder import Decoder
from forge.models.sampling import DrawOptions, continue_rows
from forge.models.token_distribution import Sampling, _first_of

CPU = torch.device("cpu")
WIDTHS = {"kv_lora_rank": 20, "qk_nope_head_dim": 10, "qk_rope_head_dim": 8, "v_head_dim": 6}
LATENTS = MLA(**WIDTHS, q_lora_rank=12, mla_naive_kvcache=False)
NEAR = {"near": {"sliding_window_size": 3, "rope_theta": 100.0, "n_kv_heads": 1}}
DELTA: dict[str, Any] = {"gdn_num_key_heads": 2, "gdn_num_value_heads": 4, "gdn_chunk_size": 5}
DELTA |= {"gdn_key_head_dim": 6, "gdn_value_head_dim": 10}
DELTA = {"delta": {"mixer": {"schema": "gated_delta_net", **DELTA}}}
SHARING = {"near": {"sliding_window_size": 4}, "far": {"mixer": {"schema": "shared_attention"}}}
SHARING["shared"] = SHARING["near"] | SHARING["far"]
SHARED = {"kinds": SHARING, "layers": ["near", "default", "shared", "far"], "n_layers": 4}
SHAPES: dict[str, dict[str, Any]] = {
    "mha": {},
    "gqa, window": {"n_kv_heads": 2, "sliding_window_size": 4},
    "window of one": {"sliding_window_size": 1},
    "chunks, sinks": {"chunk_attn_window_size": 5, "attention_sink": True},
    "learned": {"position": "learned", "norm_type": "layernorm", "bias": True},
    "mla": {"mixer": MLA(**WIDTHS)},
    "mla, window": {"mixer": MLA(**WIDTHS), "sliding_window_size": 4},
    "mla latents": {"mixer": LATENTS},
    "mla latents, window": {"mixer": LATENTS, "sliding_window_size": 4},
    "kinds of layers": {"n_layers": 5, "kinds": NEAR, "layers": ["near", "near", "default"]},
    "delta nets": {"kinds": DELTA, "layers": ["delta", "delta", "default"]},
    "shared keys": SHARED | {"per_layer_input_width": 6},
    "no positions, experts": {"position": "none", "moe": MoE(num_experts=4, top_k=2)},
}
PROMPTS = [[7, 7, 3], [1], [*range(10, 30)], [*range(40, 50)], [5] * 24, [2, 9, 4]]
WAYS = [Sampling(temperature=0), Sampling(temperature=1.5, repetition_penalty=1.3, seed=4)]


def continued(model: Any, prompts: list[list[int]], most: int, numbers=None, **how) -> list:
    return continue_rows(model, prompts, most, DrawOptions(**how), CPU, numbers).tokens


@pytest.mark.parametrize("options", SHAPES.values(), ids=SHAPES.keys())
def test_a_row_goes_on_as_it_would_alone(small_decoder, options) -> None:
    """With a cache and without; until the longest sequence, which each row reaches by itself."""
    model = small_decoder(**options)
    for way in WAYS:
        alone = [
            continued(model, [prompt], 99, [row], sampling=way, use_cache=False)[0]
            for row, prompt in enumerate(PROMPTS)
        ]
        assert [len(row) for row in alone] == [24 - len(prompt) for prompt in PROMPTS]
        assert len({token for row in alone for token in row}) > 8
        for use_cache in (True, False):
            assert continued(model, PROMPTS, 99, sampling=way, use_cache=use_cache) == alone
        order = [3, 1, 0]
        some = [PROMPTS[row] for row in order]
        assert continued(model, some, 7, order, sampling=way) == [alone[n][:7] for n in order]


@pytest.mark.parametrize("pieces", [[1] * 24, [3, 9, 1, 2, 1, 1, 7], [24]], ids=str)
@pytest.mark.parametrize("window", [1, 4, 7, 24, 30])
def test_a_ring_has_what_a_window_sees(pieces, window) -> None:
    """Of each number a token; and no more bytes than `window` tokens need."""
    cache = LayerCache(24, Span(window))
    tokens = torch.arange(24.0).view(1, 1, 24, 1).expand(2, 3, 24, 5)
    start = 0
    for seq in pieces:
        numbers = cache.numbers(seq, CPU)
        (kept,) = cache.append(tokens[:, :, start : start + seq])
        start += seq
        assert torch.equal(kept[1, 2, :, 4], numbers.float())
        seen = range(max(start - seq - window + 1, 0), start)
        assert sorted(numbers.tolist()) == list(seen)
        assert seq == 1 or numbers.tolist() == list(seen)
        assert cache.held[0].untyped_storage().nbytes() == 4 * 2 * 3 * 5 * min(window, 24)


@torch.no_grad()
def test_only_layers_without_a_window_keep_all_tokens(small_decoder) -> None:
    model = small_decoder(n_layers=3, kinds=NEAR, layers=["near", "near", "default"])
    padding = torch.tensor([0, 2])
    for cache in (model.new_cache(), model.new_cache(padding=padding)):
        for tokens in (torch.zeros(2, 20, dtype=torch.int64), torch.zeros(2, 1, dtype=torch.int64)):
            model(tokens, cache=cache)
        lengths = [[each.shape[2] for each in layer.held] for layer in cache.layers]
        assert lengths == [[3, 3], [3, 3], [24, 24]]


class OwnCache(nn.Module):
    """A user's model with a cache that knows nothing of padding; its next token is a sum's."""

    max_seq_len = 24

    def new_cache(self, max_len: int | None = None) -> list[Tensor]:
        return []

    def hidden(self, tokens: Tensor, *, cache: list[Tensor] | None = None) -> Tensor:
        past = cache[-1] if cache else 0
        sums = (past + tokens.cumsum(1)) % 11
        if cache is not None:
            cache.append(sums[:, -1:])
        return torch.nn.functional.one_hot(sums, 11).float()

    @property
    def output_weight(self) -> Tensor:
        return torch.eye(11)


def test_a_model_that_reads_no_padding_gets_rows_of_one_length_at_a_time() -> None:
    expected = []
    for prompt in PROMPTS:
        text = list(prompt)
        while len(text) < 24:
            text.append(sum(text) % 11)
        expected.append(text[len(prompt) :])
    seen: dict[int, list[int]] = {}

    def note(row: int, drawn: list[int]) -> bool:
        seen[row] = list(drawn)
        return False

    assert continued(OwnCache(), PROMPTS, 99, sampling=WAYS[0], ended=note) == expected
    assert seen == {row: text[:-1] for row, text in enumerate(expected) if text}


def test_a_row_ends_by_itself(small_decoder) -> None:
    model, how = small_decoder(), {"sampling": WAYS[0]}
    free = continued(model, PROMPTS, 12, **how)
    end = free[0][4]
    until = [row[: row.index(end) + 1] if end in row else row for row in free]
    assert len(set(map(len, until))) > 2
    assert continued(model, PROMPTS, 12, eos_id=end, **how) == until

    def third(row: int, drawn: list[int]) -> bool:
        return row == 1 and len(drawn) == 3

    cut = [row[:3] if number == 1 else row for number, row in enumerate(free)]
    assert continued(model, PROMPTS, 12, ended=third, **how) == cut


PEERS = [
    (LlamaConfig, LlamaForCausalLM, {}),
    (MistralConfig, MistralForCausalLM, {"sliding_window": 5}),
]


@pytest.mark.parametrize(("config", "kind", "options"), PEERS, ids=["llama", "mistral"])
@torch.no_grad()
def test_transformers_writes_the_same(config, kind, options) -> None:
    """Greedy and with a repetition penalty, of a batch that it pads on the left."""
    peer = kind(config(**peer_shape(eos_token_id=None, **options))).eval()
    randomise(peer)
    window = {"sliding_window_size": options.get("sliding_window", 0)}
    model = Decoder(DecoderConfig(**shape(n_kv_heads=2, **window)))
    model.load_state_dict(llama_tensors(peer, lambda parameter: parameter.detach()))
    prompts = [[5, 17, 17, 80], [33], [*range(60, 72)]]
    ids = torch.tensor([[0] * (12 - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (12 - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    for penalty in (1.0, 1.2):
        settings = {"do_sample": False, "max_new_tokens": 36, "repetition_penalty": penalty}
        asked = GenerationConfig(pad_token_id=0, **settings)
        theirs = peer.generate(ids, attention_mask=mask, generation_config=asked)[:, 12:].tolist()
        way = Sampling(temperature=0, repetition_penalty=penalty)
        assert continued(model, prompts, 36, sampling=way) == theirs
        assert len({token for row in theirs for token in row}) > 8


WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero")


class Watched(TorchDispatchMode):
    """What is done that a GPU would be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        by_mask = name == "index" and any(x is not None and x.dtype == torch.bool for x in args[1])
        if name in WAITS or by_mask:
            self.waits.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("use_cache", [True, False])
def test_rows_that_have_ended_leave_the_batch_and_few_tokens_wait_for_the_device(
    small_decoder, use_cache, monkeypatch
) -> None:
    """Whatever the number of tokens between two looks; each look is one transfer."""
    model = small_decoder()
    free = continued(model, PROMPTS, 12, sampling=WAYS[1])
    ends = frozenset({free[0][4], free[3][8]})
    counts = [next((n for n, t in enumerate(row, 1) if t in ends), len(row)) for row in free]
    until = [row[:count] for row, count in zip(free, counts, strict=True)]
    assert len(set(counts)) > 3
    read, looks, tolist, hidden = [], [], Tensor.tolist, model.hidden
    monkeypatch.setattr(Tensor, "tolist", lambda own: [looks.append(0), tolist(own)][1])

    def noted(tokens: Tensor, **more: Any) -> Tensor:
        read.append(len(tokens))
        return hidden(tokens, **more)

    monkeypatch.setattr(model, "hidden", noted)
    for every in (1, 3, 16):
        read.clear(), looks.clear()
        with Watched() as watched:
            how = {"sampling": WAYS[1], "ends": ends, "use_cache": use_cache, "every": every}
            assert continued(model, PROMPTS, 12, **how) == until
        assert not watched.waits
        if every == 1:
            rows = range(1, max(counts) + 1)
            assert read == [sum(count >= place for count in counts) for place in rows]
        else:
            assert len(looks) < max(counts)
    assert sum(read) < len(PROMPTS) * len(read)


@torch.no_grad()
def test_logprobs_are_those_of_transformers() -> None:
    """In fp64, of ragged rows and several samples of a prompt, before temperature and penalties."""
    peer = LlamaForCausalLM(LlamaConfig(**peer_shape(eos_token_id=None))).double().eval()
    randomise(peer)
    model = Decoder(DecoderConfig(**shape(n_kv_heads=2))).double()
    model.load_state_dict(llama_tensors(peer, lambda parameter: parameter.detach()))
    prompts = [[5, 17, 17, 80], [33], [5, 17, 17, 80], [*range(60, 72)], [33]]
    numbers = [0, 1, "0 1", 2, "1 1"]
    way = Sampling(temperature=0.7, top_k=9, repetition_penalty=1.3, seed=3)
    for every in (1, 4):
        how = DrawOptions(sampling=way, logprobs=True, every=every, ends=frozenset({50}), n_ids=90)
        made = continue_rows(model, prompts, 20, how, CPU, numbers)
        assert made.read == 4 + 1 + 12
        for prompt, tokens, said in zip(prompts, made.tokens, made.logprobs, strict=True):
            logits = peer(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
            expected = logits.log_softmax(-1).gather(-1, torch.tensor(tokens)[:, None])[:, 0]
            torch.testing.assert_close(torch.tensor(said).double(), expected, rtol=0, atol=1e-6)
            assert len(said) == len(tokens)


@pytest.mark.parametrize("options", [SHAPES["gqa, window"], SHAPES["mla latents"], DELTA], ids=str)
def test_samples_of_a_prompt_are_those_of_single_rows_and_read_it_once(
    small_decoder, options
) -> None:
    if options is DELTA:
        options = SHAPES["delta nets"]
    model, way = small_decoder(**options), Sampling(temperature=1.5, seed=4)
    rows = [PROMPTS[0], PROMPTS[0], PROMPTS[2], PROMPTS[0], PROMPTS[2]]
    numbers = [0, "0 1", 1, "0 2", "1 1"]
    alone = [
        continued(model, [row], 9, [number], sampling=way)[0]
        for row, number in zip(rows, numbers, strict=True)
    ]
    assert len(set(map(tuple, alone))) == 5
    made = continue_rows(model, rows, 9, DrawOptions(sampling=way), CPU, numbers)
    assert made.tokens == alone
    assert made.read == len(PROMPTS[0]) + len(PROMPTS[2])


def test_ties_are_broken_alike_everywhere() -> None:
    """Of equal logits the first tokens are among the top k; as a whole stable sort has it."""
    draw = torch.Generator().manual_seed(0)
    logits = (torch.randn(8, 300, generator=draw) * 2).round() / 2
    logits[0] = -0.0
    logits[0, ::2] = 0.0
    expected = logits.sort(dim=-1, descending=True, stable=True).indices[:, :40]
    assert torch.equal(_first_of(logits, 40), expected)
