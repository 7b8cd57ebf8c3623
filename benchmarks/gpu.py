"""All that is measured on one GPU, in phases of known length: what the device can do, one device
against the CPU, training of 8 billion parameters in every number format, experts, checkpoints.

    python benchmarks/gpu.py --list                    # phases, cases and their longest times
    python benchmarks/gpu.py --out results             # nine minutes; the same again continues
    python benchmarks/gpu.py --out results --only ceilings,8b --budget 300
    python benchmarks/gpu.py --out results --device cpu --tiny     # all of it, on a CPU, in small

It needs torch 2.11 or newer, Python 3.11 or newer and, of what forge depends on, torchao, numpy,
hydra-core and omegaconf; the phase `tests` pytest too. Every case is a process of its own with a
time limit, and a line of OUT/rows.jsonl once it has ended: also where memory or time ran out, or
forge refuses it. Cases that have a line are not run again; --again runs those that failed.
OUT/table.md is written after each. A case starts if the median time of its phase fits into the
budget; OUT/compiled has the compiled kernels, for all cases and calls.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
GIB = 2**30
REFUSED = 2  # exit code of forge
BENCH = "--warmup 5 --steps 15 --profiled 0"
TINY_BENCH = "--warmup 1 --steps 3 --profiled 0"
FP32 = "optimizer=adamw_large"
MOMENTS = f"{FP32} optimizer.mu_dtype=bf16 optimizer.nu_dtype=bf16"
BF16 = "precision.param_dtype=bf16"
ROUNDED = f"{BF16} precision.stochastic_rounding=true"
PLANS = {
    "A": FP32,
    "B": MOMENTS,
    "C": f"{MOMENTS} {BF16} precision.master_weights=true",
    "D": f"{MOMENTS} {ROUNDED}",
    "E": f"optimizer=adamw_low_bit {ROUNDED}",
}
ABOUT = """Plans: A weights, gradients and moments in fp32; B moments in bf16; C weights and
gradients in bf16, the optimizer has the weights in fp32 too; D no such weights, and updates rounded
stochastically; E as D, moments of 8 bits. Then train.activation_checkpointing, the sequences of a
micro-batch, and `quantization`. Allocated: the most at a time (on a CPU, that the process had);
reserved: with free memory of torch's allocator; retries: of allocations, after freeing; estimate:
what forge.check says of it."""
COMMON = "model=llama3_8b train=long train.seq_len=4096 precision=bf16 objective.ce_chunk_size=2048"
CHUNKED = "objective.loss_fn=chunked_cross_entropy"
TINY = (
    "model.dim=64 model.n_layers=2 model.n_heads=4 model.n_kv_heads=2 model.ffn_hidden_dim=128 "
    "model.vocab_size=512 train.seq_len=64 objective.ce_chunk_size=64 "
    "train.compile_backend=aot_eager run.device=cpu run.num_threads=1"
)
GRID = (  # plan, recomputed, micro-batch, quantization; the most telling first
    ("D", "none", 3, ""),
    ("D", "full", 8, ""),
    ("A", "full", 2, ""),
    ("E", "none", 4, ""),
    ("D", "none", 3, "fp8"),
    ("E", "none", 4, "fp8"),
    ("D", "selective", 4, ""),
    ("D", "selective", 4, "fp8"),
    ("D", "none", 4, ""),
    ("E", "none", 2, ""),
    ("C", "none", 2, ""),
    ("B", "none", 2, ""),
    ("B", "selective", 2, ""),
    ("E", "selective", 6, ""),
    ("D", "none", 2, ""),
    ("D", "none", 1, ""),
    ("D", "full", 16, ""),
)
LLAMA = "train=long train.seq_len=4096 precision=bf16 objective.ce_chunk_size=2048"
LARGE = f"{LLAMA} {CHUNKED} {PLANS['D']}"
DELTA = "model=qwen3_next_80b_a3b model.n_layers=4 train.batch_size=1"
PRESETS = {  # whole experiments, and models cut down to a few layers to fit
    "llama3_8b_one_h200": "experiment=llama3_8b_one_h200",
    "llama3_8b_one_h200_fp8": "experiment=llama3_8b_one_h200_fp8",
    "llama3_8b_one_h100": "experiment=llama3_8b_one_h100",
    "llama3_8b_one_h100_fp8": "experiment=llama3_8b_one_h100_fp8",
    "LoRA": "experiment=llama3_8b_lora_one_gpu",
    "QLoRA": "experiment=llama3_8b_qlora_24gb",
    "MLA": f"model=deepseek2_16b model.n_layers=6 train.batch_size=2 {LARGE}",
    "gated delta nets": f"{DELTA} {LARGE}",  # by fla-core, where it is installed and right
    "gated delta nets by torch": f"{DELTA} {LARGE} +model.kinds.delta.mixer.gdn_kernel=torch",
    "Muon": f"model=llama3_2_1b {LLAMA} {CHUNKED} optimizer=muon train.batch_size=4",
    "DPO": "model=llama3_2_1b train=long train.seq_len=2048 train.batch_size=4 precision=bf16 "
    f"{PLANS['E']} objective=dpo data=preference_demo tokenizer=bytes",
}
WITH_CUDA = (
    *("tests/training/test_cuda.py", "tests/training/test_cuda_kernels.py"),
    *("tests/training/test_waits.py", "tests/parallel/test_context.py"),
    *("tests/objectives/test_cross_entropy.py", "tests/models/test_document_blocks.py"),
)
"""Files with tests marked cuda; data/test_loader.py is left out: its conftest needs pandas."""
SDPA = ("flash", "cudnn", "efficient", "auto")
MODES = ("disabled", "async", "async_with_pinned_mem")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One measurement. seconds: after which it is ended. words: of `gpu_cases.py`, or what
    `forge.bench` is given.
    """

    phase: str
    name: str
    seconds: int
    words: tuple[str, ...]
    trains: bool = False

    @property
    def is_chunked(self) -> bool:
        """Whether its objective may take the loss in chunks."""
        return "objective=dpo" not in self.words

    def command(self, device: str, tiny: bool, file: Path) -> list[str]:
        if not self.trains:
            script = [sys.executable, str(HERE / "gpu_cases.py"), *self.words]
            return [*script, "--device", device, "--out", str(file), *["--tiny"] * tiny]
        small = [word for word in shlex.split(TINY) if self.is_chunked or "chunk" not in word]
        words = [*self.words, *(small if tiny else [f"run.device={device}"])]
        if tiny and any(word.startswith("quantization=") for word in words):
            words += ["quantization.min_dim=16", "quantization.emulate=true"]
        numbers = shlex.split(TINY_BENCH if tiny else BENCH)
        return [sys.executable, "-m", "forge.bench", *words, *numbers, "--json", str(file)]


