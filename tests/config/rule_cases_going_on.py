"""Cases of the rules on run directories and what a run starts from; `{tmp}/run` is a run of SMALL
with checkpoints 2 and 10.
"""

from __future__ import annotations

from rule_cases import Case

GOING_ON_CASES = [
    Case(
        "run.dir",
        "run.dir={tmp}",
        "{tmp} holds other files and is no run directory.",
        "run.dir=null for a fresh one, or give a run directory, or a new one",
        "run.dir={tmp}/new",
    ),
    Case(
        "run.dir",
        "run.dir={tmp}/my.txt",
        "{tmp}/my.txt is a file.",
        "run.dir=null for a fresh one, or give a run directory, or a new one",
        "run.dir={tmp}/empty",
    ),
    Case(
        "run.identity",
        "run.dir={tmp}/run optimizer.lr=0.5",
        "the run in {tmp}/run has optimizer.lr=0.003; here it is 0.5.",
        "optimizer.lr=0.003, run.allow_change=[optimizer.lr], or another run.dir",
        "run.dir={tmp}/run metrics.log_interval=3 train.max_steps=200 eval.interval=7 data.num_workers=1",
    ),
    Case(
        "run.identity",
        "run.dir={tmp}/run scheduler=constant",
        "the run in {tmp}/run has scheduler=forge.optim.schedules.linear; here it is forge.optim.schedules.constant.",
        "scheduler as it was, run.allow_change=[scheduler], or another run.dir",
        "run.dir={tmp}/run scheduler=constant run.allow_change=[scheduler]",
    ),
    Case(
        "run.identity",
        "run.dir={tmp}/run train.max_steps=50",
        "the run in {tmp}/run has train.max_steps=100; here it is 50.",
        "train.max_steps=100, run.allow_change=[train.max_steps], or another run.dir",
        "run.dir={tmp}/run train.max_steps=101",
    ),
    Case(
        "run.allow_change",
        "run.allow_change=[optimizer.lrr]",
        "there is no option or section 'optimizer.lrr'.",
        "did you mean run.allow_change=[optimizer.lr]?",
        "run.allow_change=[optimizer.lr,model,data.val_fraction]",
    ),
    Case(
        "checkpoint.resume_from",
        "checkpoint.resume_from={tmp}/absent",
        "there is no directory {tmp}/absent.",
        "a step of this run, a step_N directory, or a run directory that has checkpoints",
        "checkpoint.resume_from={tmp}",
    ),
    Case(
        "checkpoint.resume_from",
        "checkpoint.resume_from=2",
        "a step is one of the run in run.dir, which is not given.",
        "run.dir=..., or a path",
        "checkpoint.resume_from=2 run.dir={tmp}/run",
    ),
    Case(
        "checkpoint.resume_from",
        "checkpoint.resume_from=3 run.dir={tmp}/run",
        "{tmp}/run/checkpoints has no checkpoint of step 3.",
        "checkpoint.resume_from=2 or checkpoint.resume_from=10",
        "checkpoint.resume_from=10 run.dir={tmp}/run",
    ),
    Case(
        "checkpoint.dir",
        "checkpoint.dir=../other",
        "'../other' would mix checkpoints with other files.",
        "checkpoint.dir=checkpoints, or an absolute path of its own",
        "checkpoint.dir={tmp}/elsewhere",
    ),
    Case(
        "checkpoint.init_from",
        "checkpoint.init_from={tmp}/absent",
        "there is nothing at {tmp}/absent.",
        "give a step_N directory, a run directory that has checkpoints, RUN/best, or a .safetensors file",
        "checkpoint.init_from={tmp}/best",
    ),
    Case(
        "checkpoint.two_starts",
        "checkpoint.init_from={tmp} checkpoint.resume_from={tmp}",
        "checkpoint.resume_from takes the weights from its checkpoint too, and checkpoint.init_from would have no effect.",
        "checkpoint.init_from=null or checkpoint.resume_from=null",
        "checkpoint.init_from={tmp}",
    ),
    Case(
        "checkpoint.keep_best",
        "checkpoint.keep_best=2 eval.enabled=false run.objective=train/loss",
        "the best checkpoint is known by evaluation, and eval.enabled is false.",
        "eval.enabled=true",
        "checkpoint.keep_best=2 eval.enabled=true",
    ),
    Case(
        "run.objective",
        "run.objective=eval/lss",
        "there is no metric eval/lss.",
        "did you mean run.objective=eval/loss?",
        "run.objective=eval/bits_per_byte",
    ),
    Case(
        "run.objective",
        "run.objective=eval/loss eval.enabled=false",
        "eval/loss needs evaluation, and eval.enabled is false.",
        "eval.enabled=true",
        "run.objective=train/loss eval.enabled=false",
    ),
]
