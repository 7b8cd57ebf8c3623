"""Published figures of training, with the layouts that they are of."""

from __future__ import annotations

from dataclasses import dataclass

KEMPNER, SCALING = "KempnerForge, 1 to 32 GPUs", "KempnerForge, 8 to 360 GPUs"
TITAN, LLAMA = "torchtitan, 8 to 512 GPUs", "Llama 3, 8,192 and 16,384 GPUs"
SOURCES = {
    KEMPNER: "H200, machines of 4. github.com/KempnerInstitute/KempnerForge,"
    " benchmarks/mfu_scaling/mfu_scaling_2026-04-05.md\nand"
    " benchmarks/config_validation/config_validation_2026-04-06.md; where a batch is not said it"
    " follows from step time\nand tokens a second. Weights and moments are bf16; with tp it"
    " computes the loss on every rank.",
    SCALING: "The same, benchmarks/weak_scaling_160gpu/README.md and"
    " benchmarks/175b_360gpu/README.md.",
    TITAN: "H100 of 96 GB at 500 W, machines of 8. github.com/pytorch/torchtitan,"
    " benchmarks/llama3_h100_202412_torchtitan.md\nand"
    " benchmarks/asyncTP_llama3_h100_2025-06_torchtitan.md. Its selective recomputation repeats"
    " every second product;\ntaken is full recomputation of every second block.",
    LLAMA: "H100 at 700 W, machines of 8. arXiv:2407.21783, table 4. Stages are of one layer, eight"
    " a rank; taken are seven,\nsince each of forge's has a block. Its recomputation is not said;"
    " taken is none.",
}
EIGHT = "model=llama3_8b model.max_seq_len=262144"
SEVENTY, LARGEST = "model=llama3_70b", "model=llama3_1_405b"
WIDE = "model=llama3_8b model.n_kv_heads=8"
THIRTEEN = f"{WIDE} model.dim=5120 model.n_layers=40 model.n_heads=40 model.ffn_hidden_dim=17920"
GREAT = f"{WIDE} model.dim=12288 model.n_layers=96 model.n_heads=96 model.ffn_hidden_dim=39680"
MODELS = {"8B": EIGHT, "13B": THIRTEEN, "70B": SEVENTY, "175B": GREAT, "405B": LARGEST}


@dataclass(frozen=True)
class Figure:
    """Tokens a second and GPU, or TFLOP/s of one, of a layout."""

    set: str
    what: str
    model: str
    words: str
    published: float
    unit: str = "tokens/s"
    fitted: bool = False
    tp_calls: float = 1.0
    """Its collectives of tp over those of forge in the same layout."""

    @property
    def overrides(self) -> str:
        return f"{MODELS[self.model]} {self.words}"


SEPARATE_GATHERS, SEPARATE_SUMS = 20 / 11, 8 / 5
"""KempnerForge gathers the input of each of five products (q, k, v, gate, up) by itself, and sums
their gradients so: 12 gathers and 8 reductions a block with recomputation, where forge has 6 and 5.
Its trace of 24 GPUs (benchmarks/profiling/13b_24gpu_profiling.md) has 9,679 and 6,420 calls for 800
blocks. In pipelines it sums whole hidden states, 8 times a block for forge's 5.
"""
BF16 = "precision.param_dtype=bf16 precision.master_weights=false optimizer.mu_dtype=bf16"
BF16 = f"{BF16} optimizer.nu_dtype=bf16"