def cases() -> Iterator[Case]:
    """All of them, in the order in which they are run."""
    for what, seconds in (("copy", 30), ("products", 60), ("fp8_products", 60)):
        yield Case(phase="ceilings", name=what, seconds=seconds, words=(what,))
    for kernel in SDPA:
        words = ("sdpa", "--kernel", kernel)
        yield Case(phase="ceilings", name=f"sdpa {kernel}", seconds=40, words=words)
    for model in ("dense", "experts"):
        words = ("parity", "--model", model)
        yield Case(phase="parity", name=f"{model} in fp64", seconds=60, words=words)
    for plan, recomputed, batch, quantization in GRID:
        name = f"{plan} {recomputed} x{batch}"
        words = [*shlex.split(f"{COMMON} {CHUNKED}"), *shlex.split(PLANS[plan])]
        words += [f"train.activation_checkpointing={recomputed}", f"train.batch_size={batch}"]
        words += [f"quantization={quantization}"] if quantization else []
        name += f" {quantization}" if quantization else ""
        yield Case(phase="8b", name=name, seconds=200, words=tuple(words), trains=True)
    for name, text in PRESETS.items():
        words = tuple(shlex.split(text))
        yield Case(phase="presets", name=name, seconds=200, words=words, trains=True)
    yield Case(phase="generation", name="8b in bf16", seconds=150, words=("generation",))
    for kernel in ("loop", "grouped"):
        words = ("experts", "--kernel", kernel)
        yield Case(phase="experts", name=f"products by {kernel}", seconds=60, words=words)
    for mode in MODES:
        words = ("checkpoint", "--mode", mode)
        yield Case(phase="checkpoints", name=mode, seconds=180, words=words)
    yield Case(phase="tests", name="marked cuda", seconds=400, words=("tests", *WITH_CUDA))


