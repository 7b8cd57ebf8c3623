"""The `adapter` group: small matrices trained beside frozen weights."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Any, ClassVar

from omegaconf import MISSING

from forge.config.field import Section, opt, section
from forge.config.model.activations import Numbers
from forge.config.model.layer import Model
from forge.config.model.tensors import BIAS, EMBEDDING, EXPERT, HEAD, MATRIX, NORM, TensorSpec
from forge.config.problems import Problem

AUTO, ALL = "auto", "all"
ROLES = (MATRIX, EXPERT, HEAD, EMBEDDING)
"""Roles of the parameters an adapter can stand beside."""
PARTS = ("attention", "feed_forward", "experts", "shared_experts")
A, B, MAGNITUDE = "lora_a", "lora_b", "lora_magnitude"
TAKEN_A, TAKEN_B = "lora_taken_a", "lora_taken_b"
"""B A as taken out of a weight at the start of its adapter, with the scale in B."""
RANDOM, PISSA = "random", "pissa"
SCALES = "ia3_scales"
VALUE_HEAD = "value_head.weight"
_OF_ATTENTION = "wq,wk,wv"
_WORDS = {
    _OF_ATTENTION: "c_attn qkv_proj query_key_value Wqkv qkv",
    "wq": "q_proj query",
    "wk": "k_proj key",
    "wv": "v_proj value",
    "wo": "o_proj out_proj output_proj dense attn_output",
    "wq_a": "q_a_proj",
    "wq_b": "q_b_proj",
    "wkv_a": "kv_a_proj_with_mqa",
    "wkv_b": "kv_b_proj",
    "w_gate": "gate_proj w1",
    "w_up": "up_proj w3 c_fc fc1 dense_h_to_4h",
    "w_down": "down_proj w2 fc2 dense_4h_to_h",
    "w_gate,w_up": "gate_up_proj",
    "wo,w_down": "c_proj",
    HEAD: "lm_head embed_out",
    EMBEDDING: "embed_tokens wte tok_embeddings",
    "attention": "self_attn attn",
    "feed_forward": "mlp",
    AUTO: "all-linear all_linear",
}
THEIRS = {word: ours.split(",") for ours, words in _WORDS.items() for word in words.split()}
"""Our names by entries of PEFT's target_modules or their last parts: names of the families of
Hugging Face, torchtune and Megatron.
"""
SAVED = {"lm_head": "output", "embed_tokens": "embedding", "wte": "embedding"}
"""Our names by entries of PEFT's modules_to_save, as families name them."""
OF_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
ADDED = re.compile(
    rf"(\.|_)({A}|{B}|{MAGNITUDE}|{TAKEN_A}|{TAKEN_B}|{SCALES})$|^{re.escape(VALUE_HEAD)}$"
)
TAKEN = re.compile(rf"(\.|_)({TAKEN_A}|{TAKEN_B})$")


def is_added(name: str) -> bool:
    """Whether a name is of a parameter beside the model: an adapter's, or the value head."""
    return ADDED.search(name) is not None


def is_taken(name: str) -> bool:
    """Whether a name is of an untrained parameter, the part taken out of a weight."""
    return TAKEN.search(name) is not None


def adapter_prefix(tensor: TensorSpec) -> str:
    """The start of an adapter's name: the module of a matrix, or of experts the matrix."""
    return tensor.name.removesuffix(".weight")


def adapter_name(tensor: TensorSpec, which: str) -> str:
    """The name of A, B or the magnitudes beside a matrix."""
    return f"{adapter_prefix(tensor)}{'_' if tensor.of_experts else '.'}{which}"


@section
class Adapter(Section):
    """Base of every adapter. active: whether the weights of the model are its base, which stays as
    it is, and is in no checkpoint. from_peft: whether it can begin as a folder of PEFT.
    """

    active: ClassVar[bool] = False
    from_peft: ClassVar[bool] = False

    _target_: str = MISSING

    @property
    def draws(self) -> bool:
        """Whether training draws random numbers by `forge.models.dropout`."""
        return False

    def added(self, tensors: Iterable[TensorSpec]) -> Iterator[TensorSpec]:
        """Yield the parameters the adapter adds to a model with the given tensors."""
        return iter(())

    def trains(self, tensor: TensorSpec) -> bool:
        """Whether a parameter of the model is trained beside the adapter's."""
        return True

    @property
    def trains_base(self) -> bool:
        """Whether options of the adapter name parameters of the model to be trained too."""
        return False

    @property
    def peft_folder(self) -> str | None:
        """Folder of PEFT with the first values of the adapter; None = new values."""
        return None

    @property
    def lr_ratio(self) -> float:
        """Learning rate of B, and of tensors of one dimension, over the rate of A."""
        return 1.0

    def rank_of(self, tensor: TensorSpec) -> int:
        """Rank of the matrices beside a parameter; 0 = none."""
        return 0

    def reads_input(self, tensor: TensorSpec) -> bool:
        """Whether the adapter's backward pass reads the input of a matrix."""
        return self.rank_of(tensor) > 0

    def kept_bytes(self, tensor: TensorSpec, numbers: Numbers, rows: float) -> float:
        """Bytes of a token kept for the adapter of a matrix. rows: at experts, of a token."""
        return 0.0

    @property
    def packed_format(self) -> str:
        """Format of the base's weights, by its name in `forge.config.adapters.packed`; "" = as
        they are.
        """
        return ""

    def packs(self, tensor: TensorSpec) -> bool:
        """Whether a weight has the packed format."""
        return False

    def resident_bytes(self, tensor: TensorSpec, shape: tuple[int, ...], *, width: int) -> int:
        """Bytes of a rank's part of a parameter. width: bytes of an unpacked number."""
        return width * math.prod(shape)

    def unpacked_bytes(
        self, tensor: TensorSpec, shape: tuple[int, ...], *, width: int, cuda: bool
    ) -> int:
        """Most bytes of a packed weight unpacked for a product; 0 = the weight is not packed."""
        return 0


