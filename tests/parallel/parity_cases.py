"""The layouts that must equal one device, the models they are tried on, and those that a rule
refuses.
"""

from __future__ import annotations

from dataclasses import dataclass

# Uneven where it can be: 301 rows of vocabulary, a width that is no power of two, three blocks,
# fewer heads of keys than of queries.
SMALL = (
    "tokenizer.vocab_size=300",
    "model.vocab_size=301",
    "model.max_seq_len=24",
    "model.dim=40",
    "model.n_layers=3",
    "model.n_heads=4",
    "model.n_kv_heads=2",
    "model.ffn_hidden_dim=52",
    "model.tie_embeddings=false",
    "model.init_std=0.2",
    "train.seq_len=16",
    "train.batch_size=4",
    "train.global_batch_size=8",
    "train.grad_clip_norm=0",
    "precision=fp32",
    "run.device=cpu",
)

LOSSES = ("aux_loss_weight=0.05", "sequence_aux_loss_weight=0.02", "z_loss_weight=0.01")
MOE = tuple(
    f"model.moe.{text}"
    for text in (
        "num_experts=6",
        "top_k=2",
        "ffn_hidden_dim=20",
        "shared_experts=1",
        "kernel=loop",
        "bias_update_rate=0.01",
        *LOSSES,
    )
)
MICRO = ("model.moe.balance_scope=micro_batch", "train.batch_size=8")
CAPACITY = ("model.moe.capacity_factor=1.0", "model.moe.gradient_scale=true")
DEEPSEEK = (
    "router=sigmoid_topk",
    "n_routing_groups=2",
    "routed_scaling_factor=1.5",
    "first_num_dense_layers=1",
    "shared_experts=2",
)

MIXTURES = {
    "moe": MOE,
    "moe, clipped": (*MOE, "train.grad_clip_norm=0.1"),
    "moe, 8 experts": (*MOE, "model.moe.num_experts=8"),
    "moe, deepseek": (*MOE, *(f"model.moe.{text}" for text in DEEPSEEK)),
    "moe, 5 blocks": (*MOE, "model.n_layers=5", "model.moe.frequency=2"),
    "moe, capacity": (*MOE, *CAPACITY),
    "moe, micro-batch": (*MOE, *MICRO),
    "moe, 8 experts, micro-batch": (*MOE, "model.moe.num_experts=8", *MICRO),
    "moe, pairs": (*MOE, MICRO[0], "train.batch_size=2"),
    "moe, capacity, micro-batch": (*MOE, *CAPACITY, *MICRO),
}
"""Mixtures of experts, with what is counted in sequences or in micro-batches; six experts do not
divide by four ranks.
"""

GPT2 = (
    "model.position=learned",
    "model.norm_type=layernorm",
    "model.activation=gelu",
    "model.gated_mlp=false",
    "model.bias=true",
    "model.qk_norm=false",
    "model.tie_embeddings=true",
)

MODELS = {
    "llama": (),
    "llama, odd sizes": (
        "model.dim=42",
        "model.n_heads=3",
        "model.n_kv_heads=1",
        "model.ffn_hidden_dim=53",
    ),
    "llama, 5 blocks": ("model.n_layers=5",),
    "llama, tied": ("model.tie_embeddings=true",),
    "llama, tied, 5 blocks": ("model.tie_embeddings=true", "model.n_layers=5"),
    "llama, 4 heads of keys": ("model.n_kv_heads=4",),
    "gpt2": GPT2,
    "gpt2, 5 blocks": (*GPT2, "model.n_layers=5"),
    "llama, z-loss, clipped": ("objective.z_loss_weight=0.01", "train.grad_clip_norm=0.1"),
    "llama, clipped": ("train.grad_clip_norm=0.1",),
    "llama, tied, clipped": ("model.tie_embeddings=true", "train.grad_clip_norm=0.1"),
    **MIXTURES,
}
"""Overrides of both sides."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A layout, as overrides of one side, and the model it is tried on. slow: rarer, for `make
    test` alone.
    """

    name: str
    layout: str
    model: str = "llama"
    slow: bool = False