def main() -> int:
    """Run what has no row yet and fits into the budget; write rows and table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    add = parser.add_argument
    add("--out", type=Path, default=Path("gpu_results"), help="folder of rows and table")
    add("--device", default="cuda", choices=("cuda", "cpu"))
    add("--tiny", action="store_true", help="small shapes, to rehearse")
    add("--only", default="", help="phases, or parts of names of cases, with commas between")
    add("--budget", type=float, default=540.0, help="seconds of this call (default 540)")
    add("--again", action="store_true", help="run cases whose row says that they failed too")
    add("--list", action="store_true", help="say what there is, and run nothing")
    options = parser.parse_args()
    wanted = [each for each in options.only.split(",") if each]
    chosen = [
        case
        for case in cases()
        if not wanted or any(each == case.phase or each in case.name for each in wanted)
    ]
    if options.list:
        print("\n".join(f"{one.phase:<12} {one.seconds:>4} s  {one.name}" for one in chosen))
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    rows_file, end = options.out / "rows.jsonl", time.monotonic() + options.budget
    rows = read(rows_file)
    left = []
    for case in chosen:
        row = rows.get(key(case))
        if row is not None and not (options.again and "error" in row):
            continue
        remaining = end - time.monotonic()
        if expected(case, rows) > remaining:
            left.append(case)
            continue
        print(f"{case.phase}: {case.name} ...", flush=True)
        rows[key(case)] = row = measured(case, options, remaining)
        if row.get("out_of_budget"):
            left.append(case)
            del rows[key(case)]
            continue
        print(f"  {row.get('error') or summary(row)}", flush=True)
        with rows_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        write_table(options, rows)
    write_table(options, rows)
    if left:
        print(f"{len(left)} cases are left; the same command continues: {left[0].name}, ...")
    return 0


def key(case: Case) -> str:
    return f"{case.phase}/{case.name}"


def read(file: Path) -> dict[str, dict[str, Any]]:
    """Rows by their case; of two the later."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    found = [json.loads(line) for line in lines if line.endswith("}")]  # a kill may tear the last
    return {f"{row['phase']}/{row['name']}": row for row in found}


def expected(case: Case, rows: dict[str, dict[str, Any]]) -> float:
    """Seconds a case is likely to take: the median of its phase so far, else its longest time."""
    took = [row["took_seconds"] for row in rows.values() if row["phase"] == case.phase]
    return min(statistics.median(took), case.seconds) if took else case.seconds


def measured(case: Case, options: argparse.Namespace, remaining: float) -> dict[str, Any]:
    """The row of a case: its measurement, or why there is none.

    remaining: seconds of the call. A case that they end is marked, and has no row.
    """
    begun = time.monotonic()
    row: dict[str, Any] = {"phase": case.phase, "name": case.name, "words": shlex.join(case.words)}
    with tempfile.TemporaryDirectory(prefix="forge_gpu_") as folder:
        file = Path(folder) / "row.json"
        command = case.command(options.device, options.tiny, file)
        variables = {"PYTHONPATH": os.pathsep.join([str(HERE.parent), str(HERE)])}
        variables |= {"FORGE_CACHE": str(Path(folder) / "cache"), "TMPDIR": folder}
        # Compiled kernels are shared by the cases: most of them compile the same graphs.
        compiled = (options.out / "compiled").resolve()
        variables |= {"TORCHINDUCTOR_CACHE_DIR": str(compiled / "inductor")}
        variables |= {"TRITON_CACHE_DIR": str(compiled / "triton")}
        seconds = min(case.seconds, remaining)
        found, said = ended(command, os.environ | variables, seconds)
        if file.exists():
            content = json.loads(file.read_text())
            row |= content["rows"][0] if case.trains else content
        elif found is None:
            row["error"] = f"ended after {case.seconds} s"
            row["out_of_budget"] = seconds < case.seconds
        elif found:
            row["error"] = why(found, said)
    return row | {"took_seconds": round(time.monotonic() - begun, 1)}


def ended(command: Sequence[str], environ: dict[str, str], seconds: float) -> tuple[Any, str]:
    """The exit code of a command, None where its time was over, and all that it printed. Whatever
    it started is gone then.
    """
    process = subprocess.Popen(
        command,
        env=environ,
        cwd=HERE.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=seconds)
        return process.returncode, said
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return None, process.communicate()[0]


