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
from forge.config.data.text import BEST_FIT_CROP, BUFFERED
from forge.config.objectives.grpo import GRPO
from forge.config.rollouts.rollout import SampledRollout
from forge.config.root import Config
from forge.config.rule import Derived
from forge.data.batches.examples import Examples, plan_examples
from forge.data.batches.loader import TrainLoader, count_samples
from forge.data.batches.mixture import Mixture
from forge.data.batches.packing import Plan, plan_samples
from forge.data.batches.plans import kept_plan
from forge.data.batches.stream_rows import Packing
from forge.data.batches.streams import Streamed
from forge.data.batches.targets import Empty, check_targets
from forge.data.preparing.cached import Prepared, prepare_tokens, with_sets
from forge.data.text.bad_rows import left_out
from forge.data.tokenizers.tokenizer import Tokenizer
from forge.data.tokens.cache import cache_root
from forge.data.tokens.store import TokenStore
from forge.objectives.objective import Objective
from forge.parallel.ranks import Ranks
from forge.resolve.horizon import fit_epochs
from forge.rundir import outcome, versions
from forge.training.callbacks.samples import opening
from forge.training.process import say

log = logging.getLogger(__name__)
MOSTLY = 0.5
"""Share of sequences without a target above which the run warns."""


def prepare_data(config: Config, ranks: Ranks) -> Prepared:
    """Tokenize the text of a run; the main rank prepares all uncached data."""
    announce = cache(lambda stage: say(f"data: {stage}"))  # each stage once
    with ranks.main_first():
        prepared = prepared_text(config, announce)
        return replace(
            prepared, train=plan_documents(config, prepared.train, prepared.tokenizer, announce)
        )


def prepared_text(config: Config, announce: Callable[[str], object]) -> Prepared:
    """Tokenize the text without plans of sequences, in this process alone.

    announce: told of each stage.
    """
    making: Any = {"build": partial(build, trust=config.run.trust)}
    making["progress"] = lambda stage, share: announce(stage)
    prepared = prepare_tokens(config.data, config.tokenizer, **making)
    names = config.eval.sets if config.eval.enabled else ()
    return with_sets(prepared, {name: data_of(config, name) for name in names}, **making)


def check_vocabulary(config: Config, prepared: Prepared) -> None:
    """Raise ValueError for tokenizer ids without a row of the model."""
    ids, rows = prepared.tokenizer.vocab_size, config.model.vocab_size
    if ids > rows:
        raise ValueError(
            f"model.vocab_size={rows}: the tokenizer has {ids} ids; set model.vocab_size={ids}"
        )


def fit(config: Config, run_dir: Path, prepared: Prepared) -> tuple[Config, list[dict[str, Any]]]:
    """Complete the config from the text: steps from train.max_epochs, and a prompt.

    Also returns all values ever worked out.
    """
    worked_out = versions.read_config_part(run_dir, "derived", versions.number_in_force(run_dir))
    derived = {d["key"]: d for d in worked_out}
    fitted = copy.deepcopy(config)
    fitted.thaw()
    text = Mixture.of(prepared.train)
    samples = _samples_of(config, prepared, text)
    followed = [] if samples is None else fit_epochs(fitted, samples, derived)
    for derivation in followed:
        say(f"{derivation.key} = {derivation.value}   ({derivation.why})")
    if not config.eval.sample_prompts and not config.rollout.active:
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
        followed.append(Derived("eval.sample_prompts", [prompt], why))
    fitted.freeze()
    return fitted, list((derived | {d.key: asdict(d) for d in followed}).values())


def _samples_of(config: Config, prepared: Prepared, text: Mixture) -> int | None:
    """Sequences of a pass over the training text; None = unknown. Reports what is read."""
    if isinstance(config.rollout, SampledRollout) and isinstance(config.objective, GRPO):
        (prompts,) = text.stores.values()
        assert isinstance(prompts, TokenStore)
        return len(prompts) * config.rollout.num_generations * config.objective.num_iterations
    for line in left_out(prepared.manifest):
        say(line)
    empty = check_targets(text, config.data.too_long, config.train.seq_len)
    for line in how_packed(config, text):
        say(line)
    if outcome.rank() == 0:
        warn_of_prompts(config, text, empty)
    return count_samples(text, config.train.seq_len)


def how_packed(config: Config, text: Mixture) -> Iterator[str]:
    """Describe each plan of documents sharing a sequence, a line each."""
    data = config.data
    for name, packed in text.plans.items():
        if isinstance(packed, Examples):
            yield f"data: {packed.said(config.train.seq_len)}{f', of {name}' if name else ''}"
            continue
        pieces, full = len(packed.pieces), packed.filled(config.train.seq_len)
        yield (
            f"data: {pieces:,} pieces of documents{f' of {name}' if name else ''} in "
            f"{len(packed):,} sequences, which are {full:.1%} full   (data.packing={data.packing})"
        )
        for number, fate in (
            (packed.cut_off, "cut off"),
            (packed.left_out, "left out"),
        ):
            if number:
                message = f"{number:,} documents longer than train.seq_len are {fate}"
                yield f"data: {message}   (data.too_long={data.too_long})"
        if data.packing == BEST_FIT_CROP:
            yield f"data: {packed.said_cropped()}   (data.packing_buffer={data.packing_buffer})"


