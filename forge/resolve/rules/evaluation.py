"""Rules on evaluation: its sets, the metrics to judge a run by, and the rewards of completions."""

from __future__ import annotations

import re
from typing import Any

from forge.build import build
from forge.config.checkpoint import Checkpoint
from forge.config.data.eval_sets import metric_names
from forge.config.data.reading import NAME
from forge.config.data.text import Data, HuggingFace
from forge.config.eval import CUT, EMA, Eval
from forge.config.optimizers.schedule_free import ScheduleFreeAdamW
from forge.config.problems import ConfigError
from forge.config.rewards.entry import TARGET, keywords_of, reward_faults
from forge.config.root import Config
from forge.config.rule import Findings, rule
from forge.config.run import Run
from forge.config.tokenizers.tokenizer import Bytes, Tokenizer
from forge.config.tokenizers.tokenizer_files import Existing
from forge.config.train import Train
from forge.resolve.rules.entries import entry_faults, suggest
from forge.resolve.rules.run import path_fault, unstorable
from forge.tasks.declared import OF_TEXTS, faults, is_text, tasks_of
from forge.tasks.lengths import encoder_of, longest_questions, too_long_question

ASSIGNED = re.compile(r"\w+=")
FORGE, LEARNED = "forge.rewards.", "forge.training.learned_reward.LearnedReward"


@rule("eval.needed", "eval.enabled", "eval.target", "eval.patience", "checkpoint.keep_best")
def needed(eval: Eval, checkpoint: Checkpoint) -> Findings:
    """eval.target, eval.patience and checkpoint.keep_best need eval.enabled=true."""
    wants = {"eval.target": eval.target is not None, "eval.patience": eval.patience}
    wants["checkpoint.keep_best"] = checkpoint.keep_best
    for key in (key for key, is_set in wants.items() if is_set and not eval.enabled):
        yield key, "eval.enabled=true"


@rule("eval.weights", "eval.weights", "train.ema_decay")
def eval_weights(eval: Eval, train: Train) -> Findings:
    """eval.weights=ema reads the moving mean of the weights: train.ema_decay above 0."""
    if eval.weights == EMA and not train.ema_decay:
        yield "eval.weights", "train.ema_decay=0.999"


@rule("train.ema_decay", "train.ema_decay", "optimizer")
def one_mean(train: Train, optimizer: ScheduleFreeAdamW) -> Findings:
    """Schedule-free AdamW has a mean of its weights already, and takes train.ema_decay=0."""
    if train.ema_decay:
        yield "train.ema_decay", "train.ema_decay=0"


@rule("train.ema_start_step", "train.ema_start_step", "train.max_steps", warning=True)
def ema_start(train: Train) -> Findings:
    """train.ema_start_step should be at most train.max_steps, or there is no mean."""
    if train.ema_decay and train.ema_start_step > train.max_steps:
        yield "train.ema_start_step", f"train.ema_start_step={train.max_steps // 2}"


@rule("eval.interval", "eval.interval", "eval.patience", "train.max_steps", warning=True)
def eval_interval(eval: Eval, train: Train) -> Findings:
    """eval.patience needs more than one evaluation: eval.interval less than train.max_steps."""
    steps = train.max_steps
    if eval.enabled and eval.patience and eval.interval >= steps:
        yield "eval.interval", f"eval.interval={max(steps // 10, 1)}"


@rule("eval.metric", "eval.metric", "eval.enabled", "eval.sets")
def metric(config: Config, eval: Eval) -> Findings:
    """eval.metric is one that the objective reports, or SET/METRIC with a set of eval.sets."""
    names = list(metric_names(config))
    if not config.objective.metrics and eval.enabled:
        yield "eval.enabled", "the objective reports no metrics.", "eval.enabled=false"
    elif not names and eval.enabled:
        message = "there is nothing to evaluate: no text is held out, and eval.sets has none."
        yield "eval.enabled", message, "eval.enabled=false; data.val_fraction=0.05"
    elif eval.metric not in names and eval.enabled:
        message = f"there is no metric {eval.metric}."
        yield "eval.metric", message, suggest(eval.metric, names, "eval.metric=")


@rule("data.validation")
def validation(config: Config, data: Data) -> Findings:
    """data.validation has options of the data group that say what is read."""
    if data.validation:
        yield from entry_faults(data, "data", "validation", data.validation)


@rule("data.val_files", "data.val_files", "data.val_documents", "data.validation")
def val_files(data: Data) -> Findings:
    """data.val_files holds out files of a text that is read file by file, and nothing else of it:
    not with data.validation or data.val_documents.
    """
    if not data.val_files:
        return
    if data.validation or data.val_documents:
        yield "data.val_files", "data.val_files=0"
    elif isinstance(data, HuggingFace) and not data.streamed:
        message = "the `datasets` library gives one table of all files."
        hint = "data=text, which reads Parquet too; or data.hf_streaming=true"
        yield "data.val_files", message, hint


@rule("data.val_documents", "data.val_documents", "data.validation")
def val_documents(data: Data) -> Findings:
    """data.val_documents holds out documents of a text: not of token shards, nor with
    data.validation.
    """
    if data.val_documents and (data.tokenized or data.validation):
        yield "data.val_documents", "data.val_documents=0"


@rule("eval.sets")
def sets(config: Config, eval: Eval) -> Findings:
    """A set of eval.sets has options of the data group that say what is read; all of it counts."""
    for name, entry in eval.sets.items():
        yield from entry_faults(config.data, "eval.sets", name, entry)