def why(code: int, said: str) -> str:
    """Why a process failed, by what it printed: a refusal first of all, an error last."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    if code == REFUSED:
        return f"refused: {' '.join(lines[:2])}"[:300]
    wrong = [line for line in lines if "Error" in line or "error" in line]
    return (wrong or lines or [f"exit code {code}"])[-1][:300]


def summary(row: dict[str, Any]) -> str:
    """One row in a line."""
    if "tokens_per_second" in row:
        mfu = f", MFU {row['mfu']:.1%}" if row.get("mfu") else ""
        return f"{row['tokens_per_second']:,.0f} tokens/s{mfu}, {memory(row)}"
    return "; ".join(f"{name} {value}" for name, value in row.get("found", {}).items())


def memory(row: dict[str, Any]) -> str:
    peak, estimate = row["memory_bytes"]["peak"], sum(row["estimate_bytes"].values())
    reserved = row["memory_bytes"].get("peak reserved", 0)
    also = f", {reserved / GIB:.3f} reserved" if reserved else ""
    return f"{peak / GIB:.3f} GiB allocated{also}, {estimate / GIB:.3f} estimated"


def write_table(options: argparse.Namespace, rows: dict[str, dict[str, Any]]) -> None:
    """OUT/table.md of all rows there are."""
    versions = ", ".join(f"{name} {installed(name)}" for name in ("torch", "torchao", "numpy"))
    device = next((row["device"] for row in rows.values() if "device" in row), options.device)
    words = f"--device {options.device}" + " --tiny" * options.tiny
    lines = ["# Measured on one GPU", "", f"    python benchmarks/gpu.py {words}", ""]
    if options.device == "cpu":
        lines[0] = "# A rehearsal of the GPU programme on a CPU"
        note = "Every case is run in small, to show that it runs: **none of these is a figure of a "
        lines += [f"{note}GPU**, nor of the CPU at any size that matters.", ""]
    lines += [f"Device: {device}. Python {platform.python_version()}, {versions}.", ""]
    for phase in dict.fromkeys(case.phase for case in cases()):
        of_phase = [row for row in rows.values() if row["phase"] == phase]
        if not of_phase:
            continue
        lines += [f"## {phase}", ""]
        trains = phase in ("8b", "presets")
        about = [*ABOUT.splitlines(), "", f"Options of all: `{COMMON} {CHUNKED}`", ""]
        lines += about if phase == "8b" else []
        lines += list(trained(of_phase)) if trains else list(others(of_phase))
        lines.append("")
    (options.out / "table.md").write_text("\n".join(lines), encoding="utf-8")


def trained(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    columns = ("case", "tokens/s", "MFU", "HFU", "ms a step", "allocated GiB", "reserved GiB")
    columns += ("retries", "estimate GiB", "first step s")
    yield f"| {' | '.join(columns)} |"
    yield f"| --- |{' ---: |' * (len(columns) - 1)}"
    for row in rows:
        if "error" in row:
            yield f"| {row['name']} | {clean(row['error'])} |{' |' * (len(columns) - 2)}"
            continue
        shares = [f"{row[name]:.1%}" if row.get(name) else "" for name in ("mfu", "hfu")]
        peak, estimate = row["memory_bytes"]["peak"], sum(row["estimate_bytes"].values())
        cells = [row["name"], f"{row['tokens_per_second']:,.0f}", *shares]
        cells += [f"{row['step_seconds']['median'] * 1e3:.1f}"]
        reserved = row["memory_bytes"].get("peak reserved")
        cells += [f"{peak / GIB:.3f}", f"{reserved / GIB:.3f}" if reserved else ""]
        cells += [str(row["memory_bytes"].get("allocation retries", ""))]
        cells += [f"{estimate / GIB:.3f}", f"{row['first_step_seconds']:.1f}"]
        yield f"| {' | '.join(cells)} |"


def others(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield "| case | found | took s |"
    yield "| --- | --- | ---: |"
    for row in rows:
        found = clean(row.get("error") or summary(row))
        yield f"| {row['name']} | {found} | {row['took_seconds']} |"


def clean(cell: str) -> str:
    return cell.splitlines()[0].replace("|", "/")


def installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "is missing"


if __name__ == "__main__":
    sys.exit(main())
