"""FLOPs of a token in training, without gradients of frozen weights; and tokens of a run."""

from __future__ import annotations

from forge.config.model.tensors import EXPERT, HEAD, MATRIX
from forge.config.optimizers.param_groups import some_frozen, trained
from forge.config.root import Config


def flops_per_token(config: Config, seq_len: int | None = None) -> int | None:
    """FLOPs of a token, forward and backward; None = not known. `Decoder.flops_per_token`, with 4
    in place of 6 for each frozen weight, and 6 for each weight of an adapter. seq_len: of its row;
    None = train.seq_len.
    """
    model, is_trained = config.decoder, trained(config)
    flops = config.model.flops_per_token(seq_len or config.train.seq_len)
    if flops is None or model is None or not some_frozen(config):
        return flops
    tensors = list(model.tensors())
    frozen = sum(tensor.multiplied for tensor in tensors if not is_trained(tensor.name))
    tables, outputs = model.outside()
    if not any(tensor.role == HEAD for tensor in outputs) and not is_trained(tables[0].name):
        frozen += tables[0].size  # the table is the head too
    beside = config.adapter.added(tensor for tensor in tensors if tensor.role in (MATRIX, EXPERT))
    added = sum(tensor.multiplied for tensor in beside if is_trained(tensor.name))
    return flops - 2 * frozen + 6 * added


def flops_in_all(config: Config) -> int:
    """FLOPs of all steps, with every sequence full; 0 = not known."""
    train, total = config.train, 0
    sizes = train.batch_sizes
    for first, end, seq_len in train.seq_lens.stages(train.max_steps):
        tokens = (sizes.samples(end) - sizes.samples(first)) * tokens_of_sample(config)
        total += tokens * (flops_per_token(config, seq_len) or 0)
    return total


def sequences_of(config: Config) -> int:
    """Sequences in one sample of the batch: two for a preference, say."""
    return config.objective.rows + config.objective.rows_ahead


def tokens_of_sample(config: Config) -> int:
    """Tokens of a sample of the batch, with every sequence full."""
    return sequences_of(config) * config.train.seq_len


def tokens_in_all(config: Config) -> int:
    """Tokens of all steps, with every sequence full."""
    train = config.train
    return train.batch_sizes.samples(train.max_steps) * tokens_of_sample(config)
