"""The `adapter` group: small matrices that are trained beside weights which stay as they are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Any, ClassVar

from omegaconf import MISSING

from forge.config.field import Section, opt, section
from forge.config.model.decoder import Decoder
from forge.config.model.tensors import BIAS, EMBEDDING, EXPERT, HEAD, MATRIX, NORM, TensorSpec
from forge.config.problems import Problem

AUTO, ALL = "auto", "all"
ROLES = (MATRIX, EXPERT, HEAD, EMBEDDING)
"""Of parameters that an adapter can stand beside."""
PARTS = ("attention", "feed_forward", "experts", "shared_experts")
A, B, MAGNITUDE = "lora_a", "lora_b", "lora_magnitude"
TAKEN_A, TAKEN_B = "lora_taken_a", "lora_taken_b"
"""What was taken out of a weight when its adapter began as that: B A, with the scale in B."""
RANDOM, PISSA = "random", "pissa"
SCALES = "ia3_scales"
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
"""Entries of PEFT's target_modules, and the last parts of their names, as they are here: by the
names of the families of Hugging Face, torchtune and Megatron.
"""
SAVED = {"lm_head": "output", "embed_tokens": "embedding", "wte": "embedding"}
"""Entries of PEFT's modules_to_save, by names of families, as they are here."""
OF_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
ADDED = re.compile(rf"(\.|_)({A}|{B}|{MAGNITUDE}|{TAKEN_A}|{TAKEN_B}|{SCALES})$")
TAKEN = re.compile(rf"(\.|_)({TAKEN_A}|{TAKEN_B})$")


def is_added(name: str) -> bool:
    """Whether a parameter of this name is an adapter's own."""
    return ADDED.search(name) is not None


def is_taken(name: str) -> bool:
    """Whether a parameter of this name keeps what was taken out of a weight, and is not trained."""
    return TAKEN.search(name) is not None


def place_of(one: TensorSpec) -> str:
    """What the adapter of a matrix is named after: its module, or of experts the matrix."""
    return one.name.removesuffix(".weight")


def name_of(one: TensorSpec, which: str) -> str:
    """The name of A, B or the magnitudes beside a matrix."""
    return f"{place_of(one)}{'_' if one.of_experts else '.'}{which}"


@section
class Adapter(Section):
    """Base of every adapter. active: whether the weights of the model are its base, which stays as
    it is, and is in no checkpoint.
    """

    active: ClassVar[bool] = False

    _target_: str = MISSING

    @property
    def draws(self) -> bool:
        """Whether it draws random numbers in training, by `forge.models.dropout`."""
        return False

    def added(self, tensors: Iterable[TensorSpec]) -> Iterator[TensorSpec]:
        """The parameters that it adds to these of a model."""
        return iter(())

    def trains(self, one: TensorSpec) -> bool:
        """Whether a parameter of the model is trained beside what is added."""
        return True


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
    _target_: str = "forge.adapters.lora.LoRA"

    rank: int = opt(16, "rows of A and columns of B", gt=0)
    alpha: float = opt(32.0, "what B A is multiplied by, over the rank", gt=0)
    dropout: float = opt(
        0.05, "share of the features that A does not see in training; of linear layers", ge=0, lt=1
    )
    rank_stabilized: bool = opt(False, "over the root of the rank (arXiv:2312.03732)")
    lora_plus_ratio: float = opt(
        1.0,
        "learning rate of B, and of what has one dimension, over that of A; 16 = LoRA+'s advice "
        "(arXiv:2402.12354)",
        gt=0,
    )
    dora: bool = opt(
        False, "train the length of each row of the sum apart from its direction (arXiv:2402.09353)"
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
        "biases that are trained too: of what has one, or all",
        choices=("none", "lora", "all"),
    )
    init_from: str | None = opt(
        None, "begin with the adapters of this folder of PEFT; new ones begin as nothing", path=True
    )
    modules_to_save: list[str] = opt(
        [], "parameters that are trained and saved whole, by regular expressions in their names"
    )

    def faults(self, prefix: str) -> Iterator[Problem]:
        key = f"{prefix}modules_to_save"
        for pattern in self.modules_to_save:
            try:
                re.compile(pattern)
            except re.error as error:
                what = f"'{pattern}' is no regular expression: {error}."
                yield Problem(key, what, f"{key}=[norm]", rule="type")

    @property
    def draws(self) -> bool:
        return self.dropout > 0

    def rank_of(self, one: TensorSpec) -> int:
        """The rank of what stands beside a parameter; 0 = nothing does."""
        if not _can_have(one) or not any(fits(word, one) for word in self.target_modules):
            return 0
        own = (n for w, n in reversed(self.ranks.items()) if fits_in_any_words(w, one))
        return next(own, self.rank)

    def scale(self, rank: int) -> float:
        """What B A is multiplied by."""
        return self.alpha / (rank**0.5 if self.rank_stabilized else rank)

    def added(self, tensors: Iterable[TensorSpec]) -> Iterator[TensorSpec]:
        for one in tensors:
            if rank := self.rank_of(one):
                yield from _beside(one, rank, dora=self.dora, takes=self.init == PISSA)

    def trains(self, one: TensorSpec) -> bool:
        if any(re.search(pattern, one.name) for pattern in self.modules_to_save):
            return True
        if one.role != BIAS or self.bias == "none":
            return False
        return self.bias == "all" or bool(self.rank_of(_matrix_of(one)))


