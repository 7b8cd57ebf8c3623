"""Device peaks by name."""

from __future__ import annotations

import pytest

from forge.training.flops import peak_flops

TFLOPS = {
    "NVIDIA A100-SXM4-80GB": 312,
    "NVIDIA H100 80GB HBM3": 989.4,
    "NVIDIA H100 PCIe": 756,
    "NVIDIA GH200 480GB": 989.4,
    "NVIDIA H200": 989.4,
    "NVIDIA H200 NVL": 835.5,
    "NVIDIA GeForce RTX 4090": 165.2,
    "AMD Instinct MI300X": 1307.4,
}
UNKNOWN = ["NVIDIA RTX A1000", "NVIDIA L40", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA H1000"]
UNKNOWN += ["NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 4090 D", "cpu"]


@pytest.mark.parametrize(("name", "tflops"), [*TFLOPS.items(), *((one, None) for one in UNKNOWN)])
def test_peak_by_device_name(name, tflops):
    assert peak_flops(name) == (tflops and pytest.approx(tflops * 1e12))