@rule("eval.tasks", "eval.tasks", "eval.data")
def tasks(config: Config, eval: Eval) -> Findings:
    """A task of eval.tasks has all that it needs here: a file, a package, items with an answer."""
    for name, entry in tasks_of(eval).items():
        if not NAME.fullmatch(name):
            message = f"'{name}' is part of the names of metrics: letters, digits, _ and -."
            yield "eval.tasks", message, "another name"
        elif isinstance(entry, dict) and is_text(entry):
            options = {key: value for key, value in entry.items() if key not in OF_TEXTS}
            for finding in entry_faults(config.data, "eval.tasks", name, options):
                key = finding[0] if name in eval.tasks else f"eval.data={eval.data}"
                yield (key, *finding[1:]) if len(finding) == 3 else (key, finding[1])
        else:
            yield from faults(name, entry, trust=config.run.trust)


@rule("eval.tasks_length", "eval.tasks", "eval.too_long", "eval.tasks_items", "model.max_seq_len")
def tasks_length(config: Config, eval: Eval, tokenizer: Tokenizer) -> Findings:
    """A question of eval.tasks fits into model.max_seq_len, or eval.too_long=cut shortens it; not
    seen of a tokenizer yet to be trained.
    """
    if eval.too_long == CUT or not isinstance(tokenizer, Bytes | Existing):
        return
    longest = int(config.model.max_seq_len)
    for name, entry in eval.tasks.items():
        if not isinstance(entry, dict) or is_text(entry):
            continue
        given = longest_questions(name, entry, config.run.trust, eval.tasks_items)
        # A text has no more tokens than bytes, but for a space before it and a begin token.
        given = [each for each in given if len(each.text.encode()) + 2 > longest]
        encoder = encoder_of(tokenizer, config.run.trust) if given else None
        fault = too_long_question(given, encoder, longest) if encoder else None
        if fault is not None:
            question, size = fault
            message = f"item {question.item} has {size} tokens, and the model reads {longest}."
            hint = f"eval.too_long=cut, which leaves out its beginning; model.max_seq_len={size}"
            yield f"eval.tasks.{name}", message, hint


@rule("eval.tasks_needed", "eval.tasks", "eval.data", "eval.tasks_interval", "eval.tasks_steps")
def tasks_needed(eval: Eval) -> Findings:
    """eval.tasks_interval, eval.tasks_steps and eval.tasks_per_decade need tasks or eval.data."""
    wants = {
        "eval.tasks_interval": eval.tasks_interval,
        "eval.tasks_steps": eval.tasks_steps,
        "eval.tasks_per_decade": eval.tasks_per_decade,
    }
    for key in (key for key, value in wants.items() if value and not tasks_of(eval)):
        yield key, f"{key}={'[]' if key == 'eval.tasks_steps' else 0}"


@rule("eval.tasks_off", "eval.tasks", "eval.data", "eval.enabled", warning=True)
def tasks_off(eval: Eval) -> Findings:
    """Tasks of eval.tasks and eval.data run in the loop with eval.enabled=true alone."""
    if tasks_of(eval) and not eval.enabled:
        yield "eval.enabled", "eval.enabled=true"


@rule("run.objective", "run.objective", "eval.enabled")
def objective_is_measured(config: Config, run: Run, eval: Eval) -> Findings:
    """run.objective names a metric that the run has: an eval/ one needs eval.enabled=true."""
    name, names = run.objective or "", list(metric_names(config))
    group, _, metric = name.partition("/")
    if group == "eval" and not eval.enabled:
        yield "run.objective", "eval.enabled=true"
    elif group == "eval" and metric not in (*names, eval.metric):  # eval.metric has its own rule
        message = f"there is no metric {name}."
        yield "run.objective", message, suggest(metric, names, "run.objective=eval/")


@rule("rewards")
def rewards(config: Config) -> Findings:
    """A reward has a _target_, options that every reward has, and what forge's own need here."""
    for name, entry in config.rewards.items():
        key, entry_problems = f"rewards.{name}", list(reward_faults(name, entry))
        if not NAME.fullmatch(name):
            message = f"'{name}' is part of the names of metrics: letters, digits, _ and -."
            yield "rewards", message, "another name"
        elif entry_problems:
            yield from ((problem.key, problem.what, problem.fix) for problem in entry_problems)
        elif other := unstorable(entry, key):
            hint = f"~{key}, or give it texts, numbers, booleans, null, lists and dicts of them"
            yield key, f"{other}, which no file can keep.", hint
        elif str(entry[TARGET]).startswith(FORGE):
            yield from _own_faults(key, entry)
        elif entry[TARGET] == LEARNED:
            yield from _learned_faults(key, entry.get("path"))


def _learned_faults(key: str, path: Any) -> Findings:
    if not path:
        message = "it has no path, of a run of objective=reward_model."
        yield f"{key}.path", message, f"{key}.path=runs/reward"
    elif fault := path_fault(str(path)):
        yield f"{key}.path={path}", *fault


def _own_faults(key: str, entry: dict) -> Findings:
    """Faults of one of forge's rewards, which is built without torch."""
    try:
        reward = build({TARGET: entry[TARGET], **keywords_of(entry)}, path=key)
    except ConfigError as error:
        yield from ((problem.key, problem.what, problem.fix) for problem in error.problems)
        return
    for message, hint in reward.faults():
        is_option = ASSIGNED.match(hint)
        yield key, message, f"{key}.{hint}" if is_option else hint