@section
class NoAdapter(Adapter):
    """The weights of the model itself are trained."""

    schema_name = "none"
    _target_: str = "forge.adapters.adapter.Adapter"


@section
class LoRA(Adapter):
    """W + alpha / rank * B A, of which A [rank, in] and B [out, rank] are trained
    (arXiv:2106.09685).
    """

    schema_name = "lora"
    active: ClassVar[bool] = True
    from_peft: ClassVar[bool] = True
    _target_: str = "forge.adapters.lora.LoRA"

    rank: int = opt(16, "rank of the adapter: rows of A, columns of B", gt=0)
    alpha: float = opt(32.0, "scale of the adapter's output: alpha / rank", gt=0)
    dropout: float = opt(
        0.05, "dropout on the adapter's input in training; linear layers only", ge=0, lt=1
    )
    rank_stabilized: bool = opt(False, "scale by alpha / sqrt(rank) (rsLoRA, arXiv:2312.03732)")
    lora_plus_ratio: float = opt(
        1.0,
        "learning rate of B and of vectors, divided by that of A; 16 = LoRA+'s advice "
        "(arXiv:2402.12354)",
        gt=0,
    )
    dora: bool = opt(
        False, "train the length and the direction of each row apart (DoRA, arXiv:2402.09353)"
    )
    init: str = opt(
        RANDOM,
        "how A and B begin: A random and B zero; or as the largest singular values and vectors of "
        "the weight, which keeps the rest (PiSSA, arXiv:2404.02948)",
        choices=(RANDOM, PISSA),
    )
    target_modules: list[str] = opt(
        [AUTO],
        "matrices that have one: auto (of attention and feed-forward), all (of experts too), a "
        "role, a part, a name such as wq, or a pattern such as blocks.0.*",
    )
    ranks: dict[str, int] = opt(
        {},
        "other ranks, by what target_modules may say or the names of PEFT; the last that fits, "
        "0 = none",
    )
    bias: str = opt(
        "none",
        "biases to train too: those of adapted layers, or all",
        choices=("none", "lora", "all"),
    )
    init_from: str | None = opt(
        None,
        "begin with the adapters of this PEFT folder; adapters it lacks begin at zero",
        path=True,
    )
    modules_to_save: list[str] = opt(
        [], "parameters to train and save whole, by regular expressions on their names"
    )

    def faults(self, prefix: str) -> Iterator[Problem]:
        key = f"{prefix}modules_to_save"
        for pattern in self.modules_to_save:
            try:
                re.compile(pattern)
            except re.error as error:
                message = f"'{pattern}' is no regular expression: {error}."
                yield Problem(key, message, f"{key}=[norm]", rule="type")

    @property
    def draws(self) -> bool:
        return self.dropout > 0

    @property
    def trains_base(self) -> bool:
        return bool(self.modules_to_save) or self.bias != "none"

    @property
    def peft_folder(self) -> str | None:
        return self.init_from

    @property
    def lr_ratio(self) -> float:
        return self.lora_plus_ratio

    def rank_of(self, tensor: TensorSpec) -> int:
        if not _can_have(tensor) or not any(
            is_target(word, tensor) for word in self.target_modules
        ):
            return 0
        stated_ranks = (n for w, n in reversed(self.ranks.items()) if fits_in_any_words(w, tensor))
        return next(stated_ranks, self.rank)

    def kept_bytes(self, tensor: TensorSpec, numbers: Numbers, rows: float) -> float:
        """Bytes of the outputs of A, and of the inputs of DoRA's magnitudes."""
        rank = self.rank_of(tensor)
        rows = rows if tensor.of_experts else 1.0
        saved = numbers.width * rank * rows
        if rank and self.dora:
            cut = tensor.cut(numbers.tp) == len(tensor.shape) - 2
            saved += numbers.width * tensor.shape[-2] * rows / (numbers.tp if cut else 1)
        return saved

    def scale(self, rank: int) -> float:
        """The factor of B A."""
        return self.alpha / (rank**0.5 if self.rank_stabilized else rank)

    def added(self, tensors: Iterable[TensorSpec]) -> Iterator[TensorSpec]:
        for tensor in tensors:
            if rank := self.rank_of(tensor):
                yield from _beside(tensor, rank, dora=self.dora, takes=self.init == PISSA)

    def trains(self, tensor: TensorSpec) -> bool:
        if any(re.search(pattern, tensor.name) for pattern in self.modules_to_save):
            return True
        if tensor.role != BIAS or self.bias == "none":
            return False
        return self.bias == "all" or bool(self.rank_of(_matrix_of(tensor)))


