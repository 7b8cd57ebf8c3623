"""Peak memory and seconds of reading 2 GB of shards on two ranks, beside transformers' own.

    python benchmarks/checkpoints/import_memory.py > benchmarks/results/import_memory.md
    python benchmarks/checkpoints/import_memory.py --quantised 12 >> the same

Each reading is in processes of its own, started again: what a rank grows by from the model without
weights to the model with them, and what it holds then.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
SIZES: dict[str, Any] = {"vocab_size": 32000, "hidden_size": 1024, "intermediate_size": 4096}
SIZES |= {"num_hidden_layers": 60, "num_attention_heads": 16, "num_key_value_heads": 8}
SIZES |= {"max_position_embeddings": 2048}
HERE = Path(__file__)
MIB = 1 << 20


def main() -> int:
    """Write the folder, read it in each way, and print the table."""
    import torch
    import transformers

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        run("write", folder)
        total = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        count = len([*folder.glob("*.safetensors")])
        largest = 2 * SIZES["vocab_size"] * SIZES["hidden_size"]
        ways = {
            "forge, one rank, bf16": [run("forge", folder, "bfloat16")],
            "forge, two ranks of FSDP, bf16": ranks(folder, "bfloat16"),
            "forge, two ranks of FSDP, fp32 masters": ranks(folder, "float32"),
            "from_pretrained, bf16": [run("theirs", folder, "bfloat16")],
            "from_pretrained on two ranks, bf16": [
                run("theirs", folder, "bfloat16") for _ in range(2)
            ],
        }
        print(
            "# Memory of reading a folder\n\n`python benchmarks/checkpoints/import_memory.py`:",
            end=" ",
        )
        print(f"{total / 1e9:.2f} GB of bf16 in {count} shards, a Llama of", end=" ")
        print(f"{SIZES['num_hidden_layers']} layers; its largest tensor has {largest // MIB} MiB.")
        print(f"torch {torch.__version__}, transformers {transformers.__version__}, on a CPU of")
        print("2 cores, with the files in the page cache. MiB of the rank that has most: what it")
        print("holds of weights, how much its resident memory grew at its peak, and the rest.")
        print(
            "Of FP8 blocks and of GPTQ: the same model with its matrices in codes, decoded as each"
        )
        print("rank reads its rows.\n")
        print_table(ways)
    return 0


def quantised(layers: int) -> int:
    """Write quantised folders of the same model with this many layers, and print their table."""
    ways = {}
    with tempfile.TemporaryDirectory() as place:
        print("## Quantised folders\n\n`python benchmarks/checkpoints/import_memory.py", end=" ")
        print(f"--quantised {layers}`: the same model with {layers} layers and its matrices in")
        print("codes, which each rank decodes for the rows that it reads.\n")
        for name, words in (("fp8", "FP8 blocks"), ("gptq", "GPTQ in 4 bits")):
            folder = Path(place) / name
            run("write_quantised", folder, layers)
            size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
            of = f"of {words} ({size / 1e9:.2f} GB)"
            ways[f"one rank {of}, bf16"] = [run("forge", folder, "bfloat16")]
            ways[f"two ranks of FSDP {of}, bf16"] = ranks(folder, "bfloat16")
            ways[f"two ranks of FSDP {of}, fp32 masters"] = ranks(folder, "float32")
    print_table(ways)
    return 0


def print_table(ways: dict[str, list[dict[str, Any]]]) -> None:
    """Print a row for each way to read."""
    print("| way | weights | peak | beyond its weights | seconds |\n|---|---|---|---|---|")
    for name, found in ways.items():
        held, peak = (max(one[key] for one in found) // MIB for key in ("held", "peak"))
        seconds = max(one["seconds"] for one in found)
        print(f"| {name} | {held:,} | {peak:,} | {peak - held:,} | {seconds:.1f} |")


def ranks(folder: Path, dtype: str) -> list[dict[str, Any]]:
    """What each of two ranks says."""
    store = folder.parent / f"store_{folder.name}_{dtype}"
    words = [["forge", folder, dtype, rank, store] for rank in range(2)]
    begun = [subprocess.Popen(command(*one), stdout=subprocess.PIPE, text=True) for one in words]
    return [json.loads(one.communicate()[0].splitlines()[-1]) for one in begun]


def run(*words: Any) -> dict[str, Any]:
    """What a process of its own says."""
    done = subprocess.run(command(*words), stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def command(*words: Any) -> list[str]:
    return [sys.executable, str(HERE), *map(str, words)]


def write(folder: Path) -> dict[str, Any]:
    """The folder, of random weights, in shards of 300 MB."""
    import torch
    import transformers

    config = transformers.LlamaConfig(**SIZES)
    with torch.device("meta"):
        model: Any = transformers.LlamaForCausalLM(config)
        model.to(torch.bfloat16)
    model.to_empty(device="cpu")
    for parameter in model.parameters():
        parameter.data.fill_(0.01)
    model.save_pretrained(folder, max_shard_size="300MB")
    return {}


def write_quantised(folder: Path, layers: int) -> dict[str, Any]:
    """The same model with its matrices in FP8 blocks of 128 x 128, or in 4 bits of GPTQ."""
    import torch
    import transformers
    from safetensors.torch import save_file

    sizes: dict[str, Any] = SIZES | {"num_hidden_layers": layers}
    config = transformers.LlamaConfig(**sizes)
    with torch.device("meta"):
        shapes = transformers.LlamaForCausalLM(config).state_dict()
    is_fp8 = folder.name == "fp8"
    tensors: dict[str, torch.Tensor] = {}
    for name, like in shapes.items():
        stem = name.removesuffix(".weight")
        if not name.endswith("_proj.weight"):
            tensors[name] = torch.full(like.shape, 0.01, dtype=torch.bfloat16)
        elif is_fp8:
            tensors[name] = torch.ones(like.shape).to(torch.float8_e4m3fn)
            grid = [size // 128 for size in like.shape]
            tensors[f"{stem}.weight_scale_inv"] = torch.full(grid, 0.01)
        else:
            rows, columns = like.shape
            words, zeros = (columns // 8, rows), (columns // 128, rows // 8)
            tensors[f"{stem}.qweight"] = torch.full(words, 0x11111111, dtype=torch.int32)
            tensors[f"{stem}.qzeros"] = torch.full(zeros, 0x22222222, dtype=torch.int32)
            tensors[f"{stem}.scales"] = torch.full((columns // 128, rows), 0.01).half()
    quantization: dict[str, Any] = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    if is_fp8:
        quantization = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    content = config.to_dict() | {"quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps(content))
    return {}


def forge(folder: Path, dtype: str, rank: int | None = None, store: str = "") -> dict[str, Any]:
    """Read by forge into what this rank owns; alone without a rank."""
    import torch
    import torch.distributed as dist

    from forge.config.parallel import Parallel
    from forge.families import folder as folders
    from forge.hf.read import load_folder
    from forge.models.decoder import Decoder
    from forge.parallel.fsdp import shard
    from forge.parallel.materialize import allocate
    from forge.parallel.mesh import make_mesh
    from forge.tensors.local import local

    section = folders.read_folder(folder).section
    with torch.device("meta"):
        model = Decoder(section).to(getattr(torch, dtype))
    if rank is not None:
        method = f"file://{store}"
        dist.init_process_group("gloo", rank=rank, world_size=2, init_method=method)
        mesh = make_mesh(Parallel(dp_shard=2), "cpu")
        shard(model, mesh, param_dtype=None, reshard_after_forward=True, cpu_offload=False)
    before, start = forget(), time.perf_counter()
    allocate(model, torch.device("cpu"))
    load_folder(folder, section, model.state_dict())
    held = sum(local(one).nbytes for one in model.parameters())
    found = {"seconds": time.perf_counter() - start, "peak": peak() - before, "held": held}
    if rank is not None:
        dist.destroy_process_group()
    return found


def theirs(folder: Path, dtype: str) -> dict[str, Any]:
    """Read by transformers; every value is touched, since a mapped file is read when it is."""
    import torch
    import transformers

    cls = transformers.LlamaForCausalLM
    before, start = forget(), time.perf_counter()
    model = cls.from_pretrained(folder, dtype=getattr(torch, dtype))
    for parameter in model.parameters():
        float(parameter.detach().view(-1)[:: 2048 // parameter.element_size()].sum())
    held = sum(one.nbytes for one in model.parameters())
    return {"seconds": time.perf_counter() - start, "peak": peak() - before, "held": held}


def forget() -> int:
    """Resident bytes now; the peak is counted from here."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


def peak() -> int:
    """The most resident bytes since `forget`."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


if __name__ == "__main__":
    if len(sys.argv) == 1:
        sys.exit(main())
    what, place, *rest = sys.argv[1:]
    if what == "--quantised":
        sys.exit(quantised(int(place)))
    if what == "write":
        print(json.dumps(write(Path(place))))
    elif what == "write_quantised":
        print(json.dumps(write_quantised(Path(place), int(rest[0]))))
    elif what == "theirs":
        print(json.dumps(theirs(Path(place), rest[0])))
    else:
        where: Any = {"rank": int(rest[1]), "store": rest[2]} if len(rest) > 1 else {}
        print(json.dumps(forge(Path(place), rest[0], **where)))
