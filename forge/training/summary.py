"""What a run prints when it ends."""

from __future__ import annotations

import shlex
from pathlib import Path

from forge.rundir.checkpoints import newest_usable
from forge.rundir.directory import prolonging_override, resume_command, short
from forge.rundir.outcome import REASONS
from forge.training.assemble import Parts


def summary(parts: Parts, reason: str, run_dir: Path) -> str:
    """Final metrics, speed, the run directory, and what to type next."""
    state, evaluation, place = parts.loop.state, parts.evaluation, short(run_dir)
    why = REASONS.get(reason, reason)
    rows = {"ended": f"{why}, after {state.step} steps and {state.tokens:,} tokens"}
    if evaluation is not None and evaluation.metrics:
        m = evaluation.metrics
        more = f"perplexity {m['perplexity']:.2f}, token accuracy {m['token_accuracy']:.1%}"
        rows["validation loss"] = f"{m['loss']:.4f}   ({more})"
        rows["bits per byte"] = f"{m['bits_per_byte']:.4f}"
        if evaluation.at != state.step:
            rows["evaluated"] = f"after {evaluation.at} steps"
    rows["tokens a second"] = f"{parts.logger.mean_rate():,.0f}"
    rows["run directory"] = place
    folder, interrupted = run_dir / parts.config.checkpoint.dir, parts.loop.interrupted
    if not interrupted and newest_usable(folder)[0]:
        prompts = [prompt for prompt in parts.config.eval.sample_prompts if prompt]
        prompt = ["--prompt", prompts[0]] if prompts else []
        rows["next"] = shlex.join(["python", "-m", "forge.generate", place, *prompt])
    if newest_usable(folder, to_go_on=True)[0]:
        more = [] if interrupted else [prolonging_override(run_dir, reason, state.step)]
        rows["goes on with"] = " ".join([resume_command(run_dir), *more])
    return "\n".join(["", *(f"  {name:<16} {value}" for name, value in rows.items())])