def warn_of_prompts(config: Config, text: Mixture, empty: Iterable[Empty]) -> None:
    """Warn of sources with mostly sequences without a token to learn.

    Also of sources with mostly documents left out for their length. A smaller share of such
    sequences is only reported. empty: sources with sequences without a target.
    """
    data, larger = config.data, "A larger train.seq_len has room for more"
    shows = "`python -m forge.preview` with the same options shows what is read"
    for item in empty:
        if item.share <= MOSTLY:
            say(f"data: {item.said()}")
            continue
        hint = larger
        if data.packing == "concat_then_split" and not data.examples:
            hint += ", and data.pack_sequences=true data.packing=best_fit data.too_long=truncate"
            hint += " leaves out what has none"
        log.warning("data: %s. %s; %s", item.said(), hint, shows)
    for name, item in text.plans.items():
        read = len(item) if isinstance(item, Examples) else len(item.pieces)
        if item.left_out <= MOSTLY * (read + item.left_out):
            continue
        share = item.left_out / (read + item.left_out)
        subject = f"{share:.1%} of the {'examples' if data.examples else 'documents'}"
        subject += f" of {name}" if name else ""
        why = "longer than train.seq_len, and what fits of them has no token to learn"
        why = "longer than train.seq_len" if data.too_long == "drop" else why
        log.warning("data: %s are left out: they are %s. %s; %s", subject, why, larger, shows)


def train_loader(
    config: Config,
    text: TokenStore | Streamed | Mixture,
    objective: Objective,
    ranks: Ranks,
    device: torch.device,
) -> TrainLoader:
    """Build the loader of this rank's part of every batch."""
    train, data = config.train, config.data
    rank, num_ranks = config.fault_tolerance.part_of(*ranks.batch)
    return TrainLoader(
        text,
        objective,
        seq_len=train.seq_len,
        seed=data.shuffle_seed if data.shuffle_seed is not None else config.seed,
        shuffle=data.shuffle,
        batch_size=train.batch_size,
        sizes=train.batch_sizes,
        seq_lens=train.seq_lens if train.seq_len_stages else None,
        rank=rank,
        num_ranks=num_ranks,
        num_workers=data.num_workers,
        pin_memory=data.pin_memory and device.type == "cuda",
        prefetch_factor=data.prefetch_factor,
        overfit_batches=data.overfit_batches,
        end_of_text=end_of_text(config, objective),
        noise=config.seed if config.draws else None,
        multiple=data.pad_to_multiple_of,
    )


def how_streamed(config: Config, text: TokenStore | Streamed | Mixture, ranks: int) -> list[str]:
    """Describe each text read while training. ranks: number of ranks drawing parts of a batch."""
    stores, lines = Mixture.of(text).stores, []
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
            lines.append(line)
    return lines


def plan_documents(
    config: Config,
    text: TokenStore | Streamed | Mixture,
    tokenizer: Tokenizer,
    announce: Callable[[str], object],
) -> Mixture:
    """Plan the documents sharing a sequence, unless sequences are cut at every seq_len.

    From the cache or made now; `announce` is told of a new plan.
    """
    data, mixture = config.data, _streams_packed(config, Mixture.of(text))
    stores = {n: store for n, store in mixture.stores.items() if not isinstance(store, Streamed)}
    example_plans = {name: examples_of(config, store) for name, store in stores.items()}
    if examples := {name: plan for name, plan in example_plans.items() if plan is not None}:
        return replace(mixture, plans=examples)
    if (options := packed_how(config, tokenizer)) is None:
        return mixture
    options["announce"] = announce
    root = cache_root(data.cache_dir)
    return replace(mixture, plans={n: kept_plan(root, s, **options) for n, s in stores.items()})


def _streams_packed(config: Config, mixture: Mixture) -> Mixture:
    """Tell streams how documents share a sequence: packed while reading, without a plan."""
    data = config.data
    packing = Packing(data.packing, data.too_long, max(data.max_segments_per_seq, 0))
    examples = packing._replace(policy="none")  # each a sample
    stores = {
        name: replace(store, packing=examples if store.together else packing)
        if isinstance(store, Streamed)
        else store
        for name, store in mixture.stores.items()
    }
    return replace(mixture, stores=stores)


def examples_of(config: Config, store: TokenStore) -> Examples | None:
    """Plan a split of examples; None for running text."""
    if not store.together:
        return None
    return plan_examples(store, seq_len=config.train.seq_len, too_long=config.data.too_long)


def packed_how(config: Config, tokenizer: Tokenizer) -> dict[str, Any] | None:
    """Options for packing documents into sequences; None for windows of the text."""
    data, most = config.data, max(config.data.max_segments_per_seq, 0)
    if data.packing == "concat_then_split" and not most:
        return None
    options: dict[str, Any] = {"end_of_text": tokenizer.eos_id, "seq_len": config.train.seq_len}
    if data.packing in BUFFERED:
        options |= {"buffer": data.packing_buffer}
        options |= {} if tokenizer.add_eos else {"begin_of_text": tokenizer.begin_id}
    return options | {"policy": data.packing, "max_segments": most, "too_long": data.too_long}


def evaluated_plan(config: Config, store: TokenStore, objective: Objective) -> Plan | None:
    """Plan the sequences of an evaluated split; None = windows.

    Where only some tokens count, documents are packed as in training: a response keeps its prompt.
    So are those of running text with eval.packed.
    """
    packed = config.eval.packed and config.data.packing == BEST_FIT_CROP
    if (store.counted is None and not packed) or store.together:
        return examples_of(config, store)
    assert objective.tokenizer is not None
    options = packed_how(config, objective.tokenizer)
    return None if options is None else plan_samples(store, **options)


def end_of_text(config: Config, objective: Objective) -> int | None:
    """The token at the end of a document, if documents are kept apart; else None."""
    if not config.data.pack_sequences:
        return None
    assert objective.tokenizer is not None
    return objective.tokenizer.eos_id
