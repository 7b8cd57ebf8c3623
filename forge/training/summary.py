"""What a run prints when it ends."""

from __future__ import annotations

from forge.training.assemble import Parts

REASONS = {
    "end": "all steps done",
    "max_time": "train.max_time is used up",
    "target": "eval.target reached",
    "patience": "no improvement for eval.patience evaluations",
}


def summary(parts: Parts, reason: str, run_dir: str) -> str:
    """Final metrics, speed, the run directory, and what to type next."""
    state, evaluation = parts.loop.state, parts.evaluation
    rows = [("ended", f"{REASONS.get(reason, reason)}, after {state.step} steps and {state.tokens:,} tokens")]
    if evaluation is not None and evaluation.metrics:
        m = evaluation.metrics
        rows.append(("validation loss", f"{m['loss']:.4f}   (perplexity {m['perplexity']:.2f}, token accuracy {m['token_accuracy']:.1%})"))
        rows.append(("bits per byte", f"{m['bits_per_byte']:.4f}"))
        if evaluation.at != state.step:
            rows.append(("evaluated", f"after {evaluation.at} steps"))
    rows.append(("tokens a second", f"{parts.logger.mean_rate():,.0f}"))
    rows.append(("run directory", run_dir))
    rows.append(("next", f"python -m forge.generate {run_dir} --prompt 'def '"))
    return "\n".join(["", *(f"  {name:<16} {value}" for name, value in rows)])
