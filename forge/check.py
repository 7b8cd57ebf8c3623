"""`python -m forge.check [overrides]`: what would run, or everything that is wrong with it.

The first line is the verdict, and the exit code says the same: 0 where it fits, 1 where the
estimate is above the memory of a device, 2 where it cannot run.

Examples:
    python -m forge.check model=llama7b parallel=tp4
    python -m forge.check model=llama3_70b recipe=llama3_70b plan.device=h100 plan.world_size=64
    python -m forge.check -m optimizer.lr=1e-3,3e-3 seed=1,2
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from forge import cli
from forge.compose.composition import Composition
from forge.config.data.batch_sizes import BatchSizes
from forge.config.launch import Slurm
from forge.config.model.tensors import TensorSpec
from forge.config.numbers import byte_size, counted, duration, percent
from forge.config.optimizers import param_groups
from forge.config.optimizers.schedules import Constant, Decay
from forge.config.problems import REFUSED, ConfigError, listed, shown
from forge.config.quantization import Quantized
from forge.config.root import Config
from forge.config.rule import get
from forge.config.sweeper import Optuna
from forge.config.train import Train
from forge.families.folder import is_folder, read_folder
from forge.planning.activations import host_bytes
from forge.planning.allocation import Allocation, allocation
from forge.planning.flops import flops_in_all, flops_per_token, sequences_of, tokens_in_all
from forge.planning.memory import WORDS, memory_of
from forge.planning.time import expected_seconds, planned_time
from forge.planning.world import CPU_BUILD, World, ranks_of, ranks_per_node
from forge.resolve.auto import device_memory
from forge.resolve.resolve import Resolution
from forge.resolve.rules.devices import HOST_MEMORY, MEMORY
from forge.rundir import directory
from forge.rundir.checkpoints import newest_usable
from forge.rundir.saved_config import is_run

DESCRIPTION = (
    "Whether it can run, and what would: sizes, steps, memory and every derived value; or all "
    "problems. Exit code: 0 fits, 1 the estimate is above a device's memory, 2 cannot run."
)
TOO_LARGE = 1
Row = tuple[str, str]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the verdict and the plan, or every problem; exit with the code of the verdict."""
    arguments = cli.parser("forge.check", DESCRIPTION)
    points = "every point of a sweep, as forge.train -m would run them"
    arguments.add_argument("-m", "--multirun", action="store_true", help=points)
    options = cli.parse(arguments, argv)
    if options.help:
        return cli.help("forge.check", arguments, options)

    def verb() -> int:
        try:
            cli.enter(options)
            if options.multirun:
                return _points(options.overrides, options.config_dir)
            composition, resolution = cli.resolve_single_run(options.overrides, options.config_dir)
        except ConfigError as error:
            print(cli.printable(refused(error)), flush=True)
            raise
        code, line = _verdict(resolution)
        print(f"{line}\n\n{report(composition, resolution)}")
        return code

    return cli.refuse(verb)


def refused(error: ConfigError) -> str:
    """The verdict on a refused config: the problem, or the keys of several problems."""
    keys = list(dict.fromkeys(problem.key for problem in error.problems))
    text = error.problems[0].what if len(error.problems) == 1 else listed(keys)
    return f"cannot run here: {text}"


def _verdict(resolution: Resolution) -> tuple[int, str]:
    """The exit code, and a line of the verdict: whether the run fits, the devices, the memory."""
    config, world = resolution.config, resolution.world
    warned = {warning.rule: warning.what for warning in resolution.warnings}
    if HOST_MEMORY in warned:
        return REFUSED, f"cannot run here: {warned[HOST_MEMORY]}"
    if MEMORY in warned:
        return TOO_LARGE, f"does not fit: {warned[MEMORY]}"
    where = f"{ranks_of(world.size)} on {world.device}"
    if world.planned:
        device = f"plan.device={config.plan.device}" if config.plan.device else "plan.world_size"
        where += f" of {device}, which is not here"
    available, needed = device_memory(world), memory_of(config).allocated
    if isinstance(config.launch, Slurm) and world.devices.source == CPU_BUILD:
        where += f", as {CPU_BUILD} here (plan.device=h100 plans the job for GPUs)"
    if not needed or available is None:
        part = f"a device needs {byte_size(needed)} of " if needed else ""
        return 0, f"can run: {where}; {part}a memory that is not known here"
    summary = f"{where}, {byte_size(needed)} of the {byte_size(available)} of a device"
    return (
        (TOO_LARGE, f"does not fit: {summary}") if needed > available else (0, f"fits: {summary}")
    )


