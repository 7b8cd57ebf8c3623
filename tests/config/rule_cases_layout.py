"""The table of rules on the parallel layout as a whole."""

from __future__ import annotations

from rule_cases import Case

GIB = 1 << 30
LOOP = "parallel.pp_schedule=interleaved_1f1b model.n_layers=4"

LAYOUT_CASES = [
    Case(
        "parallel.world_size",
        "parallel.dp_shard=2 parallel.tp=2",
        "dp_replicate=1 * dp_shard=2 * tp=2 * pp=1 * cp=1 * ep=1 = 4, and there are 8 ranks (from the caller).",
        "parallel.dp_shard=4",
        "parallel.dp_shard=4 parallel.tp=2",
        world_size=8,
        world_size_kept=8,
    ),
    Case(
        "parallel.world_size",
        "parallel.dp_shard=-1 parallel.dp_replicate=3",
        "dp_replicate=3 * dp_shard=1 * tp=1 * pp=1 * cp=1 * ep=1 = 3, and there are 2 ranks (from the caller).",
        "parallel.dp_replicate=2",
        "parallel.dp_shard=-1 parallel.dp_replicate=2",
        world_size=2,
        world_size_kept=2,
    ),
    Case(
        "parallel.world_size",
        "parallel=fsdp parallel.tp=4 run.device=cuda",
        "dp_replicate=1 * dp_shard=1 * tp=4 * pp=1 * cp=1 * ep=1 = 4, and there are 2 ranks (from the test).",
        "without other degrees one of parallel=auto, parallel=cp2, parallel=fsdp parallel.cp=2, parallel=ddp, parallel=fsdp, parallel=hsdp, "
        "parallel=pp2, parallel=fsdp parallel.pp=2, parallel=tp2, parallel=fsdp parallel.tp=2",
        "parallel=fsdp parallel.tp=2 run.device=cuda",
        gpus=2,
    ),
    Case(
        "parallel.world_size",
        "parallel.dp_shard=0",
        "dp_replicate=1 * dp_shard=0 * tp=1 * pp=1 * cp=1 * ep=1 = 0, and there is 1 rank (from a CPU).",
        "parallel.dp_shard=1",
        "parallel.dp_shard=1",
    ),
    Case(
        "parallel.offload_backend",
        "parallel.dp_shard=2 parallel.cpu_offload=true parallel.backend=nccl run.device=cuda",
        "gradients are on the CPU, and parallel.backend=nccl sums on GPUs only.",
        "parallel.cpu_offload=false, or no parallel.backend",
        "parallel.dp_shard=2 parallel.cpu_offload=true run.device=cuda",
        gpus=2,
    ),
    Case(
        "parallel.backend",
        "parallel.backend=foo parallel.dp_shard=2",
        "torch.distributed has no backend foo; it has gloo, nccl, mpi, ucc, xccl, hccl.",
        "parallel.backend=gloo",
        "parallel.backend=mpi parallel.dp_shard=2",
    ),
    Case(
        "run.gpus",
        "run.device=cuda run.num_processes=4 parallel=fsdp",
        "4 ranks (from run.num_processes) need 4 GPUs; there are 2 (the test).",
        "run.num_processes=2 parallel=auto, or run.device=cpu",
        "run.device=cuda run.num_processes=2 parallel=fsdp",
        gpus=2,
    ),
    Case(
        "run.gpus",
        "model=llama7b model.max_seq_len=128 parallel=tp4 run.device=cuda",
        "4 ranks (from the parallel degrees) need 4 GPUs; there is 1 (the test).",
        "parallel=auto, parallel=fsdp, parallel=single, or run.device=cpu",
        "parallel=single run.device=cuda",
        gpus=1,
    ),
    Case(
        "parallel.backend",
        "parallel.dp_shard=2 parallel.backend=cuda:nccl",
        "it names no backend for cpu, which the run is on.",
        "parallel.backend=gloo",
        "parallel.dp_shard=2 parallel.backend=cpu:gloo",
    ),
    Case(
        "parallel.backend",
        "parallel.dp_shard=2 parallel.backend=nccl",
        "nccl needs GPUs, and has no place on a CPU.",
        "parallel.backend=gloo",
        "parallel.dp_shard=2 parallel.backend=nccl run.device=cuda",
        gpus=2,
    ),
    Case(
        "parallel.backend",
        "parallel.dp_shard=2 parallel.backend=\"'cpu:gloo,nccl'\"",
        "it names no backend for cpu, which the run is on.",
        "parallel.backend=gloo",
        "parallel.dp_shard=2 parallel.backend=gloo",
    ),
    Case(
        "parallel.memory",
        "run.device=cuda model.dim=4096 model.n_layers=32 model.n_heads=32",
        "a device is estimated to need 99.1 GiB; the smallest GPU here has 80.0 GiB.",
        "a smaller model, or more GPUs",
        "run.device=cuda",
        gpus=1,
        memory=80 * GIB,
    ),
    Case(
        "parallel.memory",
        "run.device=cuda train.batch_size=64 train.seq_len=128",
        "a device is estimated to need 86.2 MiB; the smallest GPU here has 50.0 MiB.",
        "train.activation_checkpointing=full or a smaller model, or more GPUs",
        "run.device=cuda",
        gpus=1,
        memory=50 << 20,
    ),
    Case(
        "run.host_memory",
        "model.dim=4096 model.n_layers=32 model.n_heads=32 parallel.tp=2",
        "2 ranks (from the parallel degrees) need 2 GPUs, or 2 * 48.3 GiB = 96.5 GiB of a CPU's memory for weights, gradients and "
        "optimizer state; this machine has no GPUs (the test) and 32.0 GiB.",
        "a smaller model, such as model=small, or a machine with GPUs",
        "model.dim=1024 model.n_layers=32 model.n_heads=32 parallel.tp=2",
    ),
    *(
        Case(
            "parallel.no_effect",
            f"parallel.{name}={value}",
            f"parallel.{name} has no effect {where}.",
            f"parallel.{name}={default}",
            f"parallel.{name}={value} {acts}",
        )
        for name, value, default, where, acts in [
            ("pp_schedule", "gpipe", "1f1b", "with parallel.pp=1", "parallel.pp=2"),
            ("pp_microbatches", "2", "null", "with parallel.pp=1", "parallel.pp=2"),
            (
                "pp_stages_per_rank",
                "2",
                "null",
                "with parallel.pp=1",
                "parallel.pp=2 parallel.pp_schedule=interleaved_1f1b model.n_layers=4",
            ),
            ("pp_layers", "[1,1]", "[]", "with parallel.pp=1", "parallel.pp=2"),
            ("sequence_parallel", "false", "true", "with parallel.tp=1", "parallel.tp=2"),
            ("loss_parallel", "false", "true", "with parallel.tp=1", "parallel.tp=2"),
            ("cp_method", "ulysses", "all_gather", "with parallel.cp=1", "parallel.cp=2"),
            ("cp_load_balance", "false", "true", "with parallel.cp=1", "parallel.cp=2"),
            ("cpu_offload", "true", "false", "on one rank in fp32", "parallel.dp_shard=2"),
            ("nccl_timeout_sec", "60", "1800", "on one rank", "parallel.dp_shard=2"),
            (
                "reshard_after_forward",
                "always",
                "auto",
                "on one rank in fp32",
                "parallel.dp_shard=2",
            ),
            (
                "reduce_gradients",
                "micro_batch",
                "auto",
                "with one micro-batch a step, or on one rank in fp32",
                "parallel.dp_shard=2 train.grad_accum_steps=2",
            ),
            ("layout", "auto", "given", "where parallel.dp_shard is given", "parallel.dp_shard=-1"),
        ]
    ),
    Case(
        "parallel.no_effect",
        "parallel.backend=gloo",
        "parallel.backend has no effect on one rank.",
        "\"parallel.backend='cpu:gloo,cuda:nccl'\"",
        "parallel.backend=gloo parallel.dp_shard=2",
    ),
    Case(
        "parallel.no_effect",
        "parallel.cp=2 parallel.cp_method=ulysses parallel.cp_load_balance=false",
        "parallel.cp_load_balance has no effect with parallel.cp_method=ulysses.",
        "parallel.cp_load_balance=true",
        "parallel.cp=2 parallel.cp_load_balance=false",
    ),
    Case(
        "parallel.no_effect",
        "train.nccl_health_check_interval=5",
        "train.nccl_health_check_interval has no effect on one rank.",
        "train.nccl_health_check_interval=0",
        "train.nccl_health_check_interval=5 parallel.dp_shard=2",
    ),
]
