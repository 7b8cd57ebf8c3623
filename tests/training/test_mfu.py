"""Device peaks by name, and model FLOPs utilisation."""

from __future__ import annotations

import pytest

from forge.training.flops import mfu, peak_bf16_flops, peak_flops

TFLOPS = {
    "NVIDIA A100-SXM4-80GB": 312,
    "NVIDIA A100 80GB PCIe": 312,
    "NVIDIA H100 80GB HBM3": 989.4,
    "NVIDIA H100 PCIe": 756,
    "NVIDIA H100 NVL": 835.5,
    "NVIDIA GH200 480GB": 989.4,
    "NVIDIA H200": 989.4,
    "NVIDIA H200 NVL": 835.5,
    "NVIDIA B200": 2250,
    "NVIDIA GB200": 2500,
    "NVIDIA L40S": 362,
    "NVIDIA GeForce RTX 4090": 165.2,
    "NVIDIA GeForce RTX 5090": 209.5,
    "AMD Instinct MI300X": 1307.4,
}
UNKNOWN = [
    "NVIDIA RTX A1000",
    "NVIDIA L40",
    "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
    "NVIDIA GeForce RTX 4090 Laptop GPU",
    "NVIDIA GeForce RTX 4090 D",
    "NVIDIA H1000",
    "cpu",
    "",
]


@pytest.mark.parametrize(("name", "tflops"), TFLOPS.items())
def test_peak_by_device_name(name, tflops):
    assert peak_bf16_flops(name) == pytest.approx(tflops * 1e12)


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_device_that_is_not_known_has_no_peak(name):
    assert peak_bf16_flops(name) is None


def test_option_overrides_the_table():
    assert peak_flops(1.5, "NVIDIA H200") == 1.5e12
    assert peak_flops(1.5, None) == 1.5e12
    assert peak_flops(0.0, "NVIDIA H200") == 989.4e12
    assert peak_flops(0.0, None) is None


def test_mfu_of_palm_540b():
    """Table 3 and appendix B of arXiv:2204.02311: 238.3K tokens/s on 6144 TPU v4 of 275 TFLOP/s are
    46.2 %.
    """
    layers, heads, head_dim, seq_len, parameters = 118, 48, 256, 2048, 540.35e9
    flops_per_token = 6 * parameters + 12 * layers * heads * head_dim * seq_len
    assert mfu(238.3e3, flops_per_token, 275e12, 6144) == pytest.approx(0.462, abs=5e-4)
