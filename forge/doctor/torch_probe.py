"""Reports of torch and the NVIDIA driver, as JSON lines; in a separate process, since either may
crash or hang.

Before each step a line {"doing": ...} names the step: the last line tells the place of a silent
end.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from typing import Any


def main() -> None:
    _step("asking the NVIDIA driver", "nvml", _nvml)
    if "error" in _step("importing torch", "torch", _torch):
        return
    _step("asking torch for GPUs", "cuda", _cuda)
    _step("asking torch.distributed", "distributed", _distributed)
    _step("starting gloo", "gloo", _gloo)


def _step(doing: str, name: str, function: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    print(json.dumps({"doing": doing}), flush=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            report = function()
        except BaseException as error:
            report = {"error": f"{type(error).__name__}: {error}"}
    for warning in (str(w.message).splitlines()[0] for w in caught if "CUDA" in str(w.message)):
        report.setdefault("warning", warning)
    print(json.dumps({name: report}), flush=True)
    return report


def _nvml() -> dict[str, Any]:
    import pynvml

    pynvml.nvmlInit()
    version, driver = pynvml.nvmlSystemGetCudaDriverVersion(), pynvml.nvmlSystemGetDriverVersion()
    return {
        "driver": driver.decode() if isinstance(driver, bytes) else driver,
        "cuda": f"{version // 1000}.{version % 1000 // 10}",
        "devices": pynvml.nvmlDeviceGetCount(),
    }


def _torch() -> dict[str, Any]:
    import torch

    return {
        "version": str(torch.__version__),
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "mps": torch.backends.mps.is_available() if torch.backends.mps.is_built() else None,
        "threads": torch.get_num_threads(),
    }


def _cuda() -> dict[str, Any]:
    import torch

    devices = []
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        major, minor = torch.cuda.get_device_capability(index)
        with torch.cuda.device(index):
            torch.ones(2, device="cuda").sum().item()  # fails where the build has no kernels for it
            free, total = torch.cuda.mem_get_info()
            device = {
                "name": torch.cuda.get_device_name(index),
                "capability": f"{major}.{minor}",
                "bf16": torch.cuda.is_bf16_supported(including_emulation=False),
                "free": free,
                "total": total,
            }
        devices.append(device)
    return {"devices": devices}


def _distributed() -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    if not dist.is_available():
        return {"gloo": False, "nccl": False}
    cuda: Any = torch.cuda
    nccl = dist.is_nccl_available()
    version = ".".join(map(str, cuda.nccl.version())) if nccl else None
    return {"gloo": dist.is_gloo_available(), "nccl": nccl, "nccl_version": version}


def _gloo() -> dict[str, Any]:
    """Start a group of one rank; fails, as larger groups do, where this host's name has no
    address.
    """
    import torch
    import torch.distributed as dist

    if dist.is_available() and dist.is_gloo_available():
        store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        try:
            dist.all_reduce(torch.ones(1))
        finally:
            dist.destroy_process_group()
    return {}


if __name__ == "__main__":
    main()
