"""The `objective` group: losses to minimise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from omegaconf import MISSING

from forge.config.field import Condition, Section, opt, section

if TYPE_CHECKING:
    from forge.config.model.layer import Model
    from forge.config.model.tensors import TensorSpec
    from forge.config.parallel import Parallel

FP32 = 4  # bytes
MAX_CHUNK_TOKENS, CHUNK_BYTES = 4096, 64 << 20
CHUNKED = Condition(
    lambda config, ranks: config.objective.loss_fn == "chunked_cross_entropy",
    "with objective.loss_fn=cross_entropy",
)

FURTHER = Condition(
    lambda config, ranks: getattr(config.model, "mtp_num_layers", 0) > 0,
    "with model.mtp_num_layers=0",
)


@dataclass(frozen=True, kw_only=True)
class HeadShape:
    """Sizes of the output head of one rank and micro-batch.

    tokens, vocab: on this rank. width: bytes of a number in matrix products. capped: whether logits
    have a soft cap. compiled: whether a chunk of the loss is compiled. trained: whether the head
    has a gradient. further: modules that read the head too, for tokens further ahead.
    """

    tokens: int
    vocab: int
    dim: int
    width: int
    capped: bool = False
    compiled: bool = False
    trained: bool = True
    further: int = 0

    def chunked_bytes(self, chunk_size: int = 0) -> int:
        """Bytes of a loss in chunks: the logits of one chunk and their gradient, and the gradients
        of hidden states and, in fp32, of the head.
        """
        rows = min(chunk_size or auto_chunk_size(vocab=self.vocab, dim=self.dim), self.tokens)
        of_logit = FP32 + (2 if self.width == 2 else 0) + (FP32 if self.capped else 0)
        if self.compiled:  # the softmax is in no memory
            of_logit = 2 * self.width
        of_head = FP32 * self.dim * self.vocab if self.trained else 0
        return self.vocab * rows * of_logit + self.width * self.dim * self.tokens + of_head


@section
class Objective(Section):
    """Base of every objective section.

    metrics: what an evaluation reports; higher_is_better: those of which more is better.
    reads_documents: whether it keeps documents apart that share a row, wherever it reads a batch.
    compares: which examples it reads, as `Data.examples`; "" = running text. rows: of a sample,
    from which the model learns; rows_ahead: others of it, which are read before without gradients.
    """

    metrics: ClassVar[tuple[str, ...]] = ()
    higher_is_better: ClassVar[frozenset[str]] = frozenset()
    reads_documents: ClassVar[bool] = False
    compares: ClassVar[tuple[str, ...]] = ("",)
    rows: ClassVar[int] = 1
    rows_ahead: ClassVar[int] = 0

    _target_: str = MISSING

    @property
    def draws(self) -> bool:
        """Whether batches of the objective ask the model to draw random numbers."""
        return False

    def frozen_models(self) -> dict[str, str | None]:
        """Models read by the loss besides the trained one, by name: a checkpoint, a run or a
        .safetensors file; None for the initial weights, those of checkpoint.init_from if given.
        """
        return {}

    def layout_of_frozen(self, parallel: Parallel) -> Parallel:
        """The layout of the frozen models; that of the trained model unless said otherwise."""
        return parallel

    def added(self, model: Model) -> Iterator[TensorSpec]:
        """Yield the parameters that the objective adds to a model, which no export has."""
        return iter(())

    @property
    def chunked(self) -> bool:
        """Whether the loss never holds all logits at once."""
        return False

    def chunk(self) -> None:
        """Choose the loss in chunks, where the objective has one."""

    @property
    def extra_sums(self) -> int:
        """Numbers summed over all ranks beside the loss and the count of tokens."""
        return 0

    def logits_bytes(self, head: HeadShape) -> int:
        """Bytes of the loss of one micro-batch at its peak: the log-softmax and two gradients, and
        the tanh of logits with a soft cap.
        """
        return (3 * FP32 + (head.width if head.capped else 0)) * head.vocab * head.tokens


@section
class NextToken(Objective):
    """Base of objectives on running text, for a class below forge.objectives.next_token."""

    metrics = ("loss", "perplexity", "token_accuracy", "bits_per_byte")
    higher_is_better = frozenset({"token_accuracy"})


@section
class CrossEntropy(NextToken):
    """Options of cross-entropy over every target that is not masked."""

    reads_documents = True
    smoothing = 0.0  # share of each target, spread over the vocabulary
    loss_fn: str = opt(
        "cross_entropy",
        "chunked_cross_entropy never holds all logits at once",
        choices=("cross_entropy", "chunked_cross_entropy"),
    )
    z_loss_weight: float = opt(0.0, "weight of the z-loss (PaLM uses 1e-4); 0 = off", ge=0)
    ce_chunk_size: int = opt(
        0, "tokens a chunk; 0 = at most 4096, by the vocabulary", ge=0, acts_when=CHUNKED
    )
    mtp_loss_scaling_factor: float = opt(
        0.1,
        "weight of the mean loss of the modules of model.mtp_num_layers; DeepSeek 3 began with "
        "0.3; 0 = they are not trained",
        ge=0,
        acts_when=FURTHER,
    )

    @property
    def chunked(self) -> bool:
        return self.loss_fn == "chunked_cross_entropy"

    def chunk(self) -> None:
        self.loss_fn = "chunked_cross_entropy"

    @property
    def extra_sums(self) -> int:
        return (self.z_loss_weight > 0) + (self.smoothing > 0)

    def logits_bytes(self, head: HeadShape) -> int:
        """Bytes of the loss: as in the base, with two more copies for the z-loss, three for
        smoothed labels; or in chunks.
        """
        if self.chunked:
            of_module = head.width * head.dim * head.tokens
            of_module += FP32 * head.dim * head.vocab if head.trained else 0
            return head.chunked_bytes(self.ce_chunk_size) + head.further * of_module
        # Modules for further tokens keep their log-softmax until their backward pass.
        copies = (6 if self.smoothing else 5 if self.z_loss_weight else 3) + head.further
        return (copies * FP32 + (head.width if head.capped else 0)) * head.vocab * head.tokens


@section
class Pretrain(CrossEntropy):
    """Next-token prediction over every target that is not masked."""

    schema_name = "pretrain"
    _target_: str = "forge.objectives.pretrain.Pretrain"


@section
class SFT(CrossEntropy):
    """Supervised fine-tuning on examples, of which the data marks what is learnt."""

    schema_name = "sft"
    _target_: str = "forge.objectives.sft.SFT"
    weighting: str = opt(
        "token",
        "equal weight of each learned token; or of each example, shared by its tokens",
        choices=("token", "example"),
    )
    neftune_alpha: float = opt(
        0.0, "noise on embeddings in training, within alpha / sqrt(tokens * dim); 0 = off", ge=0
    )
    label_smoothing: float = opt(
        0.0, "share of each target spread over the whole vocabulary; 0 = off", ge=0, lt=1
    )

    @property
    def smoothing(self) -> float:
        return self.label_smoothing

    @property
    def draws(self) -> bool:
        return self.neftune_alpha > 0


def is_higher_better(metric: str) -> bool:
    """Whether more of a metric is better, by the objectives known to this process.

    metric: token_accuracy, or with the name of a set, eval/mine/token_accuracy.
    """
    name, schemas = metric.rpartition("/")[2], [Objective]
    for schema in schemas:
        schemas += schema.__subclasses__()
    return any(name in schema.higher_is_better for schema in schemas)


def auto_chunk_size(*, vocab: int, dim: int) -> int:
    """Tokens a chunk: 4096, or fewer if their fp32 logits are above 64 MiB and [vocab, dim] in
    fp32: a wide model needs large chunks, since each reads and writes the weight's gradient.
    """
    return max(1, min(MAX_CHUNK_TOKENS, max(dim, CHUNK_BYTES // (FP32 * vocab))))
