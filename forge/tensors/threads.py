"""Threads that use the device of the thread that starts them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch


def pool(max_workers: int | None = None, *, name: str = "") -> ThreadPoolExecutor:
    """Make a pool of threads whose current GPU is the caller's.

    A new thread's current GPU is GPU 0. A call there, for example a wait for an event, makes a
    context of half a GiB in its memory, once for each rank of the node.
    """
    if not torch.cuda.is_initialized():  # to ask for the device would start CUDA
        return ThreadPoolExecutor(max_workers, thread_name_prefix=name)
    device = torch.cuda.current_device()
    return ThreadPoolExecutor(
        max_workers,
        thread_name_prefix=name,
        initializer=torch.cuda.set_device,
        initargs=(device,),
    )