def fits(word: str, one: TensorSpec) -> bool:
    """Whether an entry of adapter.target_modules means a parameter."""
    if word == AUTO:
        return one.role == MATRIX
    if word == ALL:
        return one.role in (MATRIX, EXPERT)
    if word in ROLES:
        return one.role == word
    if word in PARTS:
        return one.part.replace(" ", "_").replace("-", "_") == word
    place = place_of(one)
    return fnmatchcase(place, word) or place.rpartition(".")[2] == word


def fits_in_any_words(word: str, one: TensorSpec) -> bool:
    """Whether an entry of adapter.ranks means a parameter: as `fits`, or by a name that it has in
    PEFT, such as q_proj or layers.0.self_attn.q_proj.
    """
    if fits(word, one):
        return True
    name = word.rpartition(".")[2]
    layer = OF_LAYER.search(word)
    if name not in THEIRS or ("." in word and layer is None):
        return False
    here = layer is None or one.name.startswith(f"blocks.{layer[1]}.")
    return here and any(fits(ours, one) for ours in THEIRS[name])


def in_ours(words: Iterable[str]) -> list[str]:
    """Entries of adapter.target_modules with those that others call otherwise in our names."""
    known = map(str, words)  # an entry that is no name may come before its type is checked
    ours = [name for word in known for name in THEIRS.get(word.rpartition(".")[2], [word])]
    return [AUTO] if AUTO in ours else list(dict.fromkeys(ours))


def saved_in_ours(words: Iterable[str]) -> list[str]:
    """Entries of PEFT's modules_to_save as patterns of adapter.modules_to_save."""
    return [SAVED.get(word.rpartition(".")[2], word) for word in words]


def _can_have(one: TensorSpec) -> bool:
    if one.role == EXPERT:
        return not is_added(one.name)
    return one.role in ROLES and one.name.endswith(".weight")


def _matrix_of(bias: TensorSpec) -> TensorSpec:
    """The matrix that a bias belongs to, by what `fits` reads of it."""
    experts = bias.of_experts
    name = bias.name.removesuffix("_bias" if experts else ".bias") + ("" if experts else ".weight")
    role = EXPERT if experts else MATRIX
    return TensorSpec(name=name, shape=(), role=role, part=bias.part, of_experts=experts)


def _beside(one: TensorSpec, rank: int, *, dora: bool, takes: bool) -> Iterator[TensorSpec]:
    """What stands beside a parameter. tp cuts A as it does the columns, and B as the rows: so a
    rank's product is the same part, or the same summand, as that of the matrix.
    """
    *stack, rows, columns = one.shape
    of_rows = None if one.tp is None else one.tp - len(stack)
    if one.role == EMBEDDING:  # a table is looked up, so that its rows are what enters
        rows, columns = columns, rows
        of_rows = None if of_rows is None else 1 - of_rows
    common: dict[str, Any] = {"part": one.part, "of_experts": one.of_experts, "met": one.met}
    matrix = common | {"role": EXPERT if one.of_experts else MATRIX}
    cut_rows: dict[str, Any] = {"tp": len(stack), "pieces": one.pieces} if of_rows == 0 else {}
    cut_columns: dict[str, Any] = (
        {"tp": len(stack) + 1, "pieces": one.pieces} if of_rows == 1 else {}
    )
    std = (3 * max(columns, 1)) ** -0.5  # that of torch's linear layers, in which PEFT begins
    shape = (*stack, rank, columns)
    yield TensorSpec(name=name_of(one, A), shape=shape, std=std, **matrix, **cut_columns)
    if takes:
        yield TensorSpec(name=name_of(one, TAKEN_A), shape=shape, std=0.0, **matrix, **cut_columns)
    shape = (*stack, rows, rank)
    yield TensorSpec(name=name_of(one, B), shape=shape, std=0.0, **matrix, **cut_rows)
    if takes:
        yield TensorSpec(name=name_of(one, TAKEN_B), shape=shape, std=0.0, **matrix, **cut_rows)
    if dora:
        shape, own = (*stack, rows), common | cut_rows
        yield TensorSpec(name=name_of(one, MAGNITUDE), shape=shape, role=NORM, std=0.0, **own)


def adapted(model: Decoder, adapter: Adapter) -> list[TensorSpec]:
    """All parameters: of the model, and those that an adapter adds."""
    own = list(model.tensors())
    return [*own, *adapter.added(own)]
