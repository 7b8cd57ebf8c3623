"""The habits of lightning-hydra-template's README, one by one, typed here.

    python benchmarks/beside_others/habits.py

Every command is run as it stands, in an empty folder, with what makes it short after it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
SHORT = "debug=fast sweep.root=s run.root=r"
ENDED = r"ended +(.*)"
POINTS = r"^sweep: \S+ +\((.*)\)"


class Habit(NamedTuple):
    """What its README does, the command there, the one here, and which part of the output shows
    that it did. extra: what is added to make it short, None = nothing.
    """

    what: str
    there: str
    here: str
    shows: str
    extra: str | None = SHORT


HABITS = [
    Habit("override any value", "python train.py trainer.max_epochs=20 model.optimizer.lr=1e-4",
          "forge train train.max_steps=20 optimizer.lr=1e-4", r"ended +all steps done, (.*)"),
    Habit("add values of one's own", 'python train.py +model.new_param="owo"',
          "forge train +hparams.new_param=owo --cfg job -p hparams", r"(new_param: owo)", None),
    Habit("choose a device", "python train.py trainer=cpu", "forge train run.device=cpu", ENDED),
    Habit("several devices", "python train.py trainer=ddp trainer.devices=4",
          "forge train parallel=ddp run.num_processes=2", ENDED),
    Habit("simulate DDP on CPU processes", "python train.py trainer=ddp_sim trainer.devices=2",
          "forge check parallel=ddp run.device=cpu run.num_processes=2", r"world +(.*?),", None),
    Habit("mixed precision", "python train.py trainer=gpu +trainer.precision=16",
          "forge check precision=bf16", r"(weights \(fp32\))", None),
    Habit("log to a tracker", "python train.py logger=tensorboard",
          "forge train metrics.enable_tensorboard=true", ENDED),
    Habit("a named experiment", "python train.py experiment=example",
          "forge train experiment=wsd", ENDED),
    Habit("another callback", "python train.py callbacks=default",
          "forge train ~callbacks.samples", ENDED),
    Habit("clip, accumulate, limit the time",
          "python train.py +trainer.gradient_clip_val=0.5 +trainer.accumulate_grad_batches=2 "
          '+trainer.max_time="00:12:00:00"',
          "forge train train.grad_clip_norm=0.5 train.grad_accum_steps=2 train.max_time=43200",
          ENDED),
    Habit("debug: few steps", "python train.py debug=fdr", "forge train debug=fast", ENDED),
    Habit("debug: overfit a batch", "python train.py debug=overfit",
          "forge train debug=overfit train.max_steps=3", ENDED, "run.root=r"),
    Habit("debug: profile", "python train.py debug=profiler",
          "forge check debug=profile", r"(ends after +\d+ steps)", None),
    Habit("resume from a checkpoint", 'python train.py ckpt_path="/path/to/ckpt/name.ckpt"',
          "forge resume mine train.max_steps=7", ENDED, None),
    Habit("evaluate a checkpoint", 'python eval.py ckpt_path="/path/to/ckpt/name.ckpt"',
          "python -c 'import forge; print(forge.load(\"mine\").evaluate())'",
          r"('loss': [\d.]{6})", None),
    Habit("a sweep over values", "python train.py -m data.batch_size=32,64 model.lr=0.001,0.0005",
          "forge train -m train.batch_size=2,4 optimizer.lr=0.001,0.0005", POINTS),
    Habit("a search by Optuna", "python train.py -m hparams_search=mnist_optuna",
          "forge train -m sweeper=optuna sweeper.n_trials=2 'optimizer.lr=interval(1e-4,1e-2)'",
          r"(best: eval/loss [\d.]+)"),
    Habit("all options of a folder", "python train.py -m 'experiment=glob(*)'",
          "forge train -m 'scheduler=glob(c*)' --cfg job -p scheduler", r"(# #001 .*)", None),
    Habit("several seeds, tagged",
          "python train.py -m seed=1,2 trainer.deterministic=True logger=csv tags=[benchmark]",
          "forge train -m seed=1,2 run.deterministic=true tags=[benchmark] sweep.name=seeds",
          POINTS),
    Habit("find what was tagged", "(in the logger)", "forge runs --tag benchmark s",
          r"(2 runs?.*|2 done.*)", None),
    Habit("a sweep on Slurm", "python train.py -m hydra/launcher=submitit_slurm seed=1,2",
          "forge check hydra/launcher=submitit_slurm hydra.launcher.gpus_per_node=2 "
          "hydra.launcher.timeout_min=60", r"^  job +(.*)", None),
    Habit("environment variables", "python train.py paths.data_dir=${oc.env:DATA}",
          "forge train 'run.name=${oc.env:USER_TAG}' --cfg job --resolve -p run",
          r"(name: from_env)", None),
    Habit("the config, nothing else", "python train.py --cfg job --resolve",
          "forge train --cfg job --resolve -p scheduler", r"(_target_: .*)", None),
    Habit("another primary config", "python train.py --config-name=other --config-dir=conf",
          "forge train --config-name=other --config-dir=conf --cfg job", r"(seed: 7)", None),
    Habit("tab completion", 'eval "$(python train.py -sc install=bash)"',
          "forge completion bash", r"(complete .* forge)", None),
]  # fmt: skip


def shown(habit: Habit, folder: Path) -> str:
    """What the command prints that shows it. Raises RuntimeError where it does not."""
    command = habit.here.replace("forge ", f"{sys.executable} -m forge ", 1)
    if habit.here.startswith("python "):
        command = habit.here.replace("python ", f"{sys.executable} ", 1)
    environ = os.environ | {"PYTHONPATH": str(ROOT), "USER_TAG": "from_env"}
    done = subprocess.run(
        ["bash", "-c", f"{command} {habit.extra or ''}"],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
    )
    found = re.findall(habit.shows, done.stdout, re.MULTILINE)
    if done.returncode or not found:
        raise RuntimeError(f"{habit.here}: {done.returncode}\n{done.stdout}\n{done.stderr}")
    print(habit.here, "|", found[-1], file=sys.stderr, flush=True)
    return " ".join(found[-1].split())


def main() -> None:
    print("# The habits of lightning-hydra-template, here\n")
    made = "Made by `python benchmarks/beside_others/habits.py`, which runs every command: where"
    print(f"{made}\nit trains with `{SHORT}` after it, and shows a part of what it printed.\n")
    print("| habit | there | here | prints |\n| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "conf").mkdir()
        (folder / "conf" / "other.yaml").write_text("defaults: [config, _self_]\nseed: 7\n")
        mine = ["-m", "forge.train", *SHORT.split(), "run.dir=mine"]
        environ = os.environ | {"PYTHONPATH": str(ROOT)}
        subprocess.run([sys.executable, *mine], cwd=folder, env=environ, check=True, stdout=2)
        for habit in HABITS:
            cells = (f"`{text}`" for text in (habit.there, habit.here, shown(habit, folder)))
            print(f"| {habit.what} | {' | '.join(cell.replace('|', '/') for cell in cells)} |")


if __name__ == "__main__":
    main()
