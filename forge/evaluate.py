"""`python -m forge.evaluate RUN | CHECKPOINT | FOLDER [TASK ...] [eval.* and parallel overrides]`:
how good a trained model is, on tasks and texts.

Examples:
    python -m forge.evaluate runs/mine my_questions.jsonl
    python -m forge.evaluate runs/mine olmes/arc_easy olmes/hellaswag eval.tasks_items=200
    python -m forge.evaluate runs/mine eval.data=my.txt --json
    python -m forge.evaluate runs/mine olmes/piqa parallel=fsdp run.num_processes=2
    python -m forge.evaluate my/folder olmes/lambada --out runs/evaluated
    python -m forge.evaluate runs/mine lm_eval=[hellaswag,arc_easy]
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from forge import cli
from forge.compose.composition import Composition, compose
from forge.compose.lm_eval_words import Harness, harness_of
from forge.compose.task_words import words
from forge.compose.trust import for_run
from forge.config.numbers import aligned
from forge.config.places import is_remote
from forge.config.problems import COMMAND_LINE, ConfigError, refusal
from forge.config.root import Config
from forge.families.folder import is_folder
from forge.resolve.reading import laid_out
from forge.resolve.rules.evaluation import tasks
from forge.rundir import checkpoints, saved_config
from forge.rundir.checkpoints import TOKENIZER
from forge.rundir.evaluations import interval_text
from forge.rundir.remote.local_copy import local_copy_of
from forge.rundir.saved_config import CONFIG
from forge.tasks.declared import tasks_of

SECTIONS = ("eval", "parallel", "run", "task", "hydra")
DESCRIPTION = "Score tasks and texts with a trained model; TASK is a preset, or a file."


def main(argv: Sequence[str] | None = None) -> int:
    """Print the metrics of each task; exit 2 for what cannot be evaluated."""
    arguments = cli.parser("forge.evaluate", DESCRIPTION, takes="RUN [TASK | OVERRIDE ...]")
    add = arguments.add_argument
    best = "the best checkpoint by the run's eval.metric, instead of the newest"
    add("--best", action="store_true", help=best)
    trust = "also build the model and tasks from modules like mypkg."
    add("--trust", action="append", default=[], metavar="PREFIX", help=trust)
    place = "write the results below this directory (default: the run directory)"
    add("--out", type=Path, metavar="DIR", help=place)
    add("--json", action="store_true", help="print the summaries as JSON")
    options = cli.parse(arguments, argv)
    if options.help:
        return cli.print_text(arguments.format_help())
    return cli.refuse(lambda: _verb(options))


def _verb(options: argparse.Namespace) -> int:
    try:
        return _evaluate(options)
    except ConfigError:
        raise
    except (ValueError, FloatingPointError, OSError) as error:
        print(cli.printable(str(error)), file=sys.stderr)
        return cli.REFUSED


def _evaluate(options: argparse.Namespace) -> int:
    if not options.overrides or "=" in options.overrides[0]:
        message, hint = "which run is evaluated?", "python -m forge.evaluate runs/mine TASK"
        raise refusal("RUN", message, hint, COMMAND_LINE)
    name = options.overrides[0]
    place = local_copy_of(
        f"{name}/{checkpoints.BEST}" if options.best and is_remote(name) else name
    )
    if is_remote(name):
        options.best, options.out = False, options.out or Path("runs", f"evaluated_{place.name}")
    options.lm_eval, plain = harness_of(options.overrides[1:])
    typed = words(plain, options.config_dir)
    if is_folder(place):
        make = importlib.import_module("forge.import").run_of_folder
        with tempfile.TemporaryDirectory(prefix="forge_evaluate_") as name:
            run_dir = Path(name) / "run"
            make(place, run_dir)
            out = options.out or Path("runs") / f"evaluated_{place.resolve().name}"
            return _of_run(run_dir, typed, out, options)
    path = place / checkpoints.BEST if options.best else place
    return _of_run(path, typed, options.out, options)


def _of_run(path: Path, typed: Sequence[str], out: Path | None, options: argparse.Namespace) -> int:
    checkpoints.find_checkpoint(path)
    trust = for_run(path, options.trust)
    composition = _composed(typed, options.config_dir)
    work = partial(_checkpoint, composition, typed, out, trust, options.json, options.lm_eval)
    return checkpoints.read_checkpoint(path, work)


def _composed(typed: Sequence[str], config_dirs: Sequence[str]) -> Composition:
    """Compose the sections that an evaluation reads. Raises ConfigError."""
    for text in typed:
        key = text.lstrip("+~").partition("=")[0]
        if key.partition(".")[0].partition("@")[0] not in SECTIONS:
            message = "the model, its tokenizer and its precision are those of the run."
            hint = "leave it out; eval.*, parallel.* and run.num_processes are given here"
            raise refusal(text, message, hint, COMMAND_LINE)
    chosen = any(text.startswith("parallel=") for text in typed)
    first = [] if chosen else ["parallel=single"]
    composition = compose([*first, *typed], config_dirs=config_dirs)
    if composition.problems:
        raise ConfigError(composition.problems)
    return composition


def _checkpoint(
    composition: Composition,
    typed: Sequence[str],
    out: Path | None,
    trust: Sequence[str],
    as_json: bool,
    harness: Harness | None,
    saved: checkpoints.Saved,
) -> int:
    """Evaluate one checkpoint. Raises Damaged for a checkpoint found damaged."""
    directory = saved.path.resolve()
    trained = saved_config.load_config(directory / CONFIG, trust=trust)
    config = evaluated(trained, composition, typed, needs_task=harness is None)
    entries = tasks_of(config.eval)
    found = [p for p in tasks.check(config, None) if not p.warning]
    if found:
        raise ConfigError(found)
    check(config, directory)
    if harness is not None:
        check_lm_eval(config, harness)
    run_dir = out or _run_of(directory)
    request = {"path": str(directory), "out": str(run_dir.absolute()), "entries": entries}
    request["lm_eval"] = harness and harness.to_dict()
    if (config.run.num_processes or 1) > 1:
        from forge.launch.local.verb_ranks import run_on_ranks

        module = "forge.evaluate_worker"
        code, summaries = run_on_ranks(
            module, config, request, saved, words="forge.evaluate", trust=trust
        )
        if code:
            return code
    else:
        from forge.training.evaluating import evaluate_single  # torch, of several seconds

        summaries = evaluate_single(config, request)
    print(json.dumps(summaries, indent=1) if as_json else table(summaries))
    if not as_json:
        print(f"written: {run_dir / 'eval'}", file=sys.stderr)
    return 0


def evaluated(
    trained: Config, composition: Composition, typed: Sequence[str], *, needs_task: bool = True
) -> Config:
    """The config of a run with the typed section `eval`, laid out as typed: by default on a single
    device, on the run's tasks. needs_task: False where lm-eval has tasks.
    """
    given = composition.typed()
    section = given.eval
    if needs_task and not tasks_of(section):
        section.tasks, section.data = dict(trained.eval.tasks), trained.eval.data
    if needs_task and not tasks_of(section):
        message, hint = "no task and no text is named.", "eval.data=my.txt, or olmes/arc_easy"
        raise refusal("TASK", message, hint, COMMAND_LINE)
    section.freeze()
    device = given.run.device if any(t.startswith("run.device=") for t in typed) else None
    if device not in (None, "auto"):
        trained = replace(trained, run=replace(trained.run, device=device))
    trained = replace(trained, eval=section)
    degrees = given.parallel.degrees()
    size = given.run.num_processes or given.parallel.product_without_dp_shard
    if degrees["dp_shard"] == -1:
        degrees["dp_shard"] = max(size // given.parallel.product_without_dp_shard, 1)
    degrees = {axis: degree for axis, degree in degrees.items() if degree > 1}
    return laid_out(trained, degrees, "parallel")


def check(config: Config, directory: Path) -> None:
    """Refuse tasks that cannot be asked, before the model is loaded. Raises ValueError."""
    from forge.data.tokenizers.tokenizer import Tokenizer
    from forge.evaluation.tasks import tasks_ready

    tokenizer = Tokenizer.load(directory / TOKENIZER)
    longest = int(config.model.max_seq_len)
    tasks_ready(tasks_of(config.eval), config, tokenizer, config.eval, longest)


def check_lm_eval(config: Config, harness: Harness) -> None:
    """Refuse tasks that lm-eval lacks, or whose data it cannot get. Raises ConfigError."""
    if config.eval.tasks_seconds:
        message, hint = "lm-eval asks whole tasks, whatever their time.", "eval.tasks_items=100"
        raise refusal("eval.tasks_seconds", message, hint, COMMAND_LINE)
    from forge.evaluation.lm_eval_tasks import check_tasks

    with redirect_stdout(sys.stderr):
        check_tasks(harness)


def _run_of(directory: Path) -> Path:
    """The run directory of a checkpoint; beside a checkpoint without a run its own folder."""
    above = [folder for folder in directory.parents if saved_config.is_run(folder)]
    return above[0] if above else directory.parent


def table(summaries: Sequence[dict[str, Any]]) -> str:
    """A line for each metric of each task, the task's main metric first."""
    lines = [["task", "metric", "value", "std. error", "95 % interval", "items"]]
    for summary in summaries:
        metrics = summary["metrics"]
        first = [summary["main"]] if summary["main"] in metrics else []
        for name in [*first, *(each for each in metrics if each not in first)]:
            value, error = metrics[name]["value"], metrics[name]["stderr"]
            number = metrics[name]["n"]
            of = summary["of"]
            items = f"{number:,}" if number == of else f"{number:,} of {of:,}"
            shown = "" if error is None or error != error else f"{error:.4f}"
            interval = interval_text(metrics[name])
            lines.append([summary["task"], name, f"{value:.4f}", shown, interval, items])
    return "\n".join(aligned(lines))


if __name__ == "__main__":
    sys.exit(main())
