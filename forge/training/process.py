"""The process: device, threads, determinism and number formats, and printing."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import torch
from torch import nn

from forge.config.precision import Precision
from forge.config.root import Config

log = logging.getLogger(__name__)
ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
RECORDER = {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
RECORDED_TO = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")  # newer and older name


def set_up(config: Config) -> torch.device:
    """Apply the run and precision options of the whole process; returns the device."""
    run, precision = config.run, config.precision
    if run.num_threads:
        torch.set_num_threads(run.num_threads)
    if run.deterministic:
        # cuBLAS is deterministic only with workspaces of fixed size.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(run.deterministic)
    torch.autograd.set_detect_anomaly(run.detect_anomaly)
    # In 16 bits only the products of routers are fp32, and must not use lower precision.
    fp32 = precision.mixed_precision == "fp32"
    torch.set_float32_matmul_precision(precision.matmul_precision if fp32 else "highest")
    if run.device == "mps":
        if not torch.backends.mps.is_available():
            message = (
                "this build of torch finds no usable Apple GPU; run.device=cpu trains on the CPU"
            )
            raise ValueError(f"run.device=mps: {message}")
        return torch.device("mps", 0)
    if run.device != "cuda":
        return torch.device(run.device)
    if not torch.cuda.is_available():
        message = "this build of torch finds no usable GPU; run.device=cpu trains on the CPU"
        raise ValueError(f"run.device=cuda: {message}")
    # By LOCAL_RANK, unless each rank sees one GPU alone, as by srun --gpus-per-task=1.
    index = 0 if torch.cuda.device_count() == 1 else int(os.environ.get("LOCAL_RANK", 0))
    _set_allocator()
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def _set_allocator() -> None:
    """Let GPU memory grow in segments, unless a variable of torch decides.

    Growing segments leave less unused memory between tensors.
    """
    if not any(os.environ.get(name) for name in ALLOCATOR):
        torch._C._accelerator_setAllocatorSettings("expandable_segments:True")


def record_collectives(folder: Path, device: torch.device) -> None:
    """Have torch record the last collectives of this rank; NCCL writes them to `folder` on a
    timeout, for `torchfrtrace`.

    Signs of life name a collective by the record. Variables of torch already set stay unchanged.
    """
    if int(os.environ.get("WORLD_SIZE", 1)) == 1:
        return
    if device.type != "cuda":
        os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "200")
        return
    folder.mkdir(exist_ok=True)
    for name, value in RECORDER.items():
        os.environ.setdefault(name, value)
    for name in RECORDED_TO:
        os.environ.setdefault(name, str(folder / "rank_"))


def loss_scaler(section: Precision, device: torch.device) -> torch.amp.GradScaler:
    """Build the scaler of losses, against underflow of fp16 gradients; off in other formats."""
    enabled = section.mixed_precision == "fp16"
    return torch.amp.GradScaler(device.type, init_scale=section.init_loss_scale, enabled=enabled)


def check_dtypes(model: nn.Module, dtype: torch.dtype = torch.float32) -> None:
    """Raise TypeError naming the weights in another format."""
    wrong = [
        f"{name} ({p.dtype})"
        for name, p in model.named_parameters()
        if p.requires_grad and p.dtype != dtype
    ]
    if wrong:
        kind = str(dtype).removeprefix("torch.").replace("float32", "fp32")
        message = f"weights must be {kind} where the optimizer updates them; these are not"
        raise TypeError(f"{message}: {', '.join(wrong)}")


def say(text: str) -> None:
    """Print on the main rank, and log; a closed pipe is no reason to fail."""
    log.info("%s", text.strip())
    if int(os.environ.get("RANK", 0)):
        return
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def stage(config: Config, text: str) -> None:
    """Print the present stage of the start-up, if a console is wanted."""
    if config.metrics.enable_console:
        say(text)
