"""The torch-free memory estimate against what torch holds."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers.ranks import on_ranks
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import forge
from forge.config.model.decoder import Decoder as DecoderConfig
from forge.config.objectives.base import SFT as SFTConfig
from forge.config.objectives.preference import DPO as DPOConfig
from forge.config.recompute import Policy
from forge.config.root import Config
from forge.models.decoder import Decoder
from forge.objectives.chunked_cross_entropy import auto_chunk_size
from forge.objectives.dpo import DPO
from forge.objectives.sft import SFT
from forge.optim.build import build_optimizer
from forge.parallel.activation_checkpoint import recompute_blocks
from forge.parallel.apply import apply_to_blocks
from forge.parallel.host_memory import Host
from forge.parallel.join import join_ranks
from forge.planning.activations import Activations
from forge.planning.memory import FORWARD, memory_of
from forge.resolve.resolve import resolve
from forge.training.models import build_model

BATCH, SEQ = 2, 32
SIZES = {"dim": 32, "n_layers": 2, "n_heads": 4, "vocab_size": 320, "ffn_hidden_dim": 48}
SIZES |= {"max_seq_len": 64, "tie_embeddings": False}
GPT2 = {"activation": "gelu", "norm_type": "layernorm", "position": "learned", "bias": True}
GPT2 |= {"tie_embeddings": True}
MLA = {"mixer.kv_lora_rank": 20, "mixer.qk_nope_head_dim": 10, "mixer.qk_rope_head_dim": 8}
MLA |= {"mixer.v_head_dim": 6}
GPT_OSS = {"activation": "quick_gelu", "gated_mlp": True, "mlp_activations_limit": 7}
GPT_OSS |= {"mlp_up_offset": 1, "moe.expert_bias": True, "moe.router_bias": True}
BESIDE = {"moe.shared_experts": 1, "moe.shared_hidden_dim": 20, "moe.shared_expert_gate": True}
BESIDE |= {"moe.beside_dense": True, "moe.score_on_input": True, "mlp_up_offset": 1}
DELTA = {"mixer.gdn_num_key_heads": 2, "mixer.gdn_num_value_heads": 4, "mixer.gdn_chunk_size": 8}
DELTA |= {"mixer.gdn_key_head_dim": 12, "mixer.gdn_value_head_dim": 10}
MAMBA = {"mixer.ssm_num_heads": 4, "mixer.ssm_head_dim": 24, "mixer.ssm_chunk_size": 8}
MAMBA |= {"mixer.ssm_state_size": 12, "mixer.ssm_n_groups": 2}
INDEXED = MLA | {"mixer.q_lora_rank": 12, "mixer.use_indexer": True, "mixer.indexer_topk": 8}
INDEXED |= {"mixer.indexer_n_heads": 4, "mixer.indexer_head_dim": 24}
INDEXED |= {"mixer.indexer_loss_scaling_factor": 1.0}
CONV = {"mixer.conv_kernel_dim": 3}
JOINED = {"fused_qkv": True, "fused_gate_up": True}
SKIPS = dict.fromkeys(("value_embeddings", "residual_scalars", "x0_scalars", "smear"), True)
STREAMS = {"mhc_expansion_rate": 3, "sinkhorn_iterations": 4}
MOBA = {"moba": True, "moba_chunk_size": 8, "moba_topk": 2}
MEMORY = {"engram_layers": [0], "engram_vocab_bases": [100], "engram_max_ngram_size": 2}
MEMORY |= {"engram_num_heads": 2, "engram_head_dim": 40}
SKIPS |= {"backout": True, "norm_with_scale": False}
MOE = {"moe.num_experts": 8, "moe.ffn_hidden_dim": 96}
WIDE = {"dim": 128, "n_kv_heads": 2, "ffn_hidden_dim": 320}


class Live(TorchDispatchMode):
    """Bytes of the storages that operations made in here and that are still there, and the most
    there were at once.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        own = (*model.parameters(), *model.buffers())
        local = (one.to_local() if isinstance(one, DTensor) else one for one in own)
        self.models_own = {tensor.untyped_storage()._cdata for tensor in local}
        self.made: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            storage = tensor.untyped_storage() if isinstance(tensor, torch.Tensor) else None
            if storage is not None and storage._cdata not in self.models_own:
                self.made[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self.peak = max(self.peak, self.bytes())
        return result

    def bytes(self) -> int:
        self.made = {key: made for key, made in self.made.items() if not made[0].expired()}
        return sum(size for _, size in self.made.values())


@pytest.fixture
def config() -> Callable[..., Config]:
    def make(*overrides: str, **model: Any) -> Config:
        sizes = [f"model.{key}={value}" for key, value in (SIZES | model).items()]
        sizes += ["+mixer@model.mixer=mla"] if MLA.items() & model.items() else []
        sizes += ["+mixer@model.mixer=gated_delta_net"] if DELTA.items() & model.items() else []
        sizes += ["+mixer@model.mixer=mamba2"] if MAMBA.items() & model.items() else []
        sizes += ["+mixer@model.mixer=short_conv"] if CONV.items() & model.items() else []
        batch = [f"train.batch_size={BATCH}", f"train.seq_len={SEQ}"]
        small = ["tokenizer.vocab_size=300", "run.device=cpu", "optimizer=adamw"]
        return resolve(forge.compose([*sizes, *batch, *small, *overrides])).config

    return make


BF16_WEIGHTS = "precision.param_dtype=bf16"
STOCHASTIC = f"{BF16_WEIGHTS} precision.stochastic_rounding=true"


@pytest.mark.parametrize("options", [{}, MOE], ids=str)
@pytest.mark.parametrize(
    ("formats", "optimizer"),
    [
        ("", "adamw"),
        ("", "adamw optimizer.mu_dtype=bf16 optimizer.nu_dtype=bf16"),
        ("precision.grad_dtype=bf16", "adamw"),
        (BF16_WEIGHTS, "adamw optimizer.mu_dtype=bf16 optimizer.nu_dtype=bf16"),
        (STOCHASTIC, "adamw optimizer.mu_dtype=bf16 optimizer.nu_dtype=bf16"),
        (STOCHASTIC, "adamw_low_bit"),
        (STOCHASTIC, "muon"),
        (BF16_WEIGHTS, "lion"),
    ],
)
def test_weights_gradients_and_optimizer_state_are_exact(
    config: Callable[..., Config], options: dict[str, Any], formats: str, optimizer: str
) -> None:
    """Of one device, in all formats, after an update."""
    words = f"precision=fp32 {formats} optimizer={optimizer}".split()
    chosen = config(*words, dim=64, **options)

    def bytes_of(tensors: Iterable[Any]) -> int:
        return sum((t.to_local() if isinstance(t, DTensor) else t).nbytes for t in tensors)

    def work(_: int) -> None:
        cpu = torch.device("cpu")
        model = build_model(chosen, cpu, join_ranks(chosen, cpu), trained=True)
        made = build_optimizer(chosen, model)
        model(torch.zeros(1, 4, dtype=torch.int64)).sum().backward()
        made.step()
        parts, precision = memory_of(chosen).state, chosen.precision
        model.train()  # frees what is gathered
        parameters = list(model.parameters())
        assert parts[f"weights ({precision.param_dtype})"] == bytes_of(parameters)
        gradients = [p.grad for p in parameters if p.grad is not None]
        assert parts[f"gradients ({precision.stored_gradients})"] == bytes_of(gradients)
        masters = [p.master for p in parameters if hasattr(p, "master")]
        assert parts.get("fp32 masters", 0) == bytes_of(masters)
        moments = [v for state in made.state.values() for key, v in state.items() if key != "step"]
        assert parts["optimizer state"] == bytes_of(moments)

    on_ranks(1, work)


@pytest.mark.parametrize(
    ("options", "mode"),
    [
        ({}, "none"),
        ({}, "selective"),
        pytest.param({}, "full", marks=pytest.mark.nightly),
        (MOE | {"moe.shared_experts": 1}, "none"),
        pytest.param(
            {"qk_norm": True, "norm_placement": "both"}, "none", marks=pytest.mark.nightly
        ),
        pytest.param(GPT2, "none", marks=pytest.mark.nightly),
        (SKIPS, "none"),
        pytest.param(SKIPS, "full", marks=pytest.mark.nightly),
        pytest.param(MOE | GPT_OSS, "none", marks=pytest.mark.nightly),
        pytest.param(DELTA, "none", marks=pytest.mark.nightly),
        pytest.param(MAMBA, "none", marks=pytest.mark.nightly),
        pytest.param(CONV, "none", marks=pytest.mark.nightly),
        pytest.param(INDEXED, "none", marks=pytest.mark.nightly),
        pytest.param(
            INDEXED | {"mixer.indexer_sparse_training": True}, "none", marks=pytest.mark.nightly
        ),
        pytest.param(MOBA, "none", marks=pytest.mark.nightly),
        pytest.param(STREAMS, "none", marks=pytest.mark.nightly),
        pytest.param(STREAMS, "full", marks=pytest.mark.nightly),
        pytest.param(MEMORY, "none", marks=pytest.mark.nightly),
        pytest.param(JOINED, "none", marks=pytest.mark.nightly),  # no second copy of the weights
    ],
    ids=str,
)
def test_activations_are_what_compiled_blocks_keep(
    config: Callable[..., Config], options: dict[str, Any], mode: str
) -> None:
    """Storages that autograd saves in forward, with torch's partitioner of compiled graphs: within
    8 %, since log-partitions and routing weigh more in so small a shape.
    """
    words = ("precision=fp32", "train.compile_model=true", f"train.activation_checkpointing={mode}")
    chosen = config(*words, **WIDE | options)
    assert isinstance(chosen.model, DecoderConfig)
    model = Decoder(chosen.model)
    backend = replace(chosen.train, compile_backend="aot_eager_decomp_partition")
    apply_to_blocks(model, replace(chosen, train=backend))
    weights = {t.untyped_storage()._cdata for t in (*model.parameters(), *model.buffers())}
    saved: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            saved[storage._cdata] = tensor
        return tensor

    tokens = torch.zeros(BATCH, SEQ, dtype=torch.int64)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model.logits(model.hidden(tokens))
    held = sum(tensor.untyped_storage().nbytes() for tensor in saved.values())
    assert memory_of(chosen).moments[FORWARD]["activations"] == pytest.approx(held, rel=0.08)


@pytest.mark.parametrize("format", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("loss", "z_loss_weight", "chunk", "smoothing"),
    [
        ("cross_entropy", 0.0, 0, 0.0),
        ("cross_entropy", 1e-4, 0, 0.0),
        ("cross_entropy", 0.0, 0, 0.1),
        ("chunked_cross_entropy", 0.0, 64, 0.0),
        ("chunked_cross_entropy", 1e-4, 0, 0.1),
    ],
)
def test_logits_are_the_peak_of_the_loss(
    config: Callable[..., Config],
    loss: str,
    z_loss_weight: float,
    chunk: int,
    smoothing: float,
    format: str,
) -> None:
    options = {"loss_fn": loss, "z_loss_weight": z_loss_weight, "ce_chunk_size": chunk}
    options["label_smoothing"] = smoothing
    objective = ("objective=sft", *(f"objective.{key}={each}" for key, each in options.items()))
    chosen = config(*objective, f"precision={format}", dim=8, vocab_size=2048, n_heads=2)
    head = Head(vocab=2048, dim=8).to(torch.bfloat16 if format == "bf16" else torch.float32)
    zeros = torch.zeros(BATCH, SEQ, dtype=torch.int64)
    with Live(head) as live:
        batch = {"tokens": zeros, "targets": zeros}
        SFT(SFTConfig(**options))(head, batch).total.backward()  # type: ignore[arg-type]
    assert memory_of(chosen).most("logits") == pytest.approx(live.peak, rel=0.25)


@pytest.mark.parametrize("format", ["fp32", "bf16"])
def test_the_same_of_responses_that_are_compared(
    config: Callable[..., Config], format: str
) -> None:
    words = ["objective=dpo", "data=preference", f"data.path={__file__}", f"precision={format}"]
    chosen = config(*words, "train.batch_size=1", dim=8, vocab_size=8192, n_heads=2)
    head = Head(vocab=8192, dim=8).to(torch.bfloat16 if format == "bf16" else torch.float32)
    ones = torch.ones(BATCH, SEQ, dtype=torch.int64)
    assert chosen.objective.rows == BATCH
    with Live(head) as live:
        objective = DPO(DPOConfig(reference_free=True))
        objective(head, {"tokens": ones, "targets": ones}).total.backward()  # type: ignore[arg-type]
    assert memory_of(chosen).most("logits") == pytest.approx(live.peak, rel=0.25)


class Head(torch.nn.Module):
    """An output head over hidden states that are there already."""

    def __init__(self, *, vocab: int, dim: int) -> None:
        super().__init__()
        self.output_weight = torch.nn.Parameter(torch.randn(vocab, dim))
        self.states = torch.nn.Parameter(torch.randn(BATCH, SEQ, dim))

    def hidden(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.states

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(self.states, self.output_weight)


@pytest.mark.parametrize(
    ("vocab", "dim"), [(320, 32), (32000, 4096), (128256, 256), (128256, 8192)]
)
def test_the_chunk_is_that_of_the_loss(config: Callable[..., Config], vocab: int, dim: int) -> None:
    chosen = config(
        "objective.loss_fn=chunked_cross_entropy", "train.batch_size=512", vocab_size=vocab, dim=dim
    )
    rows, tokens = auto_chunk_size(vocab=vocab, dim=dim), 512 * SEQ
    assert memory_of(chosen).most("logits") == 4 * vocab * rows + 4 * dim * (tokens + vocab)


def test_blocks_of_documents_take_no_mask(config: Callable[..., Config]) -> None:
    """On a GPU that compiles; but what positions of documents take is shared by layers too."""
    options = ["data.pack_sequences=true", "train.compile_model=true", "precision=bf16"]
    of = {}
    for way in ("mask", "flex", "auto"):
        chosen = copy.deepcopy(config(*options, n_kv_heads=1, head_dim=16))
        chosen.thaw()
        chosen.run.device, chosen.model.document_attention = "cuda", way  # type: ignore[union-attr]
        of[way] = memory_of(chosen).moments[FORWARD]
    assert of["auto"] == of["flex"]
    key, shared = "masks of documents", BATCH * SEQ * SEQ  # by layers of one window
    assert of["mask"][key] - of["flex"][key] == 2 * shared
    assert of["flex"][key] == BATCH * SEQ * 2 * 4 * 16  # cosines and sines
    assert of["mask"]["activations"] > of["flex"]["activations"]


@pytest.mark.parametrize(
    "options",
    [
        {"n_kv_heads": 2, "attention_output_gate": True},
        pytest.param(MOE | BESIDE, marks=pytest.mark.nightly),
        pytest.param(
            MLA | {"mixer.q_lora_rank": 12, "mixer.v_head_dim": 32}, marks=pytest.mark.nightly
        ),
        MOE | {"norm_placement": "both"},
        pytest.param(DELTA, marks=pytest.mark.nightly),
        pytest.param(MAMBA, marks=pytest.mark.nightly),
        pytest.param(CONV, marks=pytest.mark.nightly),
    ],
    ids=str,
)
def test_each_named_tensor_is_as_large_as_its_component_says(
    config: Callable[..., Config], options: dict[str, Any]
) -> None:
    """Kept in both blocks, or in host memory in one; with the choice of experts, which is always
    kept.
    """
    chosen = config(head_dim=32, **options)
    model: Any = chosen.model
    block = Activations(chosen, model).block(model.kind_of(0))
    tokens = torch.zeros(BATCH, SEQ, dtype=torch.int64)

    def held(places: dict[str, str], layers: dict[str, int]) -> int:
        built = Decoder(model)
        recompute_blocks(built, Policy(name="custom", places=places, layers=layers))
        for module in built.modules():
            if isinstance(host := getattr(module, "host", None), Host):
                host.smallest = 0
        with Live(built) as live:
            kept = built(tokens)
            return live.bytes() - kept.nbytes

    none = held({}, {})
    always = held({"router": "device"}, {})
    assert block is not None
    for name, one in block.keepable().items():
        bytes = 2 * BATCH * SEQ * one.bytes
        if name == "router":
            assert always - none == pytest.approx(bytes, rel=0.05)
            continue
        places = {name: "device", "router": "device"}
        near = pytest.approx(bytes, rel=0.07)  # the log-partition of a narrow head comes with it
        assert held(places, {}) - always == near, name
        assert 2 * (held(places | {name: "offload"}, {name: 1}) - always) == near, name