def _points(overrides: Sequence[str], config_dirs: Sequence[str]) -> int:
    """Print the verdict on a sweep, and on each point."""
    from forge.launch.sweep import messages, sweep

    planned = sweep.plan_points(overrides, config_dirs)
    verdicts = [_verdict(point.resolution) for point in planned]
    code = max(code for code, _ in verdicts)
    wrong = sum(code > 0 for code, _ in verdicts)
    is_search = isinstance(planned[0].resolution.config.sweeper, Optuna)
    count = counted(len(planned), "trial of the search" if is_search else "point")
    print(f"does not fit: {wrong} of {count}" if code else f"fits: {count}")
    for number, (point, (_, line)) in enumerate(zip(planned, verdicts, strict=True)):
        print(f"  #{number:03d} {point.combination.label or 'as it is'}   {line}")
    if not is_search:
        from forge.report import detectable

        for line in detectable.lines(planned):
            print(line)
    messages.print_warnings(point.resolution for point in planned)
    return code


def report(composition: Composition, resolution: Resolution) -> str:
    config, world = resolution.config, resolution.world
    memory = memory_of(config)
    each_device = [(f"  {name}", byte_size(size)) for name, size in memory.parts.items()]
    if memory.parts:
        most = f"{byte_size(memory.allocated)}, {WORDS[memory.moment]}"
        each_device.insert(0, ("estimated memory", most))
    if memory.cuda and memory.parts:
        each_device.append(("reserved by the allocator", byte_size(memory.reserved)))
    if host := host_bytes(config):
        each_device.append(("in host memory", byte_size(host)))
    devices = f"from {world.source} ({world.devices.source})"
    name = directory.directory_name(config.run.name or config.preset)
    where = [
        ("world", f"{ranks_of(world.size)} on {world.device}, {devices}"),
        ("directory", config.run.dir or f"{config.run.root}/<date>_{name}_<id>"),
        *_start(config),
        *_job(config, world.size),
        *_resumed(config),
    ]
    tables = {
        "hparams": [(name, str(value)) for name, value in config.hparams.items()],
        "model": _model(config),
        "optimizer": _optimizer(config),
        "quantization": _quantization(config),
        "training": _training(config),
        "scaling": _scaling(resolution),
        "each device": each_device,
        "expected time": _time(config, world),
        "where": where,
        "worked out": [(d.key, f"{d.value}   ({d.why})") for d in resolution.derived],
    }
    lines = [_choices(composition), ""]
    for title, rows in tables.items():
        if rows:
            lines += [title, *(f"  {name:<30} {value}" for name, value in rows), ""]
    return "\n".join([*lines, *warnings(resolution)]).rstrip()


def warnings(resolution: Resolution) -> list[str]:
    warned = resolution.warnings
    if not warned:
        return []
    return [f"{len(warned)} warning{'s' if len(warned) > 1 else ''}", *(w.render() for w in warned)]


def _choices(composition: Composition) -> str:
    """The chosen options of groups, without the groups of sweeps."""
    choices = {group: composition.choices.get(group) for group in composition.library.groups()}
    usual = {"launch": "local", "scaling": "none", "rollout": "none", "diloco": "off"}
    usual["fault_tolerance"] = "off"
    for group, plain in usual.items():
        if choices[group] == plain:
            del choices[group]
    choices = {group: option for group, option in choices.items() if option is not None}
    return " ".join(
        f"{g}={option}" for g, option in choices.items() if g not in ("sweep", "sweeper")
    )