@dataclass(frozen=True, kw_only=True)
class InBf16:
    """A layout in bf16, against one device in bf16: one is as far from fp32 as the other. both:
    overrides of both.
    """

    name: str
    layout: str
    model: str = "llama"
    both: str = ""


@dataclass(frozen=True, kw_only=True)
class Refused:
    """A layout that cannot hold, and the rule that says why."""

    name: str
    layout: str
    rule: str
    model: str = "llama"


CHUNKED = "objective.loss_fn=chunked_cross_entropy objective.ce_chunk_size=5"
COMPILED = "train.compile_model=true train.compile_backend=aot_eager"
FULL, SELECTIVE = "train.activation_checkpointing=full", "train.activation_checkpointing=selective"
BATCHES_OF_1, BATCHES_OF_2, BATCHES_OF_8 = (f"train.batch_size={size}" for size in (1, 2, 8))
FSDP4 = f"parallel.dp_shard=4 {BATCHES_OF_2}"
HSDP = f"parallel.dp_shard=2 parallel.dp_replicate=2 {BATCHES_OF_2}"
EACH = "parallel.reduce_gradients=micro_batch"
FSDP2, TP2, CP2 = "parallel.dp_shard=2", "parallel.tp=2", "parallel.cp=2"
PP2 = f"parallel.pp=2 {BATCHES_OF_8} parallel.pp_microbatches=4"
ZBV = "parallel.pp_schedule=zbv_zero_bubble"
BLOCKS = {
    "gpipe": 3,
    "1f1b": 3,
    "interleaved_1f1b": 5,
    "interleaved_zero_bubble": 5,
    "zbv_zero_bubble": 5,
}

