"""GPUs to plan for without a machine: data sheet figures, and the shares reached by large products
and networks.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

GIB = 1 << 30
T, G = 1e12, 1e9
SAME_AS = {"fp16": "bf16", "int8": "fp8", "mxfp8": "fp8"}
"""Formats with the peak of another format."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """One kind of GPU.

    capability: the compute capability, which decides formats and kernels. memory: bytes by torch's
    message when memory runs out: less than the GPU's name says. bandwidth: bytes a second of the
    memory. peak: dense FLOP/s of matrix units by format. units: streaming multiprocessors.
    sustained: the share of the peak reached by a product of 8,192^3 under the power limit. nvlink:
    bytes a second from one GPU to others of the same machine, over PCIe without NVLink. network:
    bytes a second to other machines, as in the machines the GPU is usually sold in. attention:
    kernels by their names in `forge.planning.calibration`, the default first.
    """

    capability: tuple[int, int]
    memory: int
    bandwidth: float
    peak: dict[str, float] = field(hash=False)
    units: int
    sustained: float
    nvlink: float
    network: float
    attention: tuple[str, ...] = ("older",)

    def flops(self, format: str) -> float:
        """Peak of a format; without matrix units for the format the peak of bf16, the format of the
        cast.
        """
        peak = self.peak.get(format) or self.peak.get(SAME_AS.get(format, ""))
        return peak or self.peak["bf16"]

    def on_network(self, gbits: float | None) -> Device:
        """The device in machines with this many Gbit/s a GPU; None = the usual."""
        return self if gbits is None else replace(self, network=gbits * 1e9 / 8)


# Sources. capability: NVIDIA's list of CUDA GPUs.
# memory: torch.cuda.OutOfMemoryError of users. bandwidth, peak, nvlink, units: the data
# sheets and architecture white papers of NVIDIA (A100, H100, H200, HGX B200, L40S, A10, Ada and
# RTX Blackwell), dense: figures with 2:4 sparsity are halved. sustained: H200 0.79 was measured
# (769 to 798 TFLOP/s at 8,192^3) on a cool card; 0.75 is a twentieth less, within training, as
# KempnerForge's figures say (benchmarks/results/calibration.md); A100 and H100 are of the
# benchmark of products in github.com/stas00/ml-engineering, less a tenth for H100, whose figure
# there is of its best shape;
# H100 at 500 W is fitted to two figures of torchtitan, as docs/planning.md says; the others are
# guesses. network: DGX A100 (8 * 200 Gbit/s), DGX H100, H200 and B200 (8 * 400), OVX L40S
# (100 a GPU), AWS g5.48xlarge (100 for 8); 10 Gbit/s for cards of workstations.
_AMPERE = {"bf16": 312 * T, "tf32": 156 * T, "fp32": 19.5 * T, "int8": 624 * T}
_HOPPER = {"bf16": 989.4 * T, "fp8": 1978.9 * T, "tf32": 494.7 * T, "fp32": 66.9 * T}
_A100 = {
    "capability": (8, 0),
    "peak": _AMPERE,
    "units": 108,
    "sustained": 0.85,
    "nvlink": 300 * G,
    "network": 25 * G,
}
_CUDNN = ("cudnn", "flash")
_H100 = {
    "capability": (9, 0),
    "peak": _HOPPER,
    "units": 132,
    "nvlink": 450 * G,
    "network": 50 * G,
    "attention": _CUDNN,
}
DEVICES = {
    "a100_40gb": Device(memory=int(39.4 * GIB), bandwidth=1.555 * T, **_A100),
    "a100": Device(memory=int(79.2 * GIB), bandwidth=2.039 * T, **_A100),
    "h100": Device(memory=int(79.1 * GIB), bandwidth=3.35 * T, sustained=0.72, **_H100),
    # SXM of 96 GB at 500 W, the GPU of torchtitan's measurements
    "h100_500w": Device(memory=int(94.5 * GIB), bandwidth=2.4 * T, sustained=0.52, **_H100),
    "h200": Device(memory=int(139.8 * GIB), bandwidth=4.8 * T, sustained=0.75, **_H100),
    "b200": Device(
        capability=(10, 0),
        memory=int(178.3 * GIB),
        bandwidth=7.7 * T,
        peak={"bf16": 2250 * T, "fp8": 4500 * T, "nvfp4": 9000 * T, "tf32": 1125 * T}
        | {"fp32": 75 * T},
        units=148,
        sustained=0.75,
        nvlink=900 * G,
        network=50 * G,
        attention=_CUDNN,
    ),
    "l40s": Device(
        capability=(8, 9),
        memory=int(44.4 * GIB),
        bandwidth=0.864 * T,
        peak={"bf16": 362 * T, "fp8": 733 * T, "tf32": 183 * T, "fp32": 91.6 * T},
        units=142,
        sustained=0.65,
        nvlink=32 * G,
        network=12.5 * G,
    ),
    "a10g": Device(
        capability=(8, 6),
        memory=int(22.0 * GIB),
        bandwidth=0.6 * T,
        peak={"bf16": 70 * T, "tf32": 35 * T, "fp32": 31.2 * T, "int8": 140 * T},
        units=80,
        sustained=0.8,
        nvlink=32 * G,
        network=1.56 * G,
    ),
    "rtx4090": Device(
        capability=(8, 9),
        memory=int(23.6 * GIB),
        bandwidth=1.008 * T,
        peak={"bf16": 165.2 * T, "fp8": 330.3 * T, "tf32": 82.6 * T, "fp32": 82.6 * T},
        units=128,
        sustained=0.9,
        nvlink=20 * G,  # PCIe 4.0 through the host: the cards have no peer access
        network=1.25 * G,
    ),
    "rtx5090": Device(
        capability=(12, 0),
        memory=int(31.4 * GIB),
        bandwidth=1.792 * T,
        peak={"bf16": 209.5 * T, "fp8": 419 * T, "nvfp4": 1676 * T, "tf32": 104.8 * T}
        | {"fp32": 104.8 * T},
        units=170,
        sustained=0.9,
        nvlink=40 * G,  # PCIe 5.0 through the host
        network=1.25 * G,
    ),
}
"""Devices by their names in plan.device."""
