"""`python -m forge.merge RUN OUT`: the average of checkpoints, a moving mean of weights, or some of
the layers, as a run that every verb reads.

Examples:
    python -m forge.merge runs/mine runs/mean steps=[100,200,300]
    python -m forge.merge runs/mine runs/mean last=3 weights=[1,2,3]
    python -m forge.merge runs/mine runs/mean ema=true
    python -m forge.merge runs/mine runs/student last=1 layers=[0,2,5]
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forge import cli
from forge.compose.grammar import read_override
from forge.compose.trust import for_run
from forge.config.eval import EMA, TRAINED
from forge.config.problems import (
    COMMAND_LINE,
    ConfigError,
    Problem,
    closest,
    did_you_mean,
    refusal,
)
from forge.rundir.checkpoints import Saved, list_checkpoints, saved_folder

DESCRIPTION = """\
Average the weights of a run's checkpoints into a new run: steps=[100,200,300] or last=3, evenly or
by weights=[1,2,3]; ema=true takes the moving mean of each (train.ema_decay) instead. layers=[0,2,5]
makes a model of these layers, of a student that begins with its teacher's; repeated ones deepen."""
USAGE = "forge.merge RUN OUT [steps=[...] | last=N] [weights=[...]] [ema=true] [layers=[...]]"
WORDS = ("steps", "last", "weights", "ema", "layers")
LISTS = {  # word: what its elements are, with an example
    "steps": ("steps", "100,200"),
    "weights": ("numbers above 0", "1,2"),
    "layers": ("numbers of layers", "0,2,5"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Make the run directory OUT with a single checkpoint of weights; 2 for a refused merge."""
    arguments = cli.Parser("forge.merge", DESCRIPTION, usage=USAGE)
    add = arguments.add_argument
    add("words", nargs="*", metavar="RUN OUT", help="a run directory, and the one to make")
    trust = "also read checkpoints with modules like mypkg."
    add("--trust", action="append", default=[], metavar="PREFIX", help=trust)
    options = arguments.parse_args(argv)

    def verb() -> int:
        positional = [word for word in options.words if "=" not in word]
        typed = dict(_read(word) for word in options.words if "=" in word)
        if len(positional) != 2:
            message = "it takes a run, and the run directory to make."
            hint = "python -m forge.merge runs/mine runs/mean last=3"
            raise refusal("RUN OUT", message, hint, COMMAND_LINE)
        run, out = (cli.local_path("RUN", word) for word in positional)
        try:
            print(_merge(run, out, typed, options.trust))
        except (ValueError, OSError) as error:
            if isinstance(error, ConfigError):
                raise
            print(cli.printable(str(error)), file=sys.stderr)
            return cli.REFUSED
        return 0

    return cli.refuse(verb)


def _read(word: str) -> tuple[str, Any]:
    """A word key=value. Raises ConfigError."""
    override = read_override(word)
    if isinstance(override, Problem):
        raise ConfigError([override])
    key, value = override.key_or_group, override.value()
    if key not in WORDS:
        near = did_you_mean(closest(key, WORDS)) or f"its words: {', '.join(WORDS)}"
        raise refusal(word, f"forge.merge has no word '{key}'.", near, COMMAND_LINE)
    if key in LISTS:
        is_number = _is_share if key == "weights" else _is_step
        kind, example = LISTS[key]
        if not isinstance(value, list) or not value or not all(map(is_number, value)):
            hint = f"{key}=[{example}]"
            raise refusal(word, f"it must be a list of {kind}.", hint, COMMAND_LINE)
    elif key == "last" and not (_is_step(value) and value != 0):
        raise refusal(word, "it must be a number of checkpoints.", "last=3", COMMAND_LINE)
    elif key == "ema" and not isinstance(value, bool):
        raise refusal(word, "it must be true or false.", "ema=true", COMMAND_LINE)
    return key, value


def _is_step(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_share(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and value > 0


def _merge(run: Path, out: Path, typed: dict[str, Any], trust: Sequence[str]) -> str:
    chosen = _chosen(run, typed)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        message = f"{out} exists, and a run is made in a new directory."
        raise refusal("OUT", message, "another OUT", COMMAND_LINE)
    shares = typed.get("weights", [1] * len(chosen))
    if len(shares) != len(chosen):
        message = f"it has {len(shares)} weights for {len(chosen)} checkpoints."
        hint = f"weights=[{','.join('1' * len(chosen))}], or leave it out for an even average"
        raise refusal(f"weights={shares}", message, hint, COMMAND_LINE)
    from forge.training.checkpoints.averaging import merge_checkpoints

    weighted = [(saved, x / sum(shares)) for saved, x in zip(chosen, shares, strict=True)]
    weighted.sort(key=lambda pair: pair[0].step)
    kind = EMA if typed.get("ema") else TRAINED
    layers = typed.get("layers")
    path = merge_checkpoints(weighted, out, weights=kind, layers=layers, trust=for_run(run, trust))
    steps = ", ".join(str(saved.step) for saved in chosen)
    content = "the moving mean of step" if typed.get("ema") else "the weights of step"
    of_layers = f", layers {', '.join(map(str, layers))}" if layers else ""
    return f"{path}: {content}{'s' if len(chosen) > 1 else ''} {steps}{of_layers}"


def _chosen(run: Path, typed: dict[str, Any]) -> list[Saved]:
    """The checkpoints to average, as typed. Raises ConfigError."""
    if not run.is_dir():
        raise refusal(str(run), "there is no such run.", "a run directory", COMMAND_LINE)
    usable = [saved for saved in list_checkpoints(saved_folder(run)) if saved.fault() is None]
    steps = ", ".join(str(saved.step) for saved in usable) or "none"
    if "steps" in typed and "last" in typed:
        hint = "steps=[...] or last=N"
        raise refusal("steps, last", "both say which checkpoints.", hint, COMMAND_LINE)
    if not typed.keys() & {"steps", "last", "ema", "layers"}:
        message = f"which checkpoints? {run} has those of steps {steps}."
        raise refusal("steps", message, "steps=[...] or last=N", COMMAND_LINE)
    if "steps" in typed:
        return _at_steps(typed["steps"], usable, f"{run} has those of steps {steps}.")
    count = typed.get("last", 1)
    if count > len(usable):
        message = f"{run} has {len(usable)} usable checkpoints: {steps}."
        hint = f"last={len(usable)}" if usable else "a run with checkpoints"
        raise refusal(f"last={count}", message, hint, COMMAND_LINE)
    return usable[-count:]


def _at_steps(steps: list[int], usable: Sequence[Saved], there: str) -> list[Saved]:
    """The checkpoints of these steps. there: the steps that exist, in words."""
    by_step = {saved.step: saved for saved in usable}
    missing = [step for step in steps if step not in by_step]
    if missing or len({*steps}) < len(steps):
        fault = f"no usable checkpoint of step {missing[0]}" if missing else "a step twice"
        message = f"it names {fault}; {there}"
        raise refusal(f"steps={steps}", message, "steps that are there", COMMAND_LINE)
    return [by_step[step] for step in steps]


if __name__ == "__main__":
    sys.exit(main())