CASES = [
    # one device, other ways of computing the same
    Case(name="one device, one micro-batch", layout=BATCHES_OF_8),
    Case(name="one device, full recompute", layout=FULL),
    Case(
        name="one device, selective recompute of every second block",
        layout=f"{SELECTIVE} train.recompute_every=2",
    ),
    Case(name="one device, chunked cross-entropy", layout=CHUNKED, model="llama, z-loss, clipped"),
    Case(name="one device, compiled", layout=COMPILED),
    # data
    Case(name="ddp2", layout="parallel=ddp"),
    Case(name="ddp2, gpt2", layout="parallel=ddp", model="gpt2"),
    Case(name="fsdp2", layout=FSDP2, model="llama, odd sizes"),
    Case(name="fsdp2, tied", layout=FSDP2, model="llama, tied"),
    Case(name="fsdp2, z-loss, clipped", layout=FSDP2, model="llama, z-loss, clipped"),
    Case(
        name="fsdp2, chunked cross-entropy",
        layout=f"{FSDP2} {CHUNKED}",
        model="llama, z-loss, clipped",
    ),
    Case(
        name="fsdp2, accumulation over 4",
        layout=f"{FSDP2} {BATCHES_OF_1}",
        model="llama, odd sizes",
    ),
    Case(name="fsdp2, each micro-batch reduced", layout=f"{FSDP2} {BATCHES_OF_2} {EACH}"),
    Case(
        name="fsdp2, gathered weights kept", layout=f"{FSDP2} parallel.reshard_after_forward=never"
    ),
    Case(
        name="fsdp2, cpu offload",
        layout=f"{FSDP2} parallel.cpu_offload=true",
        model="llama, clipped",
    ),
    Case(name="fsdp2, full recompute", layout=f"{FSDP2} {FULL}"),
    Case(name="fsdp2, selective recompute", layout=f"{FSDP2} {SELECTIVE}"),
    Case(
        name="fsdp2, recompute of every second block",
        layout=f"{FSDP2} {FULL} train.recompute_every=2",
    ),
    Case(name="fsdp2, compiled", layout=f"{FSDP2} {COMPILED}"),
    Case(
        name="fsdp2, compiled, selective recompute",
        layout=f"{FSDP2} {COMPILED} {SELECTIVE}",
        slow=True,
    ),
    Case(name="fsdp4", layout=FSDP4, model="llama, odd sizes"),
    Case(name="fsdp4, gpt2", layout=FSDP4, model="gpt2", slow=True),
    Case(name="hsdp 2x2", layout=HSDP, model="llama, odd sizes"),
    Case(
        name="hsdp 2x2, clipped, cpu offload",
        layout=f"{HSDP} parallel.cpu_offload=true",
        model="llama, clipped",
        slow=True,
    ),
    # tensor
    Case(name="tp2", layout=TP2),
    Case(name="tp2, tied, clipped", layout=TP2, model="llama, tied, clipped"),
    Case(name="tp2, gpt2", layout=TP2, model="gpt2"),
    Case(name="tp2 without sequence parallel", layout=f"{TP2} parallel.sequence_parallel=false"),
    Case(
        name="tp2 without sequence parallel, gpt2",
        layout=f"{TP2} parallel.sequence_parallel=false",
        model="gpt2",
    ),
    Case(
        name="tp2 without loss parallel",
        layout=f"{TP2} parallel.loss_parallel=false",
        model="llama, z-loss, clipped",
    ),
    Case(
        name="tp2, chunked cross-entropy", layout=f"{TP2} {CHUNKED}", model="llama, z-loss, clipped"
    ),
    Case(name="tp2, full recompute", layout=f"{TP2} {FULL}"),
    Case(name="tp2, selective recompute", layout=f"{TP2} {SELECTIVE}", slow=True),
    Case(name="tp2, compiled", layout=f"{TP2} {COMPILED}"),
    Case(name="tp4 with 2 heads of keys", layout="parallel.tp=4"),
    Case(
        name="tp4 with 2 heads of keys, without sequence parallel",
        layout="parallel.tp=4 parallel.sequence_parallel=false",
        slow=True,
    ),
    Case(name="tp2 x fsdp2", layout=f"{TP2} {FSDP2}", model="llama, clipped"),
    Case(name="tp2 x fsdp2, gpt2", layout=f"{TP2} {FSDP2}", model="gpt2", slow=True),
    Case(
        name="tp2 x fsdp2, cpu offload",
        layout=f"{TP2} {FSDP2} parallel.cpu_offload=true",
        model="llama, clipped",
        slow=True,
    ),
    Case(
        name="tp2 x ddp2",
        layout=f"{TP2} parallel.dp_replicate=2",
        model="llama, clipped",
        slow=True,
    ),
    # context
    Case(name="cp2 all_gather", layout=CP2),
    Case(name="cp2 all_gather, gpt2", layout=CP2, model="gpt2", slow=True),
    Case(name="cp2 all_gather, contiguous parts", layout=f"{CP2} parallel.cp_load_balance=false"),
    Case(name="cp2 ulysses", layout=f"{CP2} parallel.cp_method=ulysses"),
    Case(name="cp2 all_gather, full recompute", layout=f"{CP2} {FULL}", slow=True),
    Case(name="cp2 all_gather, compiled", layout=f"{CP2} {COMPILED}", slow=True),
    Case(name="cp4 all_gather", layout="parallel.cp=4", slow=True),
    Case(
        name="cp4 ulysses",
        layout="parallel.cp=4 parallel.cp_method=ulysses",
        model="llama, 4 heads of keys",
        slow=True,
    ),
    Case(name="cp2 x fsdp2", layout=f"{CP2} {FSDP2}", model="llama, clipped"),
    Case(name="cp2 x tp2", layout=f"{CP2} {TP2}"),
    Case(
        name="cp2 ulysses x tp2",
        layout=f"{CP2} {TP2} parallel.cp_method=ulysses",
        model="llama, 4 heads of keys",
        slow=True,
    ),
    # pipeline
    *(
        Case(
            name=f"pp2 {name}",
            layout=f"{PP2} parallel.pp_schedule={name}",
            model="llama" if n == 3 else f"llama, {n} blocks",
        )
        for name, n in BLOCKS.items()
    ),
    Case(name="pp2 tied", layout=PP2, model="llama, tied"),
    Case(
        name="pp2 tied, interleaved_1f1b",
        layout=f"{PP2} parallel.pp_schedule=interleaved_1f1b",
        model="llama, tied, 5 blocks",
        slow=True,
    ),
    Case(name="pp2, z-loss, clipped", layout=PP2, model="llama, z-loss, clipped"),
    Case(
        name="pp2, chunked cross-entropy",
        layout=f"{PP2} {CHUNKED}",
        model="llama, z-loss, clipped",
        slow=True,
    ),
    Case(name="pp2, accumulation over 2", layout="parallel.pp=2"),
    Case(name="pp2, layers 1 + 2", layout=f"{PP2} parallel.pp_layers=[1,2]", slow=True),
    Case(name="pp2, full recompute", layout=f"{PP2} {FULL}", slow=True),
    Case(name="pp2, compiled", layout=f"{PP2} {COMPILED}", slow=True),
    Case(name="pp2, gpt2", layout=PP2, model="gpt2", slow=True),
    Case(name="pp2 x fsdp2", layout=f"{PP2} {FSDP2} train.batch_size=4", model="llama, clipped"),
    Case(
        name="pp2 x fsdp2, zbv_zero_bubble",
        layout=f"{PP2} {FSDP2} train.batch_size=4 parallel.pp_schedule=zbv_zero_bubble",
        model="llama, 5 blocks",
        slow=True,
    ),
    Case(name="pp2 x tp2", layout=f"{PP2} {TP2}", model="llama, clipped"),
    Case(
        name="pp2 x tp2, interleaved_1f1b, gpt2",
        layout=f"{PP2} {TP2} parallel.pp_schedule=interleaved_1f1b",
        model="gpt2, 5 blocks",
        slow=True,
    ),
    Case(name="pp2 x cp2", layout=f"{PP2} {CP2}", slow=True),
    Case(name="pp3 of 5 blocks", layout=f"{PP2} parallel.pp=3", model="llama, 5 blocks", slow=True),
]

