"""The evaluation of a trained model: its weights' known answers, the tasks, and the results."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch

from forge.config.eval import EMA
from forge.config.root import Config
from forge.evaluation.cache import Cache
from forge.evaluation.engine import Engine
from forge.evaluation.run import Runner, TaskResult
from forge.evaluation.tasks import facts, flat_metrics, save, tasks_ready
from forge.parallel.ranks import Ranks
from forge.rundir.evaluations import cache_path
from forge.rundir.saved_config import is_run
from forge.training.callbacks.build_trackers import services_after
from forge.training.checkpoints.adapter_base import hash_weights
from forge.training.checkpoints.restore import Trained, load_run


def evaluate_single(config: Config, request: dict[str, Any]) -> list[dict[str, Any]]:
    """Evaluate in this process, on one device."""
    path, device = Path(request["path"]), torch.device(config.run.device)
    trained = load_run(path, trust=config.run.trust, device=device, weights=config.eval.weights)
    return evaluated(config, request, trained, Ranks())


def evaluated(
    config: Config, request: dict[str, Any], trained: Trained, ranks: Ranks
) -> list[dict[str, Any]]:
    """Run the tasks, and write rows and summaries by the main rank; returns the summaries."""
    entries, out = request["entries"], Path(request["out"])
    weights = ranks.from_main(hash_weights(trained.path) if ranks.main else None)
    about = facts(config, weights)
    key = "_".join([weights, str(about["precision"]), str(about["device"])])
    if config.eval.weights == EMA:  # of the same files, and with other answers
        key, about = f"{key}_{EMA}", about | {"eval.weights": EMA}
    kept = Cache(cache_path(out, key)) if ranks.main else None
    cache = kept or Cache(None)
    cache.known = ranks.from_main(cache.known)
    engine = Engine(
        trained.model,
        device=trained.device,
        ranks=ranks,
        batch_tokens=config.eval.tasks_batch_tokens,
    )
    with ranks.main_first():
        ready = tasks_ready(entries, config, trained.tokenizer, config.eval, engine.longest)
    seconds = config.eval.tasks_seconds
    runner = Runner(engine=engine, tokenizer=trained.tokenizer, cache=cache, seconds=seconds)
    results = runner.run(ready)
    if request.get("lm_eval"):
        asked = _lm_eval(config, request, trained, runner)
        results += asked
        entries = {**entries, **{result.name: request["lm_eval"] for result in asked}}
    about |= {"checkpoint": str(trained.path)}
    if not ranks.main:
        return []
    summaries = save(out, results, trained.step, entries, about)
    give_to_trackers(config, out, results, trained.step)
    return summaries


def give_to_trackers(config: Config, out: Path, results: Sequence[TaskResult], step: int) -> None:
    """Give the metrics to the trackers of the run, under the names that they have in the loop."""
    if not is_run(out):
        return
    values = flat_metrics(results, errors=False)
    trackers = services_after(config, out).open()
    trackers.log(step, {f"eval/{name}": value for name, value in values.items()})
    trackers.close()


def _lm_eval(
    config: Config, request: dict[str, Any], trained: Trained, runner: Runner
) -> list[TaskResult]:
    """The results of lm-eval's tasks; empty beside the main rank."""
    from forge.compose.lm_eval_words import Harness
    from forge.evaluation import lm_eval_tasks
    from forge.evaluation.lm_eval_model import EngineLM

    engine = runner.engine
    model = EngineLM(engine, trained.tokenizer, answers=runner.cache)
    harness, items = Harness.of(request["lm_eval"]), config.eval.tasks_items
    with redirect_stdout(sys.stderr):  # lm-eval prints; stdout may be JSON
        return lm_eval_tasks.ask_tasks(harness, model, items=items, main=engine.ranks.main)
