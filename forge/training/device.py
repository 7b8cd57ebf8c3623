"""Device, threads, determinism and number formats of this process."""

from __future__ import annotations

import os

import torch
from torch import nn

from forge.config.precision import Precision
from forge.config.root import Config


def set_up(config: Config) -> torch.device:
    """Apply the run and precision options that hold for the whole process; returns the device."""
    run = config.run
    if run.num_threads:
        torch.set_num_threads(run.num_threads)
    if run.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(run.deterministic)
    torch.autograd.set_detect_anomaly(run.detect_anomaly)
    # In 16 bits only those products are fp32 that are meant to be: of routers.
    mixed, precision = config.precision.mixed_precision, config.precision.matmul_precision
    torch.set_float32_matmul_precision(precision if mixed == "fp32" else "highest")
    if run.device == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            "run.device=cuda: this build of torch finds no usable GPU; run.device=cpu trains on the CPU"
        )
    device = (
        torch.device(run.device, _own_gpu()) if run.device == "cuda" else torch.device(run.device)
    )
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def _own_gpu() -> int:
    """By LOCAL_RANK; the only one where each rank is shown no other, as by srun --gpus-per-task=1."""
    return 0 if torch.cuda.device_count() == 1 else int(os.environ.get("LOCAL_RANK", 0))


def loss_scaler(section: Precision, device: torch.device) -> torch.amp.GradScaler:
    """What scales losses in fp16, so that gradients do not underflow; it is not enabled in other
    formats.
    """
    enabled = section.mixed_precision == "fp16"
    return torch.amp.GradScaler(device.type, init_scale=section.init_loss_scale, enabled=enabled)


def check_dtypes(model: nn.Module) -> None:
    """Masters are fp32. Raises TypeError naming the parameters that are not."""
    wrong = [
        f"{name} ({p.dtype})"
        for name, p in model.named_parameters()
        if p.is_floating_point() and p.dtype != torch.float32
    ]
    if wrong:
        raise TypeError(
            f"weights must be fp32 where the optimizer updates them; these are not: {', '.join(wrong)}"
        )