EP2 = "parallel.ep=2"
EP2_FSDP2 = f"{EP2} {FSDP2} {BATCHES_OF_2}"

MOE_CASES = [
    Case(name="moe: one device, full recompute", layout=FULL, model="moe"),
    Case(name="moe: one device, selective recompute", layout=SELECTIVE, model="moe"),
    Case(name="moe: one device, compiled", layout=COMPILED, model="moe"),
    Case(name="moe: fsdp2", layout=FSDP2, model="moe, clipped"),
    Case(name="moe: fsdp2, capacity", layout=FSDP2, model="moe, capacity", slow=True),
    Case(
        name="moe: fsdp2, micro-batch",
        layout=f"{FSDP2} train.batch_size=4",
        model="moe, micro-batch",
    ),
    Case(name="moe: fsdp4", layout=FSDP4, model="moe", slow=True),
    Case(name="moe: hsdp 2x2", layout=HSDP, model="moe, clipped"),
    Case(
        name="moe: hsdp 2x2, capacity, micro-batch",
        layout=HSDP,
        model="moe, capacity, micro-batch",
        slow=True,
    ),
    Case(name="moe: tp2", layout=TP2, model="moe, clipped"),
    Case(name="moe: tp2, deepseek", layout=TP2, model="moe, deepseek", slow=True),
    Case(
        name="moe: tp2 without sequence parallel",
        layout=f"{TP2} parallel.sequence_parallel=false",
        model="moe, capacity",
    ),
    Case(name="moe: tp2, micro-batch", layout=TP2, model="moe, micro-batch", slow=True),
    Case(name="moe: tp2 x fsdp2", layout=f"{TP2} {FSDP2}", model="moe", slow=True),
    Case(name="moe: cp2", layout=CP2, model="moe"),
    Case(
        name="moe: cp2 ulysses, micro-batch",
        layout=f"{CP2} parallel.cp_method=ulysses",
        model="moe, micro-batch",
    ),
    Case(name="moe: cp2, capacity", layout=CP2, model="moe, capacity"),
    Case(
        name="moe: cp2, capacity, micro-batch",
        layout=CP2,
        model="moe, capacity, micro-batch",
        slow=True,
    ),
    Case(name="moe: ep2", layout=EP2, model="moe, clipped"),
    Case(name="moe: ep2, deepseek", layout=EP2, model="moe, deepseek"),
    Case(name="moe: ep2, capacity", layout=EP2, model="moe, capacity"),
    Case(
        name="moe: ep2, micro-batch", layout=f"{EP2} train.batch_size=4", model="moe, micro-batch"
    ),
    Case(
        name="moe: ep2, capacity, micro-batch",
        layout=f"{EP2} train.batch_size=4",
        model="moe, capacity, micro-batch",
    ),
    Case(
        name="moe: ep2, accumulation over 4", layout=f"{EP2} {BATCHES_OF_1}", model="moe", slow=True
    ),
    Case(
        name="moe: ep2, cpu offload",
        layout=f"{EP2} parallel.cpu_offload=true",
        model="moe",
        slow=True,
    ),
    Case(name="moe: ep2, full recompute", layout=f"{EP2} {FULL}", model="moe"),
    Case(name="moe: ep2, selective recompute", layout=f"{EP2} {SELECTIVE}", model="moe, capacity"),
    Case(name="moe: ep2, compiled", layout=f"{EP2} {COMPILED}", model="moe"),
    Case(
        name="moe: ep2, compiled, selective recompute",
        layout=f"{EP2} {COMPILED} {SELECTIVE}",
        model="moe",
        slow=True,
    ),
    Case(name="moe: ep4", layout=f"parallel.ep=4 {BATCHES_OF_2}", model="moe, 8 experts"),
    Case(
        name="moe: ep4, micro-batch",
        layout=f"parallel.ep=4 {BATCHES_OF_2}",
        model="moe, 8 experts, micro-batch",
        slow=True,
    ),
    Case(name="moe: ep2 x fsdp2", layout=EP2_FSDP2, model="moe, clipped"),
    Case(
        name="moe: ep2 x fsdp2, 2 experts a rank",
        layout=EP2_FSDP2,
        model="moe, 8 experts",
        slow=True,
    ),
    Case(
        name="moe: ep2 x ddp2",
        layout=f"{EP2} parallel.dp_replicate=2 {BATCHES_OF_2}",
        model="moe",
        slow=True,
    ),
    Case(name="moe: ep2 x tp2", layout=f"{EP2} {TP2}", model="moe, clipped"),
    Case(name="moe: ep2 x tp2, capacity", layout=f"{EP2} {TP2}", model="moe, capacity", slow=True),
    Case(name="moe: ep2 x cp2", layout=f"{EP2} {CP2}", model="moe"),
    Case(
        name="moe: ep2 x cp2, capacity, micro-batch",
        layout=f"{EP2} {CP2} train.batch_size=4",
        model="moe, capacity, micro-batch",
    ),
    Case(name="moe: pp2", layout=PP2, model="moe, clipped"),
    Case(
        name="moe: pp2, interleaved_zero_bubble",
        layout=f"{PP2} parallel.pp_schedule=interleaved_zero_bubble",
        model="moe, 5 blocks",
    ),
    Case(name="moe: pp2, zbv_zero_bubble", layout=f"{PP2} {ZBV}", model="moe, 5 blocks", slow=True),
    Case(
        name="moe: pp2 x fsdp2, micro-batch",
        layout=f"{PP2} {FSDP2} {BATCHES_OF_1}",
        model="moe, pairs",
        slow=True,
    ),
    Case(name="moe: pp2 x ep2", layout=f"{PP2} {EP2} train.batch_size=4", model="moe, clipped"),
    Case(
        name="moe: pp2 x ep2, capacity",
        layout=f"{PP2} {EP2} train.batch_size=4",
        model="moe, capacity",
        slow=True,
    ),
]

