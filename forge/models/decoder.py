"""The decoder-only transformer: the Llama shape by default, the GPT-2 shape by options."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from forge.config.model.attention_options import Span
from forge.config.model.decoder import Decoder as DecoderConfig
from forge.config.model.skips.backout import middle
from forge.models.balance import Balanced, has_steps
from forge.models.blocks.block import Block
from forge.models.blocks.layer_inputs import LayerScalar, LongBlock, add_layer_inputs
from forge.models.cache import KVCache, seen_in, token_positions
from forge.models.documents import (
    Packed,
    Seen,
    branches_and_masks,
    packed_in_blocks,
    positions_and_masks,
    scores_or_blocks,
)
from forge.models.dropout import Drawing, Jitter, Noise, StreamDropout
from forge.models.head import Head, OutputHead, weight_of
from forge.models.init import TableValues
from forge.models.mixin import mix_in
from forge.models.norm import NORMS, make_norm
from forge.models.positions import Positions, Sinusoids
from forge.models.predicting.further import add_further
from forge.models.rope import PositionTable, Rotation, tables_of
from forge.models.router import Router
from forge.models.routing_record import RoutingRecord
from forge.models.skips.engram import Engram, memories, remembered
from forge.models.skips.hyper_connections import collected, spread_streams
from forge.models.skips.scalars import Backout
from forge.models.skips.smear import Smear

Places = tuple[int, Tensor | None]  # of the first token; of all, where they do not follow it


ADDED = {"learned": Positions, "sinusoidal": Sinusoids}
BUFFERED = PositionTable | Sinusoids | Router | RoutingRecord | Drawing | Engram | LayerScalar


class Decoder(TableValues, nn.Module):
    """Token ids to next-token logits, or a stage of the model, cut out by `keep`.

    A stage takes hidden states instead of tokens, or gives hidden states, or both. Weights are
    torch's defaults until `forge.models.init.init_weights`. residual_dtype: of hidden states
    between layers; null = as the embeddings. in_blocks: whether blocks instead of masks keep apart
    the documents of a shared row; for layers that pass `seen` on to `causal_attention` unchanged.
    """

    residual_dtype: torch.dtype | None = None
    jitter_width: Tensor | None = None
    in_blocks: bool = False

    mtp: nn.ModuleDict  # modules for further tokens, by their depth from 0

    def __init__(self, section: DecoderConfig) -> None:
        super().__init__()
        if has_steps(section):
            mix_in(self, Balanced)
        self.section = section
        self.table = {tensor.name: tensor for tensor in section.tensors()}
        self.max_seq_len = section.max_seq_len
        self.reads_tokens = True
        self.noise, rate = Noise(), section.dropout
        self.embedding: nn.Embedding | None = nn.Embedding(section.vocab_size, section.dim)
        self.jitter = Jitter("jitter", self.noise)
        self.dropout = StreamDropout(rate, "embedding", self.noise) if rate else None
        self.positions: Positions | Sinusoids | None = None
        if section.position in ADDED:
            self.positions = ADDED[section.position](section.max_seq_len, section.dim)
        of_kind = {kind.name: section.of_kind(kind.name) for kind in section.kinds_in()}
        self.rotary = tables_of(of_kind)
        self.embedding_norm = make_norm(section) if section.embedding_norm else None
        self.smear = Smear(section) if section.smear else None
        # Recurrent mixers have a state instead of scores, and so no span.
        scored = {kind: layer for kind, layer in of_kind.items() if not layer.mixer.recurrent}
        self.spans = {kind: layer.span for kind, layer in scored.items()}
        self.with_values = {kind for kind, layer in of_kind.items() if layer.adds_values}
        self.kinds = [section.kind_of(layer).name for layer in range(section.n_layers)]
        add_layer_inputs(self, section)
        self.engrams = memories(section)
        make_block = LongBlock if section.is_long else Block
        # By number in a dict, so that a stage's blocks keep their names.
        self.blocks = nn.ModuleDict(
            {str(n): make_block(of_kind[kind], n, self.noise) for n, kind in enumerate(self.kinds)}
        )
        self.backout = Backout() if section.backout else None
        self.middle = middle(section.n_layers) if section.backout else None
        self.norm: nn.Module | None = make_norm(section)
        self.output: OutputHead | None = None
        if not section.tie_embeddings:
            self.output = OutputHead(section.dim, section.vocab_size, bias=False)
        last = of_kind[section.repeated_kind.name], section.repeated_layer
        add_further(self, partial(make_block, *last, self.noise))

    def forward(self, tokens: Tensor, *, cache: KVCache | None = None) -> Tensor:
        return self.logits(self.hidden(tokens, cache=cache))

    def hidden(
        self,
        tokens: Tensor,
        *,
        cache: KVCache | None = None,
        documents: Tensor | None = None,
        branches: Tensor | None = None,
        noise: Tensor | None = None,
        jitter: Tensor | None = None,
    ) -> Tensor:
        """tokens: [batch, seq] -> hidden states for the output head, [batch, seq, dim].

        With a cache the tokens follow the cached tokens, and are added. documents: as of
        `positions_and_masks`; each document is then read alone. branches: as of
        `branches_and_masks`, where `reads_branches`. noise: 32 bits of each token, for
        random numbers in training. jitter: [batch, seq], amount of noise on embeddings, as of
        `Jitter`. Takes hidden states where `reads_tokens` is false. Raises ValueError past
        max_seq_len.
        """
        beside = {"documents": documents, "branches": branches, "noise": noise, "jitter": jitter}
        return self.to_head(self._read(tokens, cache=cache, **beside))

    def to_head(self, x: Tensor) -> Tensor:
        """States of this rank -> those that the output head reads."""
        if self.norm is not None and self.section.logits_dot_in_fp32:
            return x.to(torch.promote_types(x.dtype, torch.float32))
        return x

    def _read(
        self,
        tokens: Tensor,
        *,
        cache: KVCache | None = None,
        documents: Tensor | None = None,
        branches: Tensor | None = None,
        noise: Tensor | None = None,
        jitter: Tensor | None = None,
    ) -> Tensor:
        assert cache is None or documents is None, "a cache holds one document"
        self.noise.bits, self.jitter_width = noise, jitter
        start, seq = cache.length if cache is not None else 0, tokens.shape[1]
        rows: Packed | None = None
        positions: Tensor | None = None
        if cache is not None and cache.padding is not None:
            # Tokens past max_seq_len, of ended texts, take the last position.
            positions = token_positions(start, seq, cache.padding).clamp(0, self.max_seq_len - 1)
        elif start + seq > self.max_seq_len:
            limit = f"model.max_seq_len={self.max_seq_len}"
            raise ValueError(f"{limit}: {start + seq} tokens are too many")
        elif branches is not None:
            rows = self.branched(branches)
        elif documents is not None:
            rows = self.packed(documents)
        positions = positions if rows is None else rows.positions
        x = self._enter(tokens, start, positions, cache) if self.reads_tokens else tokens
        return self._received(self._through_blocks(x, tokens, (start, positions), rows, cache))

    def _through_blocks(
        self, x: Tensor, tokens: Tensor, at: Places, rows: Packed | None, cache: KVCache | None
    ) -> Tensor:
        """The input of the first block -> the output of the last one, [batch, seq, dim]."""
        seq, (start, positions) = tokens.shape[1], at
        rotations = self._rotations(start, seq, positions)
        seen: dict[Span, Seen] = {}
        if rows is not None:
            # Converted once for all layers of a span, not in each layer.
            seen |= {span: scores_or_blocks(mask, x.dtype) for span, mask in rows.seen.items()}
        x0 = {"x0": x} if self.section.x0_scalars else {}
        of_layers, of_middle = self.layer_inputs_of(x, tokens), x
        for layer, block in self.blocks.items():
            kind = self.kinds[int(layer)]
            named = x0 | ({"tokens": tokens} if kind in self.with_values else {})
            named |= of_layers.get(layer, {})
            layer_cache = cache.layers[int(layer)] if cache is not None else None
            if layer in self.engrams:
                x = remembered(self, x, layer, tokens, at, cache)
            if positions is None:
                x = block(x, rotations.get(kind), layer_cache, **named)
            elif kind not in self.spans:
                x = block(x, rotations.get(kind), layer_cache, positions, **named)
            else:
                span = self.spans[kind]
                if layer_cache is not None and span not in seen:
                    seen[span] = seen_in(layer_cache, seq, x.dtype)
                x = block(x, rotations.get(kind), layer_cache, seen[span], **named)
            of_middle = x if int(layer) == self.middle else of_middle
        return x if self.backout is None else self.backout(x, of_middle)

    def layer_inputs_of(self, x: Tensor, tokens: Tensor) -> dict[str, dict[str, Any]]:
        """Further inputs of blocks by their names. x: input of the first block."""
        return {}

    def _rotations(self, start: int, seq: int, positions: Tensor | None) -> dict[str, Rotation]:
        """Rotations by kind of layer, at positions start, start + 1, ..., or at `positions`."""
        tables: Any = self.rotary.items()
        if positions is None:
            return {kind: table(start, seq) for kind, table in tables}
        return {kind: table.at(positions) for kind, table in tables}

    def packed(self, documents: Tensor) -> Packed:
        """The positions and masks of rows shared by several documents, [batch, seq]."""
        if self.in_blocks:
            return packed_in_blocks(documents, self.spans.values())
        indices = torch.arange(documents.shape[1], device=documents.device)
        return positions_and_masks(documents, self.spans.values(), tokens=indices, queries=indices)

    def branched(self, branches: Tensor) -> Packed:
        """The positions and masks of rows of texts that share their beginnings, [batch, seq]."""
        indices = torch.arange(branches.shape[1], device=branches.device)
        return branches_and_masks(branches, self.spans.values(), tokens=indices, queries=indices)

    def _received(self, x: Tensor) -> Tensor:
        if self.norm is None:
            return x
        if self.section.mhc_expansion_rate > 1:
            x = collected(x, self.section.mhc_expansion_rate)
        return self.norm(x) if self.output is None else self.output.receive(x, self.norm)

    def _enter(
        self, tokens: Tensor, start: int, positions: Tensor | None, cache: KVCache | None
    ) -> Tensor:
        """tokens: [batch, seq] -> the input of the first block, [batch, seq, dim]."""
        x = self.embed(tokens, start, positions)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x).to(x.dtype)
        x = x if self.smear is None else self.smear(x, positions, cache)
        streams = self.section.mhc_expansion_rate
        return x if streams == 1 else spread_streams(x, streams)

    def embed(self, tokens: Tensor, start: int, positions: Tensor | None = None) -> Tensor:
        """Embed tokens: [batch, seq] at positions start, start + 1, ..., or at `positions`, [batch,
        seq] -> [batch, seq, dim].
        """
        assert self.embedding is not None
        x = self.embedding(tokens)
        if self.jitter_width is not None:
            x = self.jitter(x, self.jitter_width)
        if self.section.embedding_multiplier != 1:
            x = x * self.section.embedding_multiplier
        x = x if self.residual_dtype is None else x.to(self.residual_dtype)
        if self.positions is not None:
            if positions is None:
                positions = torch.arange(start, start + tokens.shape[1], device=tokens.device)
            added = self.positions(positions)
            # Sinusoids are an fp32 buffer; learned positions are cast as all parameters are.
            x = x + (added.to(x.dtype) if isinstance(self.positions, Sinusoids) else added)
        return x if self.dropout is None else self.dropout(x)

    def norms_of_layers(self) -> Iterator[Any]:
        """The norms before and after layers, and the norm before the head."""
        modules: Any = self.mtp.values()
        further = [part for module in modules for part in (module, module.block)]
        parts = (*self.blocks.values(), *further)
        children = (child for part in parts for child in part.children())
        yield from (child for child in (*children, self.norm) if isinstance(child, NORMS))

    def logits(self, hidden: Tensor) -> Tensor:
        return self.spread_head().logits(hidden)

    def spread_head(self) -> Head:
        """The output head; call it after `hidden`."""
        return Head(self.multiplied_weight, **self.of_logits)

    @property
    def of_logits(self) -> dict[str, Any]:
        """Options of the head: its product, and the multiplier and cap of logits."""
        section = self.section
        options = {"multiplier": section.logits_multiplier, "cap": section.final_logits_soft_cap}
        return options if self.output is None else options | {"product": self.output.product}

    @property
    def output_weight(self) -> Tensor:
        """The head's weight, [vocab, dim]; with tied embeddings the embedding table."""
        head = self.output if self.output is not None else self.embedding
        assert head is not None, "this part of the model has no output head"
        return weight_of(head)

    @property
    def multiplied_weight(self) -> Tensor:
        """The head's weight in the format of its product."""
        weight = self.output_weight
        if not self.section.logits_dot_in_fp32:
            return weight
        return weight.to(torch.promote_types(weight.dtype, torch.float32))

    def keep(self, layers: range, *, first: bool, last: bool) -> None:
        """Cut the model down to the blocks of `layers`. first: with the embedding. last: with the
        norm and the head.
        """
        for layer in [name for name in self.blocks if int(name) not in layers]:
            del self.blocks[layer]
        kinds = {self.kinds[layer] for layer in layers}
        self.rotary = nn.ModuleDict({k: table for k, table in self.rotary.items() if k in kinds})
        self.spans = {kind: span for kind, span in self.spans.items() if kind in kinds}
        self.reads_tokens = first
        if not first:
            self.positions = self.dropout = self.embedding_norm = self.smear = None
            # With tied embeddings the head of the last stage is the embedding table.
            if not (last and self.section.tie_embeddings):
                self.embedding = None
        if not last:
            self.norm = self.output = self.backout = None

    @property
    def reads_padding(self) -> bool:
        """Whether all layers can tell the text of a row from padding."""
        return all(layer.mixer.reads_documents for _, layer in self.section.in_use())

    @property
    def reads_branches(self) -> bool:
        """Whether `hidden` takes `branches`: a smear, a memory and a recurrent state read the token
        before, which is that of another text, and blocks of MoBA have the keys of one text.
        """
        layers = [layer for _, layer in self.section.in_use()]
        of_one = any(layer.mixer.recurrent or layer.moba for layer in layers)
        back = self.section.smear or bool(self.section.engram_layers)
        return self.reads_padding and not of_one and not back

    def new_cache(self, max_len: int | None = None, padding: Tensor | None = None) -> KVCache:
        """Make an empty cache. padding: [batch], number of filler tokens before each row's text."""
        max_len = self.max_seq_len if max_len is None else max_len
        if max_len > self.max_seq_len and padding is None:
            limit = f"model.max_seq_len={self.max_seq_len}"
            raise ValueError(f"{limit}: a cache of {max_len} tokens is too long")
        spans = [self.spans.get(kind, Span()) for kind in self.kinds]
        return KVCache(max_len, spans, padding)

    def reset_buffers(self) -> None:
        for module in self.modules():
            if isinstance(module, BUFFERED):
                module.reset_buffers()
