"""Builds the fake GPU and runs cases on it, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parent
ROOT = SOURCE.parents[1]
ENVIRONMENT = ROOT / ".venv-cuda"
PYTHON = ENVIRONMENT / "bin/python"
BUILT = ENVIRONMENT / "fake_gpu"
LIBRARY = BUILT / "libfakegpu.so"
SAME_LIBRARY = ("libcuda.so.1", "libnvidia-ml.so.1")
DEVICES = {
    "h100": ("NVIDIA H100 80GB HBM3", 79.1),
    "h200": ("NVIDIA H200", 139.8),
    "rtx4090": ("NVIDIA GeForce RTX 4090", 23.5),
}
"""Name and GiB that a device reports."""


def build() -> Path:
    """Compile the library where a source is newer; headers come with torch's CUDA packages."""
    sources = sorted(SOURCE.glob("*.cpp"))
    newest = max(path.stat().st_mtime for path in [*sources, SOURCE / "fake_gpu.h"])
    if LIBRARY.exists() and LIBRARY.stat().st_mtime > newest:
        return LIBRARY
    BUILT.mkdir(exist_ok=True)
    packages = next((ENVIRONMENT / "lib").glob("python3.*/site-packages"))
    # Triton's headers have crt/, which CUDA's own package lacks.
    include = [packages / "nvidia/cu13/include", packages / "triton/backends/nvidia/include"]
    command = ["g++", "-O1", "-std=c++17", "-Wall", "-Wextra", "-fPIC", "-shared"]
    command += [flag for folder in include for flag in ("-I", str(folder))]
    new = LIBRARY.with_suffix(f".{os.getpid()}")
    subprocess.run([*command, "-o", str(new), *map(str, sources), "-ldl"], check=True)
    new.rename(LIBRARY)
    for name in SAME_LIBRARY:
        (BUILT / name).unlink(missing_ok=True)
        (BUILT / name).symlink_to(LIBRARY.name)
    return LIBRARY


def environment(case: Mapping[str, Any], checkout: Path = ROOT) -> dict[str, str]:
    """Variables of a process on fake GPUs. checkout: whose forge runs."""
    name, gib = DEVICES[case.get("device", "h100")]
    ranks = case.get("ranks", 1)
    variables = {
        "PYTHONPATH": f"{checkout}:{SOURCE.parent}",
        "LD_PRELOAD": str(LIBRARY),
        "LD_LIBRARY_PATH": str(BUILT),
        "TRITON_LIBCUDA_PATH": str(BUILT),
        "TORCHINDUCTOR_CACHE_DIR": str(BUILT / "inductor"),
        "TRITON_CACHE_DIR": str(BUILT / "triton"),
        "FAKE_GPU_NAME": name,
        "FAKE_GPU_GIB": str(case.get("gib", gib)),
        "FAKE_GPU_COUNT": str(max(ranks, case.get("gpus", 1))),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
    return {**os.environ, **variables, **case.get("environ", {})}


def run(case: Mapping[str, Any], checkout: Path = ROOT, timeout: float = 1800) -> dict[str, Any]:
    """Run a case; returns its measurement, with the output of a case that failed."""
    build()
    command = [str(PYTHON), "-m", "fake_gpu.child", json.dumps(case)]
    ended = subprocess.run(
        command,
        env=environment(case, checkout),
        cwd=checkout,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    lines = ended.stdout.strip().splitlines()
    try:
        measurement = json.loads(lines[-1])
    except (IndexError, ValueError):
        measurement = {"error": f"the process ended with {ended.returncode}"}
    if "error" in measurement:
        measurement["output"] = (ended.stdout + ended.stderr)[-6000:]
    return measurement
