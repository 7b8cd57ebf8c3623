"""The torch-free memory estimate against what torch holds."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
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
from forge.parallel.host_memory import Host
from forge.parallel.modules import FORMATS
from forge.parallel.ranks import join_ranks
from forge.planning.activations import Activations
from forge.planning.memory import memory_by_part
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
MOE = {"moe.num_experts": 8, "moe.ffn_hidden_dim": 24}


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
        parts, kind = memory_by_part(chosen), chosen.precision.param_dtype
        model.train()  # frees what is gathered
        parameters = list(model.parameters())
        assert parts[f"weights ({kind})"] == bytes_of(parameters)
        gradients = [p.grad for p in parameters if p.grad is not None]
        assert parts[f"gradients ({kind})"] == bytes_of(gradients)
        masters = [p.master for p in parameters if hasattr(p, "master")]
        assert parts.get("fp32 masters", 0) == bytes_of(masters)
        moments = [v for state in made.state.values() for key, v in state.items() if key != "step"]
        assert parts["optimizer state"] == bytes_of(moments)

    on_ranks(1, work)


@pytest.mark.parametrize(
    ("format", "residual"),
    [
        ("bf16", "bf16"),
        pytest.param("fp32", "fp32", marks=pytest.mark.nightly),
        pytest.param("bf16", "fp32", marks=pytest.mark.nightly),
    ],
)
@pytest.mark.parametrize("mode", ["none", "selective", "full"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"n_kv_heads": 2},
        {"activation": "relu", "gated_mlp": True},
        {"qk_norm": True},
        {"qk_norm": True, "norm_type": "layernorm", "n_kv_heads": 1},
        {"head_dim": 40, "norm_placement": "both"},
        {"norm_placement": "post"},
        {
            "kinds": "{a:{sliding_window_size:4,n_heads:2,ffn_hidden_dim:40}}",
            "layers": "[a,default]",
        },
        {"attention_sink": True, "n_kv_heads": 2},
        {"attn_logits_soft_cap": 2.0, "n_kv_heads": 2},
        {"attn_logits_soft_cap": 2.0, "attention_sink": True, "sliding_window_size": 4},
        {"chunk_attn_window_size": 8, "qk_norm": True, "qk_norm_width": "all"},
        {"chunk_attn_window_size": 12, "attention_sink": True},
        {"attention_output_gate": True, "v_norm": True, "qk_norm": True},
        {"share_kv_projections": True, "qk_norm": True, "v_norm": True, "v_norm_with_scale": False},
        {"position": "none", "temperature_tuning": True},
        {"qk_norm": True, "qk_norm_after_rope": True, "partial_rotary_factor": 0.5},
        GPT2,
        GPT2 | {"dropout": 0.1},
        {"dropout": 0.1, "norm_placement": "both"},
        MOE,
        MOE | {"moe.shared_experts": 2, "moe.frequency": 2},
        MOE | {"moe.capacity_factor": 1.0, "moe.router": "sigmoid_topk"},
        MOE | GPT_OSS,
        MOE | GPT_OSS | {"moe.capacity_factor": 1.0, "moe.score_on_input": True},
        MOE | BESIDE,
        {"activation": "relu", "mlp_activations_limit": 7},
        MLA,
        MLA | {"mixer.v_head_dim": 18},
        DELTA,
        DELTA | {"mixer.gdn_num_key_heads": 4, "mixer.gdn_chunk_size": 5},
        DELTA | {"mixer.use_qk_norm_in_gdn": False, "mixer.gdn_chunk_size": 64},
        MLA | MOE | {"mixer.q_lora_rank": 12, "moe.shared_experts": 1, "position": "none"},
    ],
    ids=str,
)
def test_activations_are_what_forward_leaves_alive(
    config: Callable[..., Config], options: dict[str, Any], mode: str, format: str, residual: str
) -> None:
    """Every storage made in forward that is alive when it has returned; within 1 %, or the weights
    of norms.
    """
    formats = (f"precision={format}", f"precision.residual_dtype={residual}")
    chosen = config(f"train.activation_checkpointing={mode}", *formats, **options)
    assert isinstance(chosen.model, DecoderConfig)
    model = Decoder(chosen.model)
    for parameter in model.parameters():  # as FSDP gathers them
        parameter.data = parameter.to(torch.bfloat16 if format == "bf16" else torch.float32)
    model.residual_dtype = FORMATS[residual] if format == "bf16" else None
    recompute_blocks(model, mode)
    tokens = torch.zeros(BATCH, SEQ, dtype=torch.int64)
    noise = tokens.int()
    with Live(model) as live:
        kept = model.logits(model.hidden(tokens, noise=noise))
        held = live.bytes() - kept.nbytes
    held -= noise.nbytes if chosen.model.dropout else 0  # of the batch, which layers look at
    assert held == pytest.approx(memory_by_part(chosen)["activations"], rel=0.01, abs=640)


@pytest.mark.parametrize("mode", ["none", "full"])
@pytest.mark.parametrize(
    "options",
    [
        {"n_kv_heads": 2},
        {"position": "learned", "sliding_window_size": 4},
        {"kinds": "{a:{sliding_window_size:4,rope_theta:100}}", "layers": "[a,default]"},
        DELTA,
    ],
    ids=str,
)
def test_documents_apart_cost_the_masks_that_layers_share(
    config: Callable[..., Config], options: dict[str, Any], mode: str
) -> None:
    chosen = config("data.pack_sequences=true", f"train.activation_checkpointing={mode}", **options)
    model = Decoder(chosen.model)  # type: ignore[arg-type]
    recompute_blocks(model, mode)
    tokens = torch.zeros(BATCH, SEQ, dtype=torch.int64)
    documents = torch.arange(SEQ).expand(BATCH, SEQ) // 5
    with Live(model) as live:
        kept = model.hidden(tokens, documents=documents)
        held = live.bytes() - kept.nbytes
    parts = memory_by_part(chosen)
    expected = parts["activations"] + parts["masks of documents"]
    expected -= BATCH * SEQ * 4 * SIZES["dim"]  # what the head reads is not held besides
    assert held == pytest.approx(expected, rel=0.03, abs=640)


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
    assert memory_by_part(chosen)["logits"] == pytest.approx(live.peak, rel=0.25)


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
    assert memory_by_part(chosen)["logits"] == pytest.approx(live.peak, rel=0.25)


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
    assert memory_by_part(chosen)["logits"] == 4 * vocab * rows + 4 * dim * (tokens + vocab)


def test_blocks_of_documents_take_no_mask(config: Callable[..., Config]) -> None:
    """On a GPU that compiles; but what positions of documents take is shared by layers too."""
    options = ["data.pack_sequences=true", "train.compile_model=true", "precision=bf16"]
    of = {}
    for way in ("mask", "flex", "auto"):
        chosen = copy.deepcopy(config(*options, n_kv_heads=1, head_dim=16))
        chosen.thaw()
        chosen.run.device, chosen.model.document_attention = "cuda", way  # type: ignore[union-attr]
        of[way] = memory_by_part(chosen)
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
        pytest.param(MLA | {"mixer.q_lora_rank": 12}, marks=pytest.mark.nightly),
        MOE | {"moe.n_routing_groups": 4, "moe.topk_routing_group": 2, "norm_placement": "both"},
        pytest.param(DELTA, marks=pytest.mark.nightly),
    ],
    ids=str,
)
def test_each_named_tensor_is_as_large_as_its_component_says(
    config: Callable[..., Config], options: dict[str, Any]
) -> None:
    """Kept in both blocks, or in host memory in one; with the choice of experts, which is always
    kept.
    """
    chosen = config(**options)
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
            assert always - none == bytes
            continue
        places = {name: "device", "router": "device"}
        assert held(places, {}) - always == bytes, name
        assert held(places | {name: "offload"}, {name: 1}) - always == bytes / 2, name