RESIDUAL = "precision.residual_dtype=fp32"
BF16_CASES = [
    InBf16(name="fsdp2", layout=FSDP2),
    InBf16(name="fsdp2, tied", layout=FSDP2, model="llama, tied"),
    InBf16(name="ddp2, each micro-batch reduced", layout=f"parallel=ddp {BATCHES_OF_2} {EACH}"),
    InBf16(name="tp2", layout=TP2),
    InBf16(name="cp2", layout=CP2),
    InBf16(name="pp2", layout=PP2),
    InBf16(name="fsdp2, gpt2", layout=FSDP2, model="gpt2"),
    InBf16(name="tp2, gpt2", layout=TP2, model="gpt2"),
    InBf16(name="fsdp2, fp32 between layers", layout=FSDP2, both=RESIDUAL),
    InBf16(name="tp2, fp32 between layers", layout=TP2, both=RESIDUAL),
    InBf16(name="pp2, fp32 between layers", layout=PP2, both=RESIDUAL),
]

REFUSED = [
    Refused(
        name="tp2 of three heads", layout=TP2, model="llama, odd sizes", rule="parallel.tp_heads"
    ),
    Refused(
        name="tp4 with 6 heads of keys",
        layout="parallel.tp=4 model.dim=48 model.n_heads=12 model.n_kv_heads=6",
        rule="parallel.tp_kv_heads",
    ),
    Refused(
        name="tp2 of an odd feed-forward width",
        layout=f"{TP2} model.ffn_hidden_dim=53",
        rule="parallel.tp_ffn",
    ),
    Refused(
        name="tp2 without loss parallel, chunked",
        layout=f"{TP2} parallel.loss_parallel=false {CHUNKED}",
        rule="parallel.tp_loss",
    ),
    Refused(name="cp2 of 15 tokens", layout=f"{CP2} train.seq_len=15", rule="parallel.seq_len"),
    Refused(
        name="cp4 ulysses of 2 heads of keys",
        layout="parallel.cp=4 parallel.cp_method=ulysses",
        rule="parallel.ulysses_heads",
    ),
    Refused(name="pp4 of three blocks", layout="parallel.pp=4", rule="parallel.pp_layers"),
    Refused(
        name="pp2 1f1b, fewer micro-batches than stages",
        layout=f"{PP2} parallel.pp_microbatches=1",
        rule="parallel.pp_microbatches",
    ),
    Refused(
        name="pp2 x fsdp2, weights freed",
        layout=f"{PP2} {FSDP2} parallel.reshard_after_forward=always",
        rule="parallel.pp_reshard",
    ),
    Refused(
        name="pp2 tied, zbv_zero_bubble",
        layout=f"{PP2} {ZBV}",
        model="llama, tied, 5 blocks",
        rule="parallel.pp_tied",
    ),
    Refused(
        name="pp2 zbv_zero_bubble, compiled",
        layout=f"{PP2} {ZBV} {COMPILED}",
        model="llama, 5 blocks",
        rule="parallel.pp_compile",
    ),
    Refused(name="fsdp2 x ep2", layout=f"{FSDP2} parallel.ep=2", rule="parallel.ep_needs_moe"),
]


def overrides_of(model: str, layout: str = "") -> list[str]:
    """What one side is composed of; the last of several values of a key holds."""
    keyed = {text.partition("=")[0]: text for text in (*SMALL, *MODELS[model], *layout.split())}
    return list(keyed.values())
