"""What `gpu.py` measures in a process of its own, besides training: one case a call.

python benchmarks/gpu_cases.py products --device cuda --out row.json
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import forge
from forge import cli
from forge.models.init import init_weights
from forge.models.plain import make_model
from forge.models.sampling import DrawOptions, continue_rows
from forge.models.sdpa import CUDNN_FIRST, causal_attention
from forge.objectives.cross_entropy import cross_entropy
from forge.parallel.ranks import Ranks
from forge.rundir import directory
from forge.training.build import build_loop
from forge.training.build_session import build_session
from forge.training.models import build_model

REPOSITORY = Path(__file__).resolve().parents[1]
SHAPES = {"attention": (4096, 6144), "up": (4096, 28672), "down": (14336, 4096)}
"""[in, out] of the products of a block of 8 billion parameters, those that share an input as one.
"""
HEAD = (4096, 128256)
OF_TINY = "model.dim=32 model.n_layers=2 model.vocab_size=300 model.max_seq_len=64"
EXPERTS = "model.moe.num_experts=4 model.moe.top_k=2"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    add = parser.add_argument
    add("case", choices=CASES)
    add("files", nargs="*", help="of tests")
    add("--device", default="cuda")
    add("--tiny", action="store_true")
    add("--kernel", default="auto")
    add("--model", default="dense")
    add("--mode", default="disabled")
    add("--out", type=Path, required=True)
    options = parser.parse_args()
    options.device = torch.device(options.device)
    torch.manual_seed(0)
    found = CASES[options.case](options)
    row = {"device": named(options.device), "found": found}
    options.out.write_text(json.dumps(row), encoding="utf-8")


def copy(options: argparse.Namespace) -> dict[str, Any]:
    """Bytes a second that are read and written."""
    source = torch.ones(2**16 if options.tiny else 2**30, device=options.device)
    target = torch.empty_like(source)
    seconds = timed(lambda: target.copy_(source), options.device)
    return {"GB/s": round(2 * source.nbytes / seconds / 1e9, 1)}


def products(options: argparse.Namespace) -> dict[str, Any]:
    """TFLOP/s in bf16 of the products of a block and of the head."""
    found = {}
    for name, (rows, columns) in (SHAPES | {"head": HEAD}).items():
        tokens, rows, columns = sizes(options, rows, columns)
        x = torch.randn(tokens, rows, device=options.device, dtype=torch.bfloat16)
        weight = torch.randn(columns, rows, device=options.device, dtype=torch.bfloat16)
        seconds = timed(lambda x=x, weight=weight: x @ weight.T, options.device)
        found[f"{name} TFLOP/s"] = round(2 * tokens * rows * columns / seconds / 1e12, 3)
    return found


def fp8_products(options: argparse.Namespace) -> dict[str, Any]:
    """The same in fp8, one scale a matrix."""
    found, one, scaled = {}, torch.ones((), device=options.device), torch.ops.aten._scaled_mm
    for name, (rows, columns) in SHAPES.items():
        tokens, rows, columns = sizes(options, rows, columns)
        x = torch.randn(tokens, rows, device=options.device).to(torch.float8_e4m3fn)
        weight = torch.randn(columns, rows, device=options.device).to(torch.float8_e4m3fn)

        def product(x: Tensor = x, weight: Tensor = weight) -> Tensor:
            fast: Any = {"out_dtype": torch.bfloat16, "use_fast_accum": True}
            return scaled(x, weight.T, scale_a=one, scale_b=one, **fast)

        seconds = timed(product, options.device)
        found[f"{name} TFLOP/s"] = round(2 * tokens * rows * columns / seconds / 1e12, 3)
    return found


def sdpa(options: argparse.Namespace) -> dict[str, Any]:
    """Forward and backward of attention over 4 sequences of 4,096, 32 heads, 8 key heads of 128,
    and how far it is from what the math kernel makes in fp32.
    """
    batch, heads, shared, seq, dim = (1, 4, 2, 64, 16) if options.tiny else (4, 32, 8, 4096, 128)
    dtype, kernel = torch.bfloat16, options.kernel
    q, k, v = (
        torch.randn(batch, n, seq, dim, device=options.device, dtype=dtype, requires_grad=True)
        for n in (heads, shared, shared)
    )
    if kernel == "efficient":  # which takes as many key heads as heads
        k, v = (x.detach().repeat_interleave(heads // shared, 1).requires_grad_() for x in (k, v))
    if options.tiny and kernel in ("efficient", "cudnn"):
        kernel = CUDNN_FIRST  # a CPU has neither; those after it are taken
    a, b, c = (x[:1, :, :256].float() for x in (q, k, v))
    exact = causal_attention(a, b, c, "math")
    error = causal_attention(a.to(dtype), b.to(dtype), c.to(dtype), kernel).float() - exact

    def there_and_back() -> None:
        out = causal_attention(q, k, v, kernel)
        torch.autograd.grad(out.sum(), (q, k, v))

    seconds = timed(there_and_back, options.device)
    flops = 7 * batch * heads * seq * seq * dim  # half of 4 forward and of 10 backward: causal
    return {
        "TFLOP/s": round(flops / seconds / 1e12, 3),
        "largest error": f"{error.abs().max().item():.1e}",
    }


def parity(options: argparse.Namespace) -> dict[str, Any]:
    """Loss and gradients of a small model in fp64 on the device, against the CPU."""
    more = EXPERTS.split() if options.model == "experts" else []
    config = forge.compose([*OF_TINY.split(), *more, "tokenizer=bytes", "data=synthetic"])
    tokens = torch.randint(300, (2, 33), generator=torch.Generator().manual_seed(0))
    losses, gradients = [], []
    for device in (torch.device("cpu"), options.device):
        model = make_model(config.model).double()
        init_weights(model, 0)
        model.to(device)
        model.train()
        here = tokens.to(device)
        loss = cross_entropy(model(here[:, :-1]), here[:, 1:]).total
        loss.backward()
        losses.append(loss.item())
        gradients.append({name: p.grad.cpu() for name, p in model.named_parameters()})
    ours, theirs = gradients
    apart = max((ours[n] - theirs[n]).norm() / ours[n].norm().clamp(min=1e-30) for n in ours)
    loss_apart = abs(losses[0] - losses[1]) / abs(losses[0])
    found = {"loss apart": f"{loss_apart:.1e}", "a gradient at most": f"{apart.item():.1e}"}
    return found | {"equal": bool(loss_apart <= 1e-12 and apart <= 1e-10)}


def experts(options: argparse.Namespace) -> dict[str, Any]:
    """A layer of 16 experts of 1,408, two a token, forward and backward, of 16,384 tokens."""
    dim, hidden, number, tokens = (32, 64, 4, 64) if options.tiny else (2048, 1408, 16, 16384)
    words = f"model.dim={dim} model.n_heads=4 model.moe.ffn_hidden_dim={hidden} model.moe.top_k=2"
    words += f" model.moe.num_experts={number} model.moe.kernel={options.kernel} tokenizer=bytes"
    words += " data=synthetic model.n_layers=1 model.vocab_size=300"
    section: Any = forge.compose(words.split()).model
    model: Any = make_model(section)
    init_weights(model, 0)
    dtype = torch.float32 if options.tiny else torch.bfloat16  # of which a CPU makes little
    layer = model.to(options.device, dtype).blocks["0"].feed_forward
    x = torch.randn(1, tokens, dim, device=options.device, dtype=dtype)

    def there_and_back() -> None:
        layer(x).sum().backward()

    seconds = timed(there_and_back, options.device)
    flops = 3 * 2 * 3 * dim * hidden * 2 * tokens
    return {"TFLOP/s": round(flops / seconds / 1e12, 3), "ms": round(seconds * 1e3, 2)}


def checkpoint(options: argparse.Namespace) -> dict[str, Any]:
    """How much longer steps with a save, and those after them, take than others; and a run that
    resumes from the save against one that never stopped.
    """
    model = "model=llama3_2_1b train=long train.seq_len=2048 train.batch_size=2 precision=bf16"
    words = f"{model} optimizer=adamw_large checkpoint.interval=6 train.max_steps=16"
    if options.tiny:
        words += " model.dim=64 model.n_layers=2 model.n_heads=4 model.n_kv_heads=2"
        words += " model.ffn_hidden_dim=128 model.vocab_size=300 train.seq_len=32"
    compiled = not options.tiny
    mode = "async" if options.tiny and options.mode != "disabled" else options.mode
    words += f" train.compile_model={str(compiled).lower()} checkpoint.async_mode={mode}"
    words += f" run.device={options.device.type} run.inline=true eval=off checkpoint.keep_last_n=0"
    words += " metrics.enable_console=false tokenizer=bytes data=synthetic checkpoint.last=weights"
    words += " run.deterministic=true model.tie_embeddings=false"
    with tempfile.TemporaryDirectory() as folder:
        steps, first, size = stepped(f"{words} run.dir={folder}/whole", options)
        saved = f"{folder}/whole/checkpoints/step_12"
        begun = time.perf_counter()
        goes_on = f"{words} run.dir={folder}/on checkpoint.resume_from={saved}"
        _, again, _ = stepped(goes_on, options)
        resumed = time.perf_counter() - begun
    usual = statistics.median(steps[2:5] + steps[8:11])
    stalls = [sum(steps[at : at + 2]) - 2 * usual for at in (5, 11)]
    equal = all(first[step] == loss for step, loss in again.items())
    return {
        "saved GB": round(size / 1e9, 3),
        "first stall s": round(stalls[0], 3),
        "second stall s": round(stalls[1], 3),
        "usual step s": round(usual, 4),
        "resumed in s": round(resumed, 2),
        "same losses": equal and bool(again),
    }


def stepped(words: str, options: argparse.Namespace) -> tuple[list[float], dict[int, float], int]:
    """Seconds of each step of a run, waiting for the device, the loss of each, and the bytes of the
    largest checkpoint.
    """
    resolution = cli.resolved(words.split())[1]
    run_dir, _ = directory.prepare_directory(resolution, overrides=())
    loop = build_loop(build_session(run_dir, trust=[]))
    taken, losses, step, gradients = [], {}, loop._step, loop.update.gradients

    def counted(*args: Any, **more: Any) -> Any:
        output = gradients(*args, **more)
        losses[loop.state.step] = output.loss
        return output

    def one(data: Any) -> None:
        begun = time.perf_counter()
        step(data)
        torch.get_device_module(options.device).synchronize()
        taken.append(time.perf_counter() - begun)

    loop._step, loop.update.gradients = one, counted  # type: ignore[method-assign]
    loop.run()
    session = loop.session
    session.ranks.close()
    saved = [path.stat().st_size for path in run_dir.rglob("step_6/**/*.bin")]
    return taken, {number: loss.item() for number, loss in losses.items()}, sum(saved)


def generation(options: argparse.Namespace) -> dict[str, Any]:
    """Tokens a second of 8 billion parameters that continue 1 and 32 prompts of 512 tokens by 128,
    and of reading the prompts, in bf16 with random weights.
    """
    words = "model=llama3_8b precision=bf16 tokenizer=bytes data=synthetic eval=off checkpoint=off"
    length, number, rows = 512, 128, (1, 32)
    if options.tiny:
        words = f"{OF_TINY} tokenizer=bytes data=synthetic train.seq_len=32"
        length, number, rows = 16, 8, (1, 2)
    words += f" run.device={options.device.type}"
    config = cli.resolved(words.split())[1].config
    dtype = torch.float32 if options.tiny else torch.bfloat16
    model: Any = build_model(config, options.device, Ranks(), dtype, filled=False).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    found: dict[str, Any] = {}
    for several in rows:
        prompts = [[1 + (i + at) % 256 for at in range(length)] for i in range(several)]

        def continued(tokens: int, prompts: list[list[int]] = prompts) -> None:
            continue_rows(
                model, prompts, tokens, DrawOptions(), options.device, range(len(prompts))
            )

        first = timed(lambda: continued(1), options.device, times=3)
        every = timed(lambda: continued(number), options.device, times=3)
        found[f"x{several} read tokens/s"] = round(several * length / first)
        found[f"x{several} written tokens/s"] = round(several * (number - 1) / (every - first))
    return found


def tests(options: argparse.Namespace) -> dict[str, Any]:
    """The tests that only a GPU can pass."""
    if importlib.util.find_spec("pytest") is None:
        return {"pytest": "is not installed, so no test was run"}
    command = [sys.executable, "-m", "pytest", "-m", "cuda", "-q", "-p", "no:xdist", *options.files]
    ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    lines = [line for line in ended.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    last = next(iter(reversed(ended.stdout.splitlines())), ended.stderr[-200:])
    return {"pytest": last.strip(" ="), **{f"{n}": line[:150] for n, line in enumerate(lines)}}


CASES: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    one.__name__: one
    for one in (
        *(copy, products, fp8_products, sdpa, parity, experts, checkpoint, generation, tests),
    )
}


def sizes(options: argparse.Namespace, rows: int, columns: int) -> tuple[int, int, int]:
    """Tokens, rows and columns of a product; in small a part of each."""
    return (32, 32, 64) if options.tiny else (8192, rows, columns)


def timed(work: Callable[[], Any], device: torch.device, times: int = 20) -> float:
    """The median of some times, in seconds."""
    for _ in range(3):
        work()
    if device.type != "cuda":
        return statistics.median(_seconds(work) for _ in range(times))
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(times + 1)]
    marks[0].record()
    for mark in marks[1:]:
        work()
        mark.record()
    torch.cuda.synchronize()
    each = pairwise(marks)
    return statistics.median(a.elapsed_time(b) for a, b in each) / 1e3


def _seconds(work: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def named(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


if __name__ == "__main__":
    main()