def _kempner(
    name: str,
    model: str,
    layout: str,
    ranks: int,
    batch: int,
    accumulated: int,
    rate: float,
    more: str = "",
) -> Figure:
    """rate: tokens a second of all GPUs."""
    degrees = " ".join(f"parallel.{word}" for word in layout.split())
    tp_calls = SEPARATE_GATHERS if "tp=" in layout else 1.0
    if "pp=" in layout:
        tp_calls, more = SEPARATE_SUMS, f"{more} parallel.sequence_parallel=false"
    words = (
        f"plan.device=h200 plan.gpus_per_node=4 plan.world_size={ranks} train.seq_len=4096"
        f" train.activation_checkpointing=full train.batch_size={batch}"
        f" train.grad_accum_steps={accumulated} {degrees} {more} parallel.layout=given"
        f" parallel.loss_parallel=false {BF16}"
    )
    what = f"{model} {layout or 'one device'}"
    return Figure(name, what, model, words, rate / ranks, tp_calls=tp_calls)


EAGER = "train.compile_model=false"
KEMPNER_FIGURES = [
    _kempner(KEMPNER, "8B", "", 1, 4, 2, 10_471),
    _kempner(KEMPNER, "8B", "dp_shard=2", 2, 4, 2, 18_728),
    _kempner(KEMPNER, "8B", "tp=2", 2, 4, 2, 13_163),
    _kempner(KEMPNER, "8B", "dp_shard=4", 4, 4, 2, 38_983),
    _kempner(KEMPNER, "8B", "tp=4", 4, 4, 2, 25_135),
    _kempner(KEMPNER, "8B", "tp=2 dp_shard=2", 4, 4, 2, 25_980),
    _kempner(KEMPNER, "8B", "tp=4 dp_shard=2", 8, 4, 2, 44_299),
    _kempner(KEMPNER, "13B", "dp_shard=8", 8, 4, 4, 35_405, EAGER),
    _kempner(KEMPNER, "13B", "tp=4 dp_shard=2", 8, 4, 4, 27_345),
    _kempner(KEMPNER, "8B", "tp=4 dp_shard=4", 16, 4, 2, 82_988),
    _kempner(KEMPNER, "13B", "tp=4 dp_shard=4", 16, 4, 4, 53_814),
    _kempner(KEMPNER, "8B", "tp=4 dp_shard=8", 32, 4, 2, 155_917),
    _kempner(KEMPNER, "13B", "tp=4 dp_shard=8", 32, 4, 4, 104_309),
    _kempner(KEMPNER, "70B", "tp=4 dp_shard=8", 32, 2, 4, 17_657),
    _kempner(KEMPNER, "8B", "tp=4 dp_shard=3", 12, 4, 8, 67_045),
    _kempner(KEMPNER, "8B", "dp_shard=32", 32, 4, 4, 297_384),
    _kempner(KEMPNER, "13B", "tp=4 pp=2 dp_shard=4 pp_microbatches=4", 32, 4, 4, 52_739, EAGER),
    _kempner(KEMPNER, "70B", "tp=4 pp=4 dp_shard=2 pp_microbatches=4", 32, 1, 4, 8_212, EAGER),
]
SCALING_FIGURES = [
    *(
        _kempner(SCALING, "13B", f"tp=4 dp_shard={ranks // 4}", ranks, 4, 4, rate)
        for ranks, rate in ((8, 29_860), (32, 110_373), (64, 216_507), (128, 423_306))
    ),
    _kempner(SCALING, "13B", "tp=4 dp_shard=40", 160, 4, 4, 534_644),
    *(
        _kempner(SCALING, "70B", f"tp=4 dp_shard={ranks // 4}", ranks, 2, 4, rate)
        for ranks, rate in ((32, 18_688), (64, 35_824), (96, 52_190), (128, 69_985))
    ),
    _kempner(SCALING, "70B", "tp=4 dp_shard=40", 160, 2, 4, 85_571),
    _kempner(SCALING, "175B", "tp=4 dp_shard=90", 360, 8, 1, 154_523),
]
H100 = "plan.device=h100_500w plan.gpus_per_node=8 parallel.layout=given"
FULL = "train.activation_checkpointing=full"
OPS = f"{FULL} train.recompute_every=2"
TWO = f"{H100} train.seq_len=8192 train.batch_size=2 {OPS}"
BY_TP = f"{H100} train.seq_len=8192 parallel.tp=8"
TITAN_FIGURES = [
    Figure(TITAN, "8B dp_shard=8, eager", "8B", f"{TWO} plan.world_size=8 {EAGER}", 5_762),
    Figure(TITAN, "8B dp_shard=8", "8B", f"{TWO} plan.world_size=8", 6_667, fitted=True),
    Figure(TITAN, "8B dp_shard=128, eager", "8B", f"{TWO} plan.world_size=128 {EAGER}", 5_605),
    Figure(TITAN, "8B dp_shard=128", "8B", f"{TWO} plan.world_size=128", 6_514, fitted=True),
    Figure(
        TITAN,
        "8B tp=8 dp_shard=8",
        "8B",
        f"{BY_TP} {OPS} plan.world_size=64 train.batch_size=12",
        4_378,
    ),
    Figure(
        TITAN,
        "70B tp=8 dp_shard=32",
        "70B",
        f"{BY_TP} {FULL} plan.world_size=256 train.batch_size=16",
        597,
    ),
]
FP8 = "quantization=fp8 quantization.fp8_all_gather=true"
LARGE = f"{H100} {FULL} {FP8} train.seq_len=8192 parallel.tp=8"
TITAN_FIGURES += [
    Figure(TITAN, "8B dp_shard=8, fp8", "8B", f"{TWO} {FP8} plan.world_size=8", 8_532, fitted=True),
    Figure(TITAN, "8B dp_shard=128, fp8", "8B", f"{TWO} {FP8} plan.world_size=128", 8_380),
    *(
        Figure(
            TITAN,
            f"8B dp_shard={8 // cp} cp={cp}, {32_768 * cp:,} tokens, fp8",
            "8B",
            f"{H100} {FULL} {FP8} plan.world_size=8 train.batch_size=1 parallel.cp={cp}"
            f" train.seq_len={32_768 * cp}",
            rate,
        )
        for cp, rate in ((1, 3_890), (2, 2_540), (4, 1_071), (8, 548))
    ),
    Figure(
        TITAN,
        "70B tp=8 dp_shard=32, fp8",
        "70B",
        f"{LARGE} plan.world_size=256 train.batch_size=16",
        829,
    ),
    *(
        Figure(
            TITAN,
            f"405B tp=8 pp=8 dp_shard=8, fp8, {schedule}",
            "405B",
            f"{LARGE} plan.world_size=512 train.batch_size=1 train.grad_accum_steps=32"
            f" parallel.pp=8 parallel.pp_microbatches=32 parallel.pp_schedule={schedule}",
            rate,
        )
        for schedule, rate in (("1f1b", 100), ("interleaved_1f1b", 128))
    ),
]
THREE_D = (
    "plan.device=h100 plan.gpus_per_node=8 parallel.layout=given parallel.tp=8 parallel.pp=16"
    " parallel.pp_schedule=interleaved_1f1b parallel.pp_stages_per_rank=7 train.batch_size=1"
)
LLAMA_FIGURES = [
    Figure(
        LLAMA,
        f"405B {layout}",
        "405B",
        f"{THREE_D} plan.world_size={ranks} train.seq_len={seq_len} train.grad_accum_steps={batch}"
        f" parallel.pp_microbatches={batch} parallel.cp={cp} model.max_seq_len={seq_len}",
        rate,
        "TFLOP/s",
    )
    for layout, ranks, seq_len, batch, cp, rate in (
        ("tp=8 pp=16 dp_shard=64", 8_192, 8_192, 32, 1, 430),
        ("tp=8 pp=16 dp_shard=128", 16_384, 8_192, 16, 1, 400),
        ("tp=8 cp=16 pp=16 dp_shard=8, 131,072 tokens", 16_384, 131_072, 16, 16, 380),
    )
]
FIGURES = [*KEMPNER_FIGURES, *SCALING_FIGURES, *TITAN_FIGURES, *LLAMA_FIGURES]
