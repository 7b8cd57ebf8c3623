"""Result and final printout of an ended run."""

from __future__ import annotations

import shlex
from typing import Any

from forge.config.data.chats import Chats
from forge.config.objectives.base import NextToken
from forge.rundir.checkpoints import newest_usable
from forge.rundir.directory import prolonging_override, resume_command, short
from forge.rundir.outcome import REASONS
from forge.rundir.saved_config import newest
from forge.rundir.untrusted import of_project
from forge.rundir.wall_clock.goodput import read_goodput
from forge.training.callbacks.metrics import nulls
from forge.training.loop import Loop


def result_of(loop: Loop, reason: str, metrics: dict[str, float]) -> dict[str, Any]:
    """Content of result.json. metrics: of `Loop.results`."""
    finite, objective = nulls(metrics), loop.config.run.objective
    ended = "stopped" if loop.interrupted else "finished"
    loop.ledger.write()
    spent = read_goodput(loop.run_dir, running=True)
    return {
        "status": "failed" if loop.fault else ended,
        "reason": reason,
        "step": loop.state.step,
        "tokens": loop.state.tokens,
        "config": newest(loop.run_dir).name,
        "objective": {"name": objective, "value": finite.get(str(objective))},
        "higher_is_better": sorted(loop.config.objective.higher_is_better),
        "metrics": finite,
        "goodput": spent.plain() if spent else None,
    }


def summary(loop: Loop, reason: str, metrics: dict[str, float]) -> str:
    """Final metrics, speed, the run directory, and the next command to type."""
    state, run_dir, config = loop.state, loop.run_dir, loop.config
    why, run_name = REASONS.get(reason, reason), short(run_dir)
    rows = {"ended": f"{why}, after {state.step} steps and {state.tokens:,} tokens"}
    evaluated = {
        key.removeprefix("eval/"): metrics[key] for key in metrics if key.startswith("eval/")
    }
    if evaluated_at := evaluated.pop("step", None):
        rows |= _evaluated(evaluated)
        if evaluated_at != state.step:
            rows["evaluated"] = f"after {evaluated_at} steps"
    rows["tokens a second"] = f"{metrics['tokens_per_second']:,.0f}"
    if spent := read_goodput(run_dir, running=True):
        rows["goodput"] = spent.words()
    rows["run directory"] = run_name
    folder = run_dir / config.checkpoint.dir
    if not loop.interrupted and newest_usable(folder)[0]:
        prompts = [prompt for prompt in config.eval.sample_prompts if prompt]
        name = "--chat" if isinstance(config.data, Chats) else "--prompt"
        prompt = [name, prompts[0]] if prompts else []
        typed = config.run.trust
        if {*typed} <= {*of_project("trust")}:
            typed = ()  # the project in the current directory trusts them already
        trust = [word for prefix in typed for word in ("--trust", prefix)]
        rows["next"] = shlex.join(["python", "-m", "forge.generate", run_name, *prompt, *trust])
    if newest_usable(folder, to_go_on=True)[0]:
        overrides = [] if loop.interrupted else [prolonging_override(run_dir, reason, state.step)]
        rows["resume with"] = " ".join([resume_command(run_dir), *overrides])
    return "\n".join(["", *(f"  {name:<16} {value}" for name, value in rows.items())])


def _evaluated(metrics: dict[str, float]) -> dict[str, str]:
    """A row for each set, the validation split first."""
    of_sets: dict[str, dict[str, float]] = {}
    for name, value in metrics.items():
        set_name, _, metric = name.rpartition("/")
        of_sets.setdefault(set_name, {})[metric] = value
    rows = {}
    m = of_sets[""]
    if m.keys() == set(NextToken.metrics):
        details = f"perplexity {m['perplexity']:.2f}, token accuracy {m['token_accuracy']:.1%}"
        rows["validation loss"] = f"{m['loss']:.4f}   ({details})"
        rows["bits per byte"] = f"{m['bits_per_byte']:.4f}"
        del of_sets[""]
    for set_name, values in of_sets.items():
        texts = (f"{name.replace('_', ' ')} {value:.4g}" for name, value in values.items())
        rows[set_name or "validation"] = ", ".join(texts)
    return rows
