"""The data of a run, and what the config takes from it."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from forge.build import build
from forge.config.data.eval_sets import data_of
from forge.config.root import Config
from forge.config.rule import Derived
from forge.data.batches.examples import Examples, plan_examples
from forge.data.batches.loader import TrainLoader, count_samples
from forge.data.batches.mixture import Mixture
from forge.data.batches.packing import Plan, plan
from forge.data.batches.plans import kept_plan
from forge.data.batches.streams import Streamed
from forge.data.batches.targets import Empty, check_targets
from forge.data.preparing.cached import Prepared, prepare, with_sets
from forge.data.text.bad_rows import left_out
from forge.data.tokenizers.tokenizer import Tokenizer
from forge.data.tokens.cache import cache_root
from forge.data.tokens.store import TokenStore
from forge.objectives.objective import Objective
from forge.parallel.ranks import Ranks
from forge.resolve.derivations import fit_epochs
from forge.rundir import outcome, versions
from forge.training.callbacks.samples import opening
from forge.training.process import say

log = logging.getLogger(__name__)
MOSTLY = 0.5
"""Share of sequences without a target above which the run warns."""


def prepare_data(config: Config, ranks: Ranks) -> Prepared:
    """The text as tokens; the main rank prepares what is not kept from before."""
    announce = cache(lambda stage: say(f"data: {stage}"))  # each stage once
    with ranks.main_first():
        found = prepared_text(config, announce)
        return replace(found, train=planned(config, found.train, found.tokenizer, announce))


def prepared_text(config: Config, announce: Callable[[str], object]) -> Prepared:
    """The same without plans of sequences, in this process alone. announce: told of each stage."""
    making: Any = {"build": partial(build, trust=config.run.trust)}
    making["progress"] = lambda stage, share: announce(stage)
    prepared = prepare(config.data, config.tokenizer, **making)
    names = config.eval.sets if config.eval.enabled else ()
    return with_sets(prepared, {name: data_of(config, name) for name in names}, **making)


def check_vocabulary(config: Config, prepared: Prepared) -> None:
    """Raises ValueError for ids of the tokenizer that the model has no row for."""
    ids, rows = prepared.tokenizer.vocab_size, config.model.vocab_size
    if ids > rows:
        raise ValueError(
            f"model.vocab_size={rows}: the tokenizer has {ids} ids; set model.vocab_size={ids}"
        )


def fit(config: Config, run_dir: Path, prepared: Prepared) -> tuple[Config, list[dict[str, Any]]]:
    """The config with what follows from the text: steps from train.max_epochs, and a prompt; and
    all values that were ever worked out.
    """
    worked_out = versions.read(run_dir, "derived", versions.in_force(run_dir))
    derived = {one["key"]: one for one in worked_out}
    fitted = copy.deepcopy(config)
    fitted.thaw()
    text = Mixture.of(prepared.train)
    for line in left_out(prepared.manifest):
        say(line)
    empty = check_targets(text, config.data.too_long, config.train.seq_len)
    for line in how_packed(config, text):
        say(line)
    if outcome.rank() == 0:
        warn_of_prompts(config, text, empty)
    samples = count_samples(text, config.train.seq_len)
    found = [] if samples is None else fit_epochs(fitted, samples, derived)
    for one in found:
        say(f"{one.key} = {one.value}   ({one.why})")
    if not config.eval.sample_prompts:
        prompt, why = config.data.prompt, "it fits the data"
        if not prompt:
            longest = config.model.max_seq_len // 2
            split, begins = "validation", prepared.val
            if not len(begins):
                first = next(iter(text.stores.values()))
                begins = (
                    first.opening(config.train.seq_len) if isinstance(first, Streamed) else first
                )
                split = "training"
            prompt = opening(begins, prepared.tokenizer, longest)
            why = f"the {split} split begins with it"
        fitted.eval.sample_prompts = [prompt]
        found.append(Derived("eval.sample_prompts", [prompt], why))
    fitted.freeze()
    return fitted, list((derived | {one.key: asdict(one) for one in found}).values())


def how_packed(config: Config, text: Mixture) -> Iterator[str]:
    """What is said of each plan of which documents share a sequence."""
    data = config.data
    for name, one in text.plans.items():
        if isinstance(one, Examples):
            yield f"data: {one.said(config.train.seq_len)}{f', of {name}' if name else ''}"
            continue
        pieces, full = len(one.pieces), one.filled(config.train.seq_len)
        yield (
            f"data: {pieces:,} pieces of documents{f' of {name}' if name else ''} in {len(one):,} "
            f"sequences, which are {full:.1%} full   (data.packing={data.packing})"
        )
        for number, fate in ((one.cut_off, "cut off"), (one.left_out, "left out")):
            if number:
                what = f"{number:,} documents longer than train.seq_len are {fate}"
                yield f"data: {what}   (data.too_long={data.too_long})"


def warn_of_prompts(config: Config, text: Mixture, empty: Iterable[Empty]) -> None:
    """Warn where most sequences of a source have no token to learn, or most of its documents are
    left out for their length; of fewer sequences it is said. empty: those that have none.
    """
    data, larger = config.data, "A larger train.seq_len has room for more"
    shows = "`python -m forge.preview` with the same options shows what is read"
    for one in empty:
        if one.share <= MOSTLY:
            say(f"data: {one.said()}")
            continue
        fix = larger
        if data.packing == "concat_then_split" and not data.examples:
            fix += ", and data.pack_sequences=true data.packing=best_fit data.too_long=truncate"
            fix += " leaves out what has none"
        log.warning("data: %s. %s; %s", one.said(), fix, shows)
    for name, one in text.plans.items():
        read = len(one) if isinstance(one, Examples) else len(one.pieces)
        if one.left_out <= MOSTLY * (read + one.left_out):
            continue
        share = one.left_out / (read + one.left_out)
        what = f"{share:.1%} of the {'examples' if data.examples else 'documents'}"
        what += f" of {name}" if name else ""
        why = "longer than train.seq_len, and what fits of them has no token to learn"
        why = "longer than train.seq_len" if data.too_long == "drop" else why
        log.warning("data: %s are left out: they are %s. %s; %s", what, why, larger, shows)


def train_loader(
    config: Config,
    text: TokenStore | Streamed | Mixture,
    objective: Objective,
    ranks: Ranks,
    device: torch.device,
) -> TrainLoader:
    """This rank's part of every batch."""
    train, data = config.train, config.data
    return TrainLoader(
        text,
        objective,
        seq_len=train.seq_len,
        seed=data.shuffle_seed if data.shuffle_seed is not None else config.seed,
        shuffle=data.shuffle,
        batch_size=train.batch_size,
        sizes=train.batch_sizes,
        rank=ranks.batch[0],
        num_ranks=ranks.batch[1],
        num_workers=data.num_workers,
        pin_memory=data.pin_memory and device.type == "cuda",
        prefetch_factor=data.prefetch_factor,
        overfit_batches=data.overfit_batches,
        end_of_text=end_of_text(config, objective),
        noise=config.seed if config.draws else None,
        multiple=data.pad_to_multiple_of,
    )


