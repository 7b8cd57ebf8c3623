"""The `eval` group: evaluation, early stopping and samples in the loop."""

from __future__ import annotations

from typing import Any

from forge.config.data.text import BEST_FIT_CROP
from forge.config.field import Condition, Section, opt, section

TRAINED, EMA = "trained", "ema"
REFUSE, CUT = "refuse", "cut"
CROPPED = Condition(
    lambda config, ranks: config.data.packing == BEST_FIT_CROP, "with data.packing=best_fit_crop"
)


@section
class Eval(Section):
    """Evaluation on the validation split and further sets: all of each, or sequences spread evenly
    over it, the same ones every time.
    """

    all_free = True

    enabled: bool = opt(False, "evaluate in the loop and at its end")
    interval: int = opt(1000, "evaluate every N steps", gt=0)
    at_start: bool = opt(
        False, "evaluate, and print samples, before the first step too: what training begins with"
    )
    steps: int = opt(50, "evaluate as many sequences as N steps train on; 0 = all", ge=0)
    max_tokens: int = opt(1_000_000, "evaluate at most this many tokens; 0 = all", ge=0)
    batch_size: int | None = opt(
        None, "sequences a rank and batch of an evaluation; null = train.batch_size", gt=0
    )
    weights: str = opt(
        TRAINED,
        "weights for evaluation and samples: trained, or their moving mean (train.ema_decay)",
        choices=(TRAINED, EMA),
    )
    target: float | None = opt(None, "stop once `metric` is at least this good; null = off")
    metric: str = opt("loss", "metric of target and patience: one of the objective, or SET/METRIC")
    packed: bool = opt(
        False,
        "evaluation of rows packed as in training, without what is cropped off, as nanochat does; "
        "false = all of a text, cut at every seq_len",
        acts_when=CROPPED,
    )
    sets: dict[str, Any] = opt(
        {}, "further texts to evaluate, by name, each with options of data: {path: my.jsonl}"
    )
    patience: int = opt(0, "stop after this many evaluations without improvement; 0 = off", ge=0)
    min_delta: float = opt(0.0, "least change of `metric` that counts as improvement", ge=0)
    tasks: dict[str, Any] = opt(
        {}, "tasks by name, each {path: my.jsonl}, or {_target_: dotted path, and its keywords}"
    )
    data: str | None = opt(
        None, "a text to score document by document, beside the tasks: a file or folder", path=True
    )
    tasks_interval: int = opt(0, "run the tasks every N steps; 0 = never by this", ge=0)
    tasks_at_start: bool = opt(False, "run the tasks before the first step too")
    tasks_at_end: bool = opt(True, "run the tasks after the last step too")
    tasks_steps: list[int] = opt([], "run the tasks after these steps too", gt=0)
    tasks_per_decade: int = opt(
        0, "run the tasks at this many steps of each power of ten too, evenly in log(step)", ge=0
    )
    tasks_items: int = opt(0, "items of a task, spread evenly over it; 0 = all", ge=0)
    tasks_seconds: float = opt(0.0, "begin no more items of tasks after this time; 0 = all", ge=0)
    tasks_batch_tokens: int = opt(
        8192, "tokens that a rank scores at once; the scores do not depend on it", gt=0
    )
    too_long: str = opt(
        REFUSE,
        "prompt of a task beyond max_seq_len: refuse, or cut its beginning off",
        choices=(REFUSE, CUT),
    )
    sample_interval: int = opt(0, "print a sample every N steps; 0 = only at the end", ge=0)
    sample_prompts: list[str] = opt(
        [], "texts to continue, or user messages for chat data; [] = a prompt that fits the corpus"
    )
    sample_tokens: int = opt(64, "tokens a sample; 0 = no samples", ge=0)
    sample_temperature: float = opt(0.8, "softmax temperature of samples; 0 = greedy", ge=0)
    sample_top_k: int = opt(50, "sample among the k likeliest tokens; 0 = all", ge=0)
