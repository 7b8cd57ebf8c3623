"""Rules on stages of a run: rows that grow in length, and batches that grow in tokens."""

from __future__ import annotations

from itertools import pairwise
from math import prod

from forge.config.data.text import Data
from forge.config.parallel import Parallel
from forge.config.root import Config
from forge.config.rule import Findings, rule
from forge.config.train import Train
from forge.planning.layout import data_ranks

LENGTHS, UNTIL = "train.seq_len_stages", "train.seq_len_until"
BATCHES, BATCH_UNTIL = "train.batch_stages", "train.batch_until"
NO_LENGTHS = f"{LENGTHS}=[] {UNTIL}=[]"
NO_BATCHES = f"{BATCHES}=[] {BATCH_UNTIL}=[]"


@rule(LENGTHS, LENGTHS, UNTIL, "train.seq_len", "train.max_epochs")
def seq_len_stages(train: Train) -> Findings:
    """Each of train.seq_len_stages divides train.seq_len, is more than the one before, and ends at
    its own step of train.seq_len_until.
    """
    lengths, until = list(train.seq_len_stages), list(train.seq_len_until)
    fault = ""
    if len(lengths) != len(until):
        fault = f"{LENGTHS} has {len(lengths)} values, and {UNTIL} {len(until)}."
    elif wrong := next((n for n in lengths if train.seq_len % n or n == train.seq_len), None):
        fault = f"a sequence of {train.seq_len} tokens has no {wrong} tokens a whole number of "
        fault += "times, twice or more."
    elif any(b <= a for a, b in pairwise(lengths)):
        fault = f"{LENGTHS} {lengths} does not grow."
    elif any(b <= a for a, b in pairwise(until)) or any(n >= 1 and n % 1 for n in until):
        fault = f"{UNTIL} {until} are no growing steps, or shares of the run."
    if fault:
        yield LENGTHS, fault, NO_LENGTHS


@rule("train.seq_len_rows", LENGTHS, UNTIL, "data", "parallel.pp", "train.compile_model")
def rows_in_stages(config: Config, data: Data, train: Train, parallel: Parallel) -> Findings:
    """With train.seq_len_stages sequences are filled with text, and a layout takes each length."""
    if not train.seq_len_stages:
        return
    factors = parallel.sequence_factors
    parts = prod(factors.values())
    uneven = [length for length in train.seq_len_stages if length % parts]
    if data.examples or data.packing == "none" or data.pad_to_multiple_of:
        yield LENGTHS, "each example is a row of its own, which cannot be cut.", NO_LENGTHS
    elif parallel.pp > 1:
        message = "the stages of a pipeline send tensors of one shape."
        yield LENGTHS, message, f"{NO_LENGTHS}, or parallel.pp=1"
    elif uneven:
        message = f"rows of {uneven[0]} tokens cannot be cut by {' * '.join(factors)} = {parts}."
        yield LENGTHS, message, NO_LENGTHS


@rule(BATCHES, BATCHES, BATCH_UNTIL, "train.batch_size", "train.global_batch_size", "train.seq_len")
def batch_stages(config: Config, train: Train) -> Findings:
    """Each of train.batch_stages is a whole number of micro-batches on every rank, and ends at its
    own number of train.batch_until.
    """
    sizes, until = list(train.batch_stages), list(train.batch_until)
    smallest = train.batch_size * data_ranks(config) * train.seq_len
    fault, hint = "", NO_BATCHES
    if len(sizes) != len(until):
        fault = f"{BATCHES} has {len(sizes)} values, and {BATCH_UNTIL} {len(until)}."
    elif smallest and (wrong := next((size for size in sizes if size % smallest), None)):
        fault = f"{wrong} tokens are not a multiple of train.batch_size ({train.batch_size}) * "
        fault += f"{data_ranks(config)} ranks * train.seq_len ({train.seq_len}) = {smallest}."
        legal = [max(round(size / smallest), 1) * smallest for size in sizes]
        hint = f"{BATCHES}={str(legal).replace(' ', '')}"
    elif any(b <= a for a, b in pairwise(until)):
        fault = f"{BATCH_UNTIL} {until} does not grow."
    if fault:
        yield BATCHES, fault, hint


@rule("train.batch_stages_alone", BATCHES, "train.rampup_start", "parallel.pp")
def batch_stages_alone(train: Train, parallel: Parallel) -> Findings:
    """train.batch_stages has no train.rampup_start beside it, and no pipeline, in which all steps
    have as many micro-batches.
    """
    if train.batch_stages and train.rampup_start:
        yield BATCHES, f"{NO_BATCHES}, or train.rampup_start=0"
    elif train.batch_stages and parallel.pp > 1:
        yield BATCHES, f"{NO_BATCHES}, or parallel.pp=1"
