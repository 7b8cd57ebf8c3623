"""Whether post-training helps: the three demos over three seeds, before and after.

    python benchmarks/learning/post_training.py [--folder FOLDER] [--base STEPS] [DEMO[=STEPS] ...]

Instructions begin with one base, preferences with what sft_demo has made of it. Of each demo an
ablation with two arms: the model that it begins with, which takes one step with a learning rate of
next to nothing, and the demo. Writes results/post_training.md beside this file. FOLDER: where
the models and the sweeps are, which continue where they were, and of which forge.report makes
pages;
default: a temporary one. Steps: of the base and of demos; without them those of the default run and
of the demos, which take half an hour on two quiet cores.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "results"
DEMOS = {
    "sft": "experiment=sft_demo",  # all weights, on questions about Python, and answers
    "lora": "experiment=lora_demo",  # low-rank adapters alone
    "dpo": "experiment=dpo_demo",  # prefers these answers to damaged ones
}
CHAT = "experiment=sft_demo checkpoint.init_from=base"
BEFORE = ["train.max_steps=1", "optimizer.lr=1e-12", "scheduler.warmup_steps=0"]
SEEDS = [1, 2, 3]


def forge(folder: Path, verb: str, *words: str) -> str:
    """What a verb prints."""
    command = [sys.executable, "-m", f"forge.{verb}", *words]
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}")
    return done.stdout


def main() -> None:
    """Run what is not there yet, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--base", type=int, metavar="STEPS")
    parser.add_argument("demos", nargs="*", default=list(DEMOS))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        more = ["run.num_threads=1", "run.device=cpu"]
        steps = [f"train.max_steps={options.base}"] if options.base else []
        if not (folder / "base").exists():
            forge(folder, "train", "run.dir=base", *steps, *more)
        if not (folder / "chat").exists() and any(one.startswith("dpo") for one in options.demos):
            forge(folder, "train", *CHAT.split(), "run.dir=chat", *steps, *more)
        length = ["--base", str(options.base)] if options.base else []
        named = [] if options.demos == list(DEMOS) else options.demos
        words = " ".join(["python", "benchmarks/learning/post_training.py", *length, *named])
        machine = f"{platform.machine()}, Python {platform.python_version()}"
        said = f"`{words}`, {machine}. Arms: the model as it is, and the demo; paired by seed.\n"
        parts = ["# What post-training does\n", said]
        for demo in options.demos:
            name, _, steps = demo.partition("=")
            parts += of_demo(folder, name, steps, more)
    (RESULTS / "post_training.md").write_text("\n".join(parts), encoding="utf-8")


def of_demo(folder: Path, name: str, steps: str, more: list[str]) -> Iterator[str]:
    """The tables of a demo, and what is written before and after."""
    after = [f"train.max_steps={steps}"] if steps else []
    model = folder / ("chat" if name == "dpo" else "base")
    words = [*DEMOS[name].split(), f"checkpoint.init_from={model}", f"sweep.name={name}"]
    words += [f"sweep.ablation.arms={{before: {BEFORE}, after: {after}}}"]
    words += ["sweep.ablation.baseline=before", f"sweep.ablation.seeds={SEEDS}"]
    forge(folder, "train", "-m", *words, *more)
    tables = forge(folder, "report", f"sweeps/{name}", "--markdown", "-")
    found = tables.partition("\n\n")[2].partition("\n## how soon")[0].replace("\n##", "\n###")
    yield f"## {name}\n\n`{DEMOS[name]}`: {found}"
    yield "### what the first seed writes\n"
    yield from answers(folder / "sweeps" / name)


def answers(sweep: Path) -> Iterator[str]:
    """What is written behind each prompt at the end, by each arm."""
    for arm in ("before", "after"):
        for file in sweep.glob(f"points/*_{arm}_seed-{SEEDS[0]}_*/samples.jsonl"):
            rows = [json.loads(line) for line in file.read_text().splitlines()]
            last = [row for row in rows if row["step"] == rows[-1]["step"]]
            texts = "\n\n".join(f"{row['prompt']}{row['text']}".strip() for row in last)
            yield f"{arm}:\n\n```text\n{texts}\n```\n"


if __name__ == "__main__":
    main()
