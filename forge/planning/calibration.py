"""Constants of the model of time outside data sheets, each with its source.

Three are fitted, to the figures marked by benchmarks/estimates/published.py: `sustained` of
h100_500w in forge.config.devices, `FP8_REACHED` and `STRAGGLERS`. All others come from the sources
here, or are round guesses, marked as such and made before any comparison.
"""

from __future__ import annotations

NVLINK, PCIE, NETWORK, LONE = "NVLink", "PCIe", "network", "network, one rank a node"

# -- products ---------------------------------------------------------------------------------
TILES = ((128, 256), (256, 128), (128, 128))
"""Tiles of outputs, of one multiprocessor at a time, in kernels of cuBLAS and CUTLASS. A product
takes full time for its last wave of tiles, however few.
"""
RAMP = 128
"""Terms of a sum lost at start and end of a tile: of k terms, k / (k + RAMP) of the time counts."""
SPLIT_LOSS = 0.05
"""Loss of speed for each halving of the sums, to fill a device with small products (split-k). A
guess.
"""
FP8_REACHED = 0.75
"""Reached share of the peak in fp8, relative to bf16: casts, scales, power. Fitted."""
STREAM = 0.85
"""Share of memory bandwidth reached by elementwise kernels: 4.3 of 4.8 TB/s measured on an H200 for
copies, less for kernels with more reads than writes.
"""

# -- attention --------------------------------------------------------------------------------
ATTENTION = {"flash": 0.48, "cudnn": 0.70, "older": 0.75}
"""Rate of attention relative to large products, forward and backward together: on Hopper and later
FlashAttention-2 and cuDNN (arXiv:2407.08608, figures 5 and 6), before Hopper FlashAttention-2
(arXiv:2307.08691, figures 4 to 6), for heads of 128.
"""
BACKWARD_SCORES = 1.25
"""Factor of backward, to compute the scores again: five products for four (same sources)."""

# -- memory-bound kernels ---------------------------------------------------------------------
PASSES = {"compiled": 3.0, "eager": 7.0}
"""Passes through memory of the tensors a block keeps for backward: fused or not. A guess."""
LOSS_BYTES = {"cross_entropy": 30, "chunked_cross_entropy": 20}
"""Bytes of memory traffic a logit: log-softmax in fp32, its gradient, casts; counted by kernels."""
GATHER_COPIES, REDUCE_COPIES = 4, 10
"""Bytes a parameter copied by FSDP around a gather in 16 bits (in and out of its buffer), and
around a reduction in fp32 (the cast, in, and the sum): torch/distributed/fsdp/_fully_shard.
"""
COPIES_EXPOSED = 0.5
"""Share of the copies not hidden behind products. A guess."""

# -- launches ---------------------------------------------------------------------------------
LAUNCH = {"compiled": (150e-6, 250e-6), "eager": (500e-6, 700e-6)}
"""Seconds of Python and the driver to start a block, forward and backward: a few dozen or a hundred
kernels of 5 us. A faster GPU waits. A guess.
"""
PART_LAUNCH = (140e-6, 220e-6)
"""Seconds to start one more part of a layer's experts, forward and backward: 73 launches on the
fake GPU (ep8_overlap of tools/fake_gpu/cases.txt beside ep8). 5 us each and the split: guesses.
"""
HOST_WAIT = 30e-6
"""Seconds of a rank's wait for each exchange of token counts between experts. A guess."""

# -- collectives ------------------------------------------------------------------------------
# From NCCL, src/graph/tuning.cc (v2.19 and later): base latency, and latency of a step, in us, of
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
REACHED = {NVLINK: 0.80, NETWORK: 0.85, LONE: 0.53}
"""Share of a link's bandwidth reached by large collectives in nccl-tests: on eight H100 360 of
450 GB/s; over eight NICs of 400 Gbit/s about 340 of 400. KempnerForge's trace has 359 for gathers
of tp over four H200. With one rank a node each rank's ring has a card of its own, and those of
other groups beside it: 24.6 to 29 of 50 GB/s in KempnerForge's step of 175B at one sequence, which
is all communication (8.1 % MFU; none of the figures compared with).
"""
MESSAGE = 6.6
"""Base latency of a message between two ranks, in us: the base of a ring."""
CONTENTION = 0.1
"""Slow-down of products by hidden communication, as a share of the communication's time:
multiprocessors and memory bandwidth. A guess.
"""

# -- many nodes -------------------------------------------------------------------------------
STRAGGLERS = 0.006
"""Added share of a step for each doubling of the nodes, to wait for the slowest rank. Fitted to
torchtitan's 2 % between 8 and 128 GPUs.
"""

# -- pipelines --------------------------------------------------------------------------------
ZERO_BUBBLE = {"interleaved_zero_bubble": 1 / 3, "zbv_zero_bubble": 0.0}
"""Share of 1F1B's idle time left by schedules with gradients of weights in the bubble
(arXiv:2401.10241, tables 1 and 3).
"""
HOST_LINK = 25e9
"""Bytes a second between a GPU and the memory of its machine, for weights and gradients under
parallel.cpu_offload; within reach of PCIe 4.0.
"""
HOST_MEMORY = 20e9
"""Bytes a second of host memory for one of eight ranks, for the optimizer on the host. A guess."""
