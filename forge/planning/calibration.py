"""The numbers of the model of time that no data sheet has, each with where it comes from.

Fitted are three, to the figures that benchmarks/published.py marks: `sustained` of h100_500w in
forge.config.devices, `FP8_REACHED` and `STRAGGLERS`. All others are of the sources named here, or
round guesses where that is said, made before any comparison.
"""

from __future__ import annotations

NVLINK, PCIE, NETWORK = "NVLink", "PCIe", "network"

# -- products ---------------------------------------------------------------------------------
TILES = ((128, 256), (256, 128), (128, 128))
"""Outputs that one multiprocessor makes at a time, of the kernels of cuBLAS and CUTLASS: a product
takes as long as its last wave of tiles, however few.
"""
RAMP = 128
"""Terms of a sum while a tile starts and ends: with k of them k / (k + RAMP) of the time counts."""
SPLIT_LOSS = 0.05
"""What each halving of the sums costs, by which small products fill a device (split-k). A guess."""
FP8_REACHED = 0.75
"""Of the share of the peak that the same reaches in bf16: casts, scales, power. Fitted."""
STREAM = 0.85
"""Of the memory's bandwidth what an elementwise kernel reaches: 4.3 of 4.8 TB/s were
measured on an H200 for copies, less for what reads more than it writes."""

# -- attention --------------------------------------------------------------------------------
ATTENTION = {"flash": 0.48, "cudnn": 0.70, "older": 0.75}
"""Share of what large products reach that attention does, forward and backward together: on Hopper
and later FlashAttention-2 and cuDNN (arXiv:2407.08608, figures 5 and 6), before Hopper
FlashAttention-2 (arXiv:2307.08691, figures 4 to 6), for heads of 128.
"""
BACKWARD_SCORES = 1.25
"""Backward computes the scores again: five products for four (the same)."""

# -- memory-bound kernels ---------------------------------------------------------------------
PASSES = {"compiled": 3.0, "eager": 7.0}
"""How often what a block keeps for backward goes through memory in all: fused or not. A guess."""
LOSS_BYTES = {"cross_entropy": 30, "chunked_cross_entropy": 20}
"""Bytes of memory traffic a logit: log-softmax in fp32, its gradient, casts; counted by kernels."""
GATHER_COPIES, REDUCE_COPIES = 4, 10
"""Bytes a parameter that FSDP copies around a gather in 16 bits (in and out of its buffer), and a
reduction in fp32 (the cast, in, and the sum): torch/distributed/fsdp/_fully_shard.
"""
COPIES_EXPOSED = 0.5
"""Of them what is not hidden behind products. A guess."""

# -- launches ---------------------------------------------------------------------------------
LAUNCH = {"compiled": (150e-6, 250e-6), "eager": (500e-6, 700e-6)}
"""Seconds that Python and the driver take to start a block, forward and backward: a few dozen or a
hundred kernels of 5 us. A GPU that is faster waits. A guess.
"""
HOST_WAIT = 30e-6
"""Seconds that a rank waits each time experts ask how many tokens come. A guess."""

# -- collectives ------------------------------------------------------------------------------
# Of NCCL, src/graph/tuning.cc (v2.19 and later): base latency, and latency of a step, in us, of
# rings and trees under the protocols LL, LL128 and Simple; LL moves 8 bytes with 8 of flags at a
# quarter of the bandwidth, LL128 120 of 128.
BASE = {"ring": (6.6, 14.0, 8.4), "tree": (6.8, 14.0, 8.4)}
STEP = {
    ("ring", NVLINK): (0.6, 1.9, 3.4),
    ("ring", PCIE): (1.0, 2.5, 5.7),
    ("ring", NETWORK): (2.7, 4.0, 14.0),
    ("tree", NVLINK): (0.6, 1.25, 28.0),
    ("tree", PCIE): (1.0, 1.9, 28.0),
    ("tree", NETWORK): (5.0, 8.5, 28.0),
}
PROTOCOL_SHARE = (0.25, 0.92, 1.0)
REACHED = {NVLINK: 0.80, NETWORK: 0.85}
"""Of a link's bandwidth what large collectives reach, as nccl-tests has it: on eight H100 360 of
450 GB/s; over eight NICs of 400 Gbit/s about 340 of 400.
"""
MESSAGE = 6.6
"""Microseconds of a message between two ranks beside its bytes: the base of a ring."""
CONTENTION = 0.1
"""Of communication that is hidden what it takes from products all the same: multiprocessors and
memory bandwidth. A guess.
"""

# -- many nodes -------------------------------------------------------------------------------
STRAGGLERS = 0.006
"""What each doubling of the nodes adds to a step: who is last. Fitted to torchtitan's 2 %
between 8 and 128 GPUs.
"""

# -- pipelines --------------------------------------------------------------------------------
ZERO_BUBBLE = {"interleaved_zero_bubble": 1 / 3, "zbv_zero_bubble": 0.0}
"""Of the idle time of 1F1B what is left where gradients of weights fill it (arXiv:2401.10241,
tables 1 and 3).
"""
HOST_LINK = 25e9
"""Bytes a second between a GPU and the memory of its machine where parallel.cpu_offload sends
weights and gradients; PCIe 4.0 reaches it.
"""
HOST_MEMORY = 20e9
"""Bytes a second of that memory for one of eight ranks, for the optimizer there. A guess."""
