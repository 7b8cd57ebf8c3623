"""What a run prints when it ends."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from forge.launch.directory import short
from forge.training.assemble import Parts

REASONS = {
    "end": "all steps done",
    "max_time": "train.max_time is used up",
    "target": "eval.target reached",
    "patience": "no improvement for eval.patience evaluations",
}


def summary(parts: Parts, reason: str, run_dir: Path) -> str:
    """Final metrics, speed, the run directory, and what to type next."""
    state, evaluation, place = parts.loop.state, parts.evaluation, short(run_dir)
    rows = [("ended", f"{REASONS.get(reason, reason)}, after {state.step} steps and {state.tokens:,} tokens")]
    if evaluation is not None and evaluation.metrics:
        m = evaluation.metrics
        rows.append(("validation loss", f"{m['loss']:.4f}   (perplexity {m['perplexity']:.2f}, token accuracy {m['token_accuracy']:.1%})"))
        rows.append(("bits per byte", f"{m['bits_per_byte']:.4f}"))
        if evaluation.at != state.step:
            rows.append(("evaluated", f"after {evaluation.at} steps"))
    rows.append(("tokens a second", f"{parts.logger.mean_rate():,.0f}"))
    rows.append(("run directory", place))
    if parts.loop.interrupted:
        overrides = json.loads((run_dir / "overrides.json").read_text(encoding="utf-8"))
        kept = [text for text in overrides if not text.startswith(("run.dir=", "checkpoint.load_path="))]
        rows.append(("go on", shlex.join(["python", "-m", "forge.train", *kept, f"checkpoint.load_path={place}"])))
    else:
        prompt = next((p for p in parts.config.eval.sample_prompts if p), None)
        rows.append(("next", shlex.join(["python", "-m", "forge.generate", place, *(["--prompt", prompt] if prompt else [])])))
    return "\n".join(["", *(f"  {name:<16} {value}" for name, value in rows)])
