"""Pipeline parallelism: the model is cut into stages that micro-batches go through in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from forge.config.model.tensors import Drawn
from forge.config.root import Config
from forge.models.balance import Balanced
from forge.models.cache import KVCache
from forge.models.contract import beside_tokens
from forge.models.head import Head, head_of
from forge.objectives.losses import Losses
from forge.parallel.mesh import Mesh
from forge.parallel.modules import FORMATS, HALF
from forge.parallel.pipeline_relay import Line, SharedHead, pass_through
from forge.planning.stages import cut_by_cost, stages_of
from forge.tensors.local import local

if TYPE_CHECKING:
    from forge.parallel.pipeline_schedule import Read

TABLE = "embedding.weight"


def cut_stages(
    make: Callable[[], nn.Module], cfg: Config, mesh: Mesh
) -> list[tuple[int, nn.Module]]:
    """This rank's stages by number: each a model from `make` with only the stage's blocks.

    Raises ValueError for any model but a decoder.
    """
    section, parallel = cfg.decoder, cfg.parallel
    assert parallel.pp_stages_per_rank is not None
    num_stages = parallel.pp * parallel.pp_stages_per_rank
    if section is None:
        message = f"parallel.pp={parallel.pp}: {cfg.model._target_} cannot be cut into stages"
        raise ValueError(f"{message}, only decoders can; set parallel.pp=1")
    layers = list(parallel.pp_layers) or cut_by_cost(section, num_stages, cfg.train.seq_len)
    assert (len(layers), sum(layers)) == (num_stages, section.n_layers), layers
    starts = [0, *accumulate(layers)]
    parts, rank = [], mesh.axes.get_local_rank("pp")
    for stage in stages_of(rank, parallel.pp, parallel.pp_stages_per_rank, parallel.pp_schedule):
        part, blocks = make(), range(starts[stage], starts[stage + 1])
        part.keep(blocks, first=stage == 0, last=stage == num_stages - 1)  # type: ignore[operator]
        parts.append((stage, part))
    return parts


class Pipeline(Balanced, nn.Module):
    """This rank's stages of a model, under the names of the whole model.

    Trained by `step`; read by `hidden` and `spread_head`, called alike by all ranks of the
    pipeline. The first and the last stage each have a copy of tied embeddings, with equal
    gradients.
    """

    def __init__(
        self, parts: list[tuple[int, nn.Module]], cfg: Config, mesh: Mesh, device: torch.device
    ) -> None:
        super().__init__()
        # Imported here, because torch's pipelines take 2 s to import.
        from forge.parallel.pipeline_schedule import make_stage

        parallel, section = cfg.parallel, cfg.decoder
        assert section is not None
        assert parallel.pp_stages_per_rank is not None
        assert parallel.pp_microbatches is not None
        self.parts = nn.ModuleList([part for _, part in parts])
        self.stages = [stage for stage, _ in parts]
        half, plain = HALF.get(cfg.precision.mixed_precision), next(self.parts.parameters()).dtype
        if plain in HALF.values():
            plain = torch.float32  # the format of products with weights in 16 bits
        self.line = Line(
            group=mesh.axes.get_group("pp"),
            rank=mesh.axes.get_local_rank("pp"),
            size=parallel.pp,
            num_stages=parallel.pp * parallel.pp_stages_per_rank,
            schedule=parallel.pp_schedule,
            device=device,
            between=FORMATS[cfg.precision.residual_dtype] if half else plain,
            after=half or plain,
        )
        self.section, self.max_seq_len = section, section.max_seq_len
        self.n_microbatches = parallel.pp_microbatches
        self.sequence_parts = parallel.tp if parallel.sequence_parallel else 1
        self._schedule: Any = None
        self._shape: tuple[int, ...] = ()
        self._ending: Any = None
        self._reported: tuple[torch.dtype, dict[str, torch.dtype]] | None = None
        for stage, part in parts:
            make_stage(part, self.line.gives(stage))
        # NCCL: before point-to-point messages a group must have been used by all its ranks.
        dist.all_reduce(torch.zeros((), device=device), group=self.line.group)

    @property
    def first(self) -> bool:
        return self.line.has(0)

    @property
    def last(self) -> bool:
        return self.line.has(self.line.last)

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        for part in self.parts:
            yield from part.named_parameters(prefix, recurse, remove_duplicate)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        states = [part.state_dict(*args, **kwargs) for part in self.parts]
        return {name: value for state in states for name, value in state.items()}

    def counted(self, name: str) -> bool:
        """Whether a parameter counts in sums over the model: not a tied table's second copy."""
        return not (self.section.tie_embeddings and name == TABLE and self.last and not self.first)

    def init_std(self, name: str) -> float:
        return self.parts[0].init_std(name)  # type: ignore[operator]

    def init_range(self, name: str) -> Drawn | None:
        return self.parts[0].init_range(name)  # type: ignore[operator]

    def init_value(self, name: str) -> float | Drawn:
        return self.parts[0].init_value(name)  # type: ignore[operator]

    def reset_buffers(self) -> None:
        for part in self.parts:
            part.reset_buffers()  # type: ignore[operator]

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: [batch, seq] -> logits [batch, seq, vocab] on every rank; without gradients."""
        return self.spread_head().logits(self.hidden(tokens))

    def hidden(
        self,
        tokens: Tensor,
        *,
        cache: dict[int, KVCache] | None = None,
        documents: Tensor | None = None,
        branches: Tensor | None = None,
        **drawn: Tensor,
    ) -> Tensor:
        """tokens: [batch, seq] -> hidden states for the output head, [batch, seq, dim].

        Without gradients; zeros on ranks without the last stage. All ranks of the pipeline call
        `hidden`, with the same tokens. drawn: tensors read only in training.
        """
        shape = self._between(*tokens.shape, whole=cache is not None)
        given = {"documents": documents, "branches": branches}
        beside = {name: rows for name, rows in given.items() if rows is not None}
        states = pass_through(self.line, self._by_stage(), tokens, shape, cache, beside)
        if states is None:
            states = torch.zeros((), dtype=self.line.after, device=self.line.device)
        return states.expand(*tokens.shape, self.section.dim)

    def read(self, batch: dict[str, Tensor]) -> Read | None:
        """The model as an objective sees it, after reading a batch's `tokens` without gradients.

        None on ranks without the last stage. All ranks of the pipeline call `read`.
        """
        from forge.parallel.pipeline_schedule import Read

        beside: dict[str, Any] = beside_tokens(batch)
        states = self.hidden(batch["tokens"], **beside)
        return Read(self._by_stage()[self.line.last], states) if self.last else None

    @property
    def reads_padding(self) -> bool:
        return self.parts[0].reads_padding  # type: ignore[return-value]

    @property
    def reads_branches(self) -> bool:
        return self.parts[0].reads_branches  # type: ignore[return-value]

    def new_cache(
        self, max_len: int | None = None, padding: Tensor | None = None
    ) -> dict[int, KVCache]:
        parts: Any = self._by_stage().items()
        return {stage: part.new_cache(max_len, padding) for stage, part in parts}

    def own_head(self) -> Head | None:
        """The head on the rank of the last stage, for sums added up over the pipeline."""
        return head_of(self._by_stage()[self.line.last]) if self.last else None

    def spread_head(self) -> Head:
        """The head, with logits on every rank of the pipeline."""
        return SharedHead(self.line, self.own_head(), self.section.vocab_size)

    def step(
        self,
        batches: Sequence[dict[str, Tensor]],
        objective: Callable[[Any, Any], Losses],
        weight: float,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Forward and backward of one step; gradients are then in `.grad`, summed over data ranks.

        batches: micro-batches, tensors [batch, ...] by name, with `tokens` [batch, seq] and further
        fields. Sequences go through the stages in `parallel.pp_microbatches` equal parts. weight: 1
        / target tokens of the step. Returns the sum of the weighted losses and the objective's sums
        on the rank of the last stage; zeros elsewhere.
        """
        from forge.parallel.pipeline_schedule import Ending

        fields = {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}
        tokens, count = fields["tokens"], self.n_microbatches
        assert len(tokens) % count == 0, (len(tokens), count)
        parts = self._by_stage()
        # torch's stages are made for fixed shapes.
        if self._shape != tokens.shape:
            self._schedule, self._shape = self._make_schedule(*tokens.shape), tokens.shape
        inputs: tuple[Tensor, ...] = (tokens,) if self.first else ()
        kwargs: dict[str, Any] = {"return_outputs": False}
        kwargs |= beside_tokens(fields)  # which every stage reads
        if self.last:
            chunks = zip(*(field.chunk(count) for field in fields.values()), strict=True)
            micro = [dict(zip(fields, tensors, strict=True)) for tensors in chunks]
            self._ending = Ending(parts[self.line.last], micro, objective, weight)
            kwargs["target"] = torch.arange(count)  # the loss finds a micro-batch by its number
        self._schedule.step(*inputs, **kwargs)
        self._add_tied_gradients()
        return self._reports()

    def _by_stage(self) -> dict[int, nn.Module]:
        return dict(zip(self.stages, self.parts, strict=True))

    def _between(self, rows: int, seq: int, *, whole: bool = False) -> tuple[int, int, int]:
        """Shape of hidden states between stages, cut by sequence parallelism unless `whole`."""
        width = self.section.stream_dim(self.section.dim)
        return rows, seq if whole else seq // self.sequence_parts, width

    def _make_schedule(self, rows: int, seq: int) -> Any:
        from forge.parallel.pipeline_schedule import make_schedule

        rows //= self.n_microbatches
        return make_schedule(
            self.line,
            self._by_stage(),
            tokens=(rows, seq),
            between=self._between(rows, seq),
            after=(rows, seq, self.section.dim),
            n_microbatches=self.n_microbatches,
            loss=lambda hidden, number: self._ending(hidden, number),
        )

    def _add_tied_gradients(self) -> None:
        """Give each copy of a tied table the sum of both gradients."""
        if not self.section.tie_embeddings or self.first == self.last:
            return
        part = self.parts[0] if self.first else self.parts[-1]
        table: Any = part.embedding.weight  # type: ignore[union-attr]
        if not table.requires_grad:
            return
        gradient = table.grad
        assert isinstance(gradient, Tensor), "a copy of the tied table has no gradient"
        grad = local(gradient)
        other, peer = torch.empty_like(grad), self.line.owner(self.line.last if self.first else 0)
        sending = dist.P2POp(dist.isend, grad.contiguous(), group=self.line.group, group_peer=peer)
        receiving = dist.P2POp(dist.irecv, other, group=self.line.group, group_peer=peer)
        # As a batch: with NCCL two ranks that both send first would wait for each other.
        for work in dist.batch_isend_irecv([sending, receiving]):
            work.wait()
        grad.add_(other)

    def _reports(self) -> tuple[Tensor, dict[str, Tensor]]:
        """The step's loss and sums; in the first step all ranks receive the names of the sums."""
        ending, self._ending = self._ending, None
        if self._reported is None:
            box: list[Any] = [None]
            if ending is not None:
                dtypes = {name: value.dtype for name, value in ending.sums.items()}
                box = [(ending.total.dtype, dtypes)]
            last, group = self.line.owner(self.line.last), self.line.group
            dist.broadcast_object_list(box, group=group, group_src=last, device=self.line.device)
            self._reported = box[0]
        if ending is not None:
            return ending.total, ending.sums
        assert self._reported is not None
        zeros = partial(torch.zeros, (), device=self.line.device)
        dtype, dtypes = self._reported
        return zeros(dtype=dtype), {
            name: zeros(dtype=sum_dtype) for name, sum_dtype in dtypes.items()
        }
