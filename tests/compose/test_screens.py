"""What users see: one command line with many mistakes a subject, and all that is printed of it.

`FORGE_WRITE_SCREENS=1 pytest tests/compose/test_screens.py` writes the screens again.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from unittest.mock import patch

import pytest
from helpers.advice import alternatives
from helpers.refusing import problems

from forge import check
from forge.planning.world import Devices
from forge.resolve import resolve as resolving

SCREENS = Path(__file__).with_name("screens")
SLURM = ["launch=slurm", "run.device=cpu"]
EMA = ["run.trust=[mypkg.]", "+callbacks.ema._target_=mypkg.EMA", "+callbacks.ema.decay=0.9"]
LINES = {
    "grammar": [
        "optimizer=adamw",
        "foo", "model/tiny", "", "~", "=1", "a b=1", "größe=1", "train..max_steps=5",
        "optimizer.betas[0]=0.5", "optimizer.betas=[1", "run.name=ü", 'run.name=a"b',
        "train.max_steps==5", "optimizer.lr=1e-3,", "optimizer.lr=loguniform(1e-4,1e-2)",
        "optimizer.lr=(1e-3,1e-2)", "eval.sample_prompts=[a=b, c]", "eval.sample_prompts=a=b",
        "sweep.ablation.arms.wide=[model.dim=256]",
        "sweep.ablation.arms={base: [], wide: [model.dim=256]}", f"seed={'9' * 5000}",
    ],
    "groups": [
        "model=lama7b", "optimizer=nope", "train=1", "model=null", "data=my.txt", "parallel=tp3",
        "model=[tiny,small]", "model=tiny,small", "~model", "model={dim: 3}", "+model@x=tiny",
        "schema=config", "debug.x=1", "modle=tiny", "training=100", "precision=float32",
        "experiment=../data/text", "hydra/launcher=submitit_slrum",
    ],
    "keys": [
        "optimizer=adamw",
        "optimizer.lrr=1", "modl.dim=3", "sead=3", "wramup=3", "train.warmup_steps=3", "seed.x=1",
        "optimizer.betas.0=0.5", "optimizer/lr=1", "seed@foo=3", "data.path=x",
        "+optimizer.foo=1", "+optimizer.lr=1", "~optimizer.lr", "sweep.arms.b=[]",
        "sweeper.param.seed=1", "distributed.tp=4", "model.num_experts=8", "stable_steps=3",
        "name=x",
    ],
    "other frameworks": [
        "optimizer=adamw",
        "trainer.learning_rate=1", "train.compile=true", "scheduler.warmup_fraction=0.1",
        "min_lr=3e-5", "optimizer.beta1=0.8", "dropout=0.1", "bf16=false", "device=gpu",
        "steps=many", "optim=adam", "--optimizer.lr=3e-3", "--callbacks.ema._target_=x.EMA",
        "--model=smal", "--lr=3e-3", "--bf16", "--learning-rate", "3e-3",
    ],
    "values": [
        "optimizer=adamw",
        "seed=abc", "seed=1.5", "eval.enabled=100", "seed=true", "seed=null", "optimizer.lr=fast",
        "run.inline=maybe",
        "run.trust=os.", "eval.sample_prompts=a b", "optimizer.betas=0.9", "run.name=[a]",
        "parallel.pp_layers=3", "parallel.pp_layers=x", "optimizer.lr=[1e-3,1e-2]",
        "model.moe=3", "sweep.ablation=[1]", "model.moe={a: 1}", "optimizer.betas=0.9,0.95",
        "run.name=a,b", "seed=range(1,5)", "optimizer.eps=???", "train.max_steps=${nokey.x}",
        "optimizer.weight_decay=${optimizer.weight_decay}", "run.device=gpu",
    ],
    "bounds": [
        "optimizer=adamw",
        "optimizer.lr=1e400", "seed=-1", "run.device=gpu", "eval.sample_prompts=[[a]]",
        "train.batch_size=0", "train.seq_len=99999", "optimizer.betas=[0.9]",
        "train.max_steps=10000000000000000000",
    ],
    "hydra": [
        "hydra.run.dir=x", "hydra.job.name=x", "hydra.sweep.dir=x", "hydra.verbose=true",
        "hydra.searchpath=conf", "hydra.searchpath=[/nonexistent]", "hydra.searchpath=[s3://x]",
        "hydra.searchpath=[pkg://nope.conf]", "-cd", "/nowhere",
    ],
    "entries": [
        *SLURM, "launch.sbatch.nice=5", "~launch.sbatch.nise", "launch.sbatch.nice=[1]",
        "launch.sbatch=1", "launch.time=1-00:00:00", "sweep.ablation.arms.x=3",
        'sweep.ablation.arms.x="seed=3"', "sweep.ablation.arms=x", "sweeper.params.seed=[1,2]",
    ],
    "free dicts": [
        *EMA, "callbacks.emma.decay=3", "callbacks.ema.dekay=3", "~callbacks.emma",
        "~callbacks", "~trackers.x", "+callbacks.ema.decay=1",
        "+callbacks.ema.decay.x=1", "callbacks=null", "callbacks.ema.decay=1,2",
        "callbacks={1:{}}", "callbacks.ema@x=1", "+callbacks.ema.x=${nope}",
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", LINES)
def test_a_refusal(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with patch.object(resolving, "find_devices", lambda: Devices(gpus=0, source="the test")):
        assert check.main(LINES[name]) == 2
    shown = capsys.readouterr()
    assert shown.out.startswith("cannot run here: ")
    screen = SCREENS / f"{name.replace(' ', '_')}.txt"
    text = "\n".join(f"{line[:200]}" for line in shown.err.splitlines()) + "\n"
    if "FORGE_WRITE_SCREENS" in os.environ:
        screen.write_text(text, encoding="utf-8")
    assert text == screen.read_text(encoding="utf-8")


@pytest.mark.nightly
def test_what_is_advised_can_be_typed() -> None:
    """But for what is then several values, or lacks an option of its own."""
    screens = "".join(file.read_text(encoding="utf-8") for file in SCREENS.glob("*.txt"))
    lines = "\n".join(line for line in screens.splitlines() if len(line) < 200)  # not cut off
    fixes = dict.fromkeys(re.findall(r"^     -> (.+)$", lines, re.MULTILINE))
    typed = [words for fix in fixes for words in alternatives(fix)]
    assert len(typed) > 50
    for words in typed:
        found = problems(["optimizer=adamw", *words], as_point=True)
        left = [p.what for p in found if not p.rule and "several values" not in p.what]
        assert left == [] or words[0].lstrip("+~").startswith(("callbacks", "launch", "setup")), (
            words
        )