def is_target(word: str, tensor: TensorSpec) -> bool:
    """Whether an entry of adapter.target_modules means a parameter."""
    if word == AUTO:
        return tensor.role == MATRIX
    if word == ALL:
        return tensor.role in (MATRIX, EXPERT)
    if word in ROLES:
        return tensor.role == word
    if word in PARTS:
        return tensor.part.replace(" ", "_").replace("-", "_") == word
    name = adapter_prefix(tensor)
    return fnmatchcase(name, word) or name.rpartition(".")[2] == word


def fits_in_any_words(word: str, tensor: TensorSpec) -> bool:
    """Whether an entry of adapter.ranks means a parameter: as `is_target`, or by its name in PEFT,
    such as q_proj or layers.0.self_attn.q_proj.
    """
    if is_target(word, tensor):
        return True
    name = word.rpartition(".")[2]
    layer = OF_LAYER.search(word)
    if name not in THEIRS or ("." in word and layer is None):
        return False
    in_layer = layer is None or tensor.name.startswith(f"blocks.{layer[1]}.")
    return in_layer and any(is_target(ours, tensor) for ours in THEIRS[name])


def in_ours(words: Iterable[str]) -> list[str]:
    """Entries of adapter.target_modules in our names, also entries in the words of others."""
    entries = map(str, words)  # entries may be no text yet: types are checked later
    ours = [name for word in entries for name in THEIRS.get(word.rpartition(".")[2], [word])]
    return [AUTO] if AUTO in ours else list(dict.fromkeys(ours))


def saved_in_ours(words: Iterable[str]) -> list[str]:
    """Entries of PEFT's modules_to_save as patterns of adapter.modules_to_save."""
    return [SAVED.get(word.rpartition(".")[2], word) for word in words]


def _can_have(tensor: TensorSpec) -> bool:
    if tensor.role == EXPERT:
        return not is_added(tensor.name)
    return tensor.role in ROLES and tensor.name.endswith(".weight")


def _matrix_of(bias: TensorSpec) -> TensorSpec:
    """The matrix of a bias, with the fields that `is_target` reads."""
    experts = bias.of_experts
    name = bias.name.removesuffix("_bias" if experts else ".bias") + ("" if experts else ".weight")
    role = EXPERT if experts else MATRIX
    return TensorSpec(name=name, shape=(), role=role, part=bias.part, of_experts=experts)


def _beside(tensor: TensorSpec, rank: int, *, dora: bool, takes: bool) -> Iterator[TensorSpec]:
    """Yield the tensors beside a parameter. tp cuts A as the columns and B as the rows, and a
    rank's product is the same part, or the same summand, as the matrix's.
    """
    *stack, rows, columns = tensor.shape
    of_rows = None if tensor.tp is None else tensor.tp - len(stack)
    if tensor.role == EMBEDDING:  # a table is looked up: its rows are the inputs
        rows, columns = columns, rows
        of_rows = None if of_rows is None else 1 - of_rows
    common: dict[str, Any] = {
        "part": tensor.part,
        "of_experts": tensor.of_experts,
        "met": tensor.met,
    }
    matrix = common | {"role": EXPERT if tensor.of_experts else MATRIX}
    cut_rows: dict[str, Any] = {"tp": len(stack), "pieces": tensor.pieces} if of_rows == 0 else {}
    cut_columns: dict[str, Any] = (
        {"tp": len(stack) + 1, "pieces": tensor.pieces} if of_rows == 1 else {}
    )
    std = (3 * max(columns, 1)) ** -0.5  # the deviation of torch's linear layers, as in PEFT
    shape = (*stack, rank, columns)
    yield TensorSpec(name=adapter_name(tensor, A), shape=shape, std=std, **matrix, **cut_columns)
    if takes:
        yield TensorSpec(
            name=adapter_name(tensor, TAKEN_A), shape=shape, std=0.0, **matrix, **cut_columns
        )
    shape = (*stack, rows, rank)
    yield TensorSpec(name=adapter_name(tensor, B), shape=shape, std=0.0, **matrix, **cut_rows)
    if takes:
        yield TensorSpec(
            name=adapter_name(tensor, TAKEN_B), shape=shape, std=0.0, **matrix, **cut_rows
        )
    if dora:
        shape, options = (*stack, rows), common | cut_rows
        yield TensorSpec(
            name=adapter_name(tensor, MAGNITUDE), shape=shape, role=NORM, std=0.0, **options
        )


def adapted(model: Model, adapter: Adapter) -> list[TensorSpec]:
    """All parameters: the model's and the adapter's."""
    tensors = list(model.tensors())
    return [*tensors, *adapter.added(tensors)]