def _model(config: Config) -> list[Row]:
    model, train = config.decoder, config.train
    if model is None:
        return []
    flops = flops_per_token(config) or 0
    rows = [("parameters", f"{model.num_params_estimate:,}")]
    rows += [(f"  {name}", f"{n:,}") for name, n in model.params_by_part().items()]
    if model.is_moe:
        rows.append(("active parameters", f"{model.num_active_params:,} (what one token meets)"))
    context = f"(forward and backward, {train.seq_len} tokens of context)"
    total = f"{flops_in_all(config):.4g}{_at_most(train)}"
    return [*rows, ("FLOPs a token", f"{flops:.4g} {context}"), ("FLOPs in all", total)]


def _optimizer(config: Config) -> list[Row]:
    """Rows of the optimizer of each parameter group, and of frozen parameters; [] without both."""
    tensors = param_groups.tensors_in(config)
    if not config.optimizer.groups and None not in tensors:
        return []
    rows = []
    for name, group in param_groups.groups(config).items():
        if group_tensors := tensors.get(name):
            section, dim = group.section, config.model.dim  # type: ignore[attr-defined]
            label = f"{name}: {group.kind}" if name else group.kind
            decays = f", decay {section.weight_decay:g}" if section.weight_decay else ""
            rows.append((label, f"{_of(group_tensors)}, lr {section.peak(dim):.4g}{decays}"))
    if frozen := tensors.get(None):
        rows.append(("frozen", _of(frozen)))
    return rows


def _quantization(config: Config) -> list[Row]:
    """Rows of the matrices multiplied in other number formats, and their share of the model."""
    section, model = config.quantization, config.decoder
    if not isinstance(section, Quantized) or model is None:
        return []
    chosen = section.chosen(model)
    parts = dict.fromkeys(matrix.part for matrix in chosen)
    share = sum(matrix.size for matrix in chosen) / model.num_params_estimate
    rows = [(part, _of([matrix for matrix in chosen if matrix.part == part])) for part in parts]
    return [(section.schema_name, f"{share:.1%} of the weights are multiplied so"), *rows]


def _of(tensors: Sequence[TensorSpec]) -> str:
    size = sum(tensor.size for tensor in tensors)
    roles = ", ".join(dict.fromkeys(tensor.role for tensor in tensors))
    return f"{size:,} weights of {len(tensors)} parameters ({roles})"


def _training(config: Config) -> list[Row]:
    train, rows = config.train, sequences_of(config)
    tokens = (train.global_batch_tokens or 0) * rows
    sequences = "sequences" if rows == 1 else f"examples of {rows} sequences"
    ends = [f"{train.max_steps:,} steps"]
    ends += [f"{train.max_epochs:g} epochs"] if train.max_epochs else []
    ends += [f"{train.max_time:g} minutes"] if train.max_time else []
    return [
        ("global batch", f"{train.global_batch_size:,} {sequences} = {tokens:,} tokens"),
        *_rampup(train.batch_sizes),
        *_stages(train),
        ("learning rate", _learning_rate(config)),
        ("ends after", " or ".join(ends) + (", whichever is first" if len(ends) > 1 else "")),
        ("tokens", f"{tokens_in_all(config):,}{_at_most(train)}"),
    ]


def _scaling(resolution: Resolution) -> list[Row]:
    """Rows of the numbers behind the values of `scaling`, and of values that are stated instead."""
    config, rows = resolution.config, []
    for value in resolution.overruled:
        text = f"{value.value} by scaling, and {shown(get(config, value.key))} is stated"
        rows.append((value.key, f"{text}   ({value.why})"))
    return [*config.scaling.facts(config), *rows]