def how_streamed(config: Config, text: TokenStore | Streamed | Mixture, ranks: int) -> list[str]:
    """What is said of each text that is read while training. ranks: that draw parts of a batch."""
    stores, said = Mixture.of(text).stores, []
    processes = ranks * max(config.data.num_workers, 1)
    once = config.train.batch_size * processes
    for store in stores.values():
        if isinstance(store, Streamed):
            parts = len(store.parts)
            line = f"data: {store.source} is read while training, in {parts} parts"
            if processes > 1 and len(stores) > 1:
                line += f", each by up to {processes} processes, as of any mixture"
            elif processes > 1 and parts % once:
                line += f", some by several processes; a multiple of {once} would be read once"
            said.append(line)
    return said


def planned(
    config: Config,
    text: TokenStore | Streamed | Mixture,
    tokenizer: Tokenizer,
    announce: Callable[[str], object],
) -> Mixture:
    """A text with plans of which documents share a sequence, where data cuts them otherwise than
    at every seq_len; from the cache or made now, which `announce` is told of.
    """
    data, mixture = config.data, Mixture.of(text)
    stores = {n: one for n, one in mixture.stores.items() if not isinstance(one, Streamed)}
    found = {name: examples_of(config, one) for name, one in stores.items()}
    if examples := {name: plan for name, plan in found.items() if plan is not None}:
        return replace(mixture, plans=examples)
    if (how := packed_how(config, tokenizer)) is None:
        return mixture
    how["announce"] = announce
    root = cache_root(data.cache_dir)
    return replace(mixture, plans={n: kept_plan(root, one, **how) for n, one in stores.items()})


def examples_of(config: Config, store: TokenStore) -> Examples | None:
    """The plan of a split that is examples; None of running text."""
    if not store.together:
        return None
    return plan_examples(store, seq_len=config.train.seq_len, too_long=config.data.too_long)


def packed_how(config: Config, tokenizer: Tokenizer) -> dict[str, Any] | None:
    """How documents are put into sequences; None where these are windows of the text."""
    data, most = config.data, max(config.data.max_segments_per_seq, 0)
    if data.packing == "concat_then_split" and not most:
        return None
    how: dict[str, Any] = {"end_of_text": tokenizer.eos_id, "seq_len": config.train.seq_len}
    return how | {"policy": data.packing, "max_segments": most, "too_long": data.too_long}


def evaluated_plan(config: Config, store: TokenStore, objective: Objective) -> Plan | None:
    """The sequences of a split that is evaluated; None = windows. Where some tokens alone count,
    documents are put into them as those that are trained on: a response has its prompt.
    """
    if store.counted is None or store.together:
        return examples_of(config, store)
    assert objective.tokenizer is not None
    how = packed_how(config, objective.tokenizer)
    return None if how is None else plan(store, **how)


def end_of_text(config: Config, objective: Objective) -> int | None:
    """The token that ends a document, where documents are to be kept apart."""
    if not config.data.pack_sequences:
        return None
    assert objective.tokenizer is not None
    return objective.tokenizer.eos_id