def _learning_rate(config: Config) -> str:
    """The peak, with the steps of warm-up and of decay to the floor."""
    schedule, peak = config.scheduler, config.optimizer.peak(config.model.known_dim)
    parts = [f"{peak:.4g}"]
    if isinstance(schedule, Constant) and schedule.warmup_steps:
        parts.append(f"after {schedule.warmup_steps:,} steps of warm-up")
    if isinstance(schedule, Decay) and schedule.decay_steps:
        last = f"down to {peak * schedule.min_lr_ratio:.4g} over the last {schedule.decay_steps:,}"
        parts.append(f"{last} ({schedule.schema_name})")
    return ", ".join(parts)


def _at_most(train: Train) -> str:
    """A note on figures of all steps, where epochs or minutes may end a run early."""
    return f" at most, of {train.max_steps:,} steps" if train.max_epochs or train.max_time else ""


def _time(config: Config, world: World) -> list[Row]:
    """Rows of a step's time on plan.device by part, and of all steps; model: `docs/planning.md`."""
    time = planned_time(config, ranks_per_node(world))
    if time is None:
        return []
    speed = f"{time.tokens_per_second:,.0f} tokens/s a GPU, MFU {percent(time.mfu)}"
    parts = sorted(time.parts.items(), key=lambda pair: -pair[1])
    sent = [f"{size / 1e9:,.3g} GB over {link}" for link, size in time.links.items()]
    return [
        ("a step", f"{duration(time.seconds)}: {speed}"),
        *(
            (f"  {name}", f"{duration(part)} ({percent(time.shares[name])})")
            for name, part in parts
        ),
        *([("a GPU sends", ", ".join(sent))] if sent else []),
        ("in all", duration(expected_seconds(config, world))),
    ]


def _rampup(sizes: BatchSizes) -> list[Row]:
    if not sizes.full_from:
        return []
    stages = counted(len(sizes.stages) - 1, "stage")
    text = f"from {sizes.first:,} sequences in {stages}, full from step {sizes.full_from:,}"
    return [("  ramp-up", text)]


def _stages(train: Train) -> list[Row]:
    """The row of shorter rows in the first steps."""
    stages = list(train.seq_lens.stages(train.max_steps))
    parts = [f"{length:,} up to step {end:,}" for _, end, length in stages[:-1]]
    return [("  rows", f"of {', '.join(parts)}, then {stages[-1][2]:,}")] if parts else []


def _job(config: Config, ranks: int) -> list[Row]:
    section = config.launch
    needs = allocation(section, ranks) if isinstance(section, Slurm) else None
    if not isinstance(needs, Allocation) or not isinstance(section, Slurm):
        return []
    nodes = f"{needs.nodes} node{'s' * (needs.nodes > 1)} with {needs.tasks_per_node} ranks"
    gpus = f", {needs.gpus_per_node} GPUs each" if needs.gpus_per_node else ""
    return [("job", f"{nodes}{gpus}, {section.time} minutes")]


def _start(config: Config) -> list[Row]:
    """The format of a quantised folder in checkpoint.init_from."""
    start = config.checkpoint.init_from
    if start is None or not is_folder(start):
        return []
    quantization = read_folder(start).quantization
    if quantization is None:
        return []
    dtype = config.precision.param_dtype
    return [("begins with", f"{start}, in {quantization.name}; its weights are read as {dtype}")]


def _resumed(config: Config) -> list[Row]:
    if config.run.dir is None or not is_run(Path(config.run.dir)):
        return []
    newest, skipped = newest_usable(Path(config.run.dir) / config.checkpoint.dir, to_go_on=True)
    start = "the beginning: it has no checkpoint that can be used"
    if newest:
        start = f"step {newest.step} of {config.train.max_steps}"
    passed = [(f"  skipped: {checkpoint.path.name}", fault) for checkpoint, fault in skipped]
    return [("resumes from", start), *passed]


if __name__ == "__main__":
    sys.exit(main())
