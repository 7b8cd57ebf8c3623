"""Base of model families: config.json to the model section and back, and the tensor names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any, ClassVar, NamedTuple

from forge.config.field import Section, thaw_value, variant_of
from forge.config.model.decoder import Decoder
from forge.config.model.mixers.base import Mixer
from forge.config.model.moe import MoE
from forge.config.model.rotary import OF_LENGTH, RotaryOptions
from forge.config.model.skips.engram import OF_ENGRAM
from forge.config.model.tensors import TensorSpec
from forge.config.problems import shown
from forge.families.keys import Keys
from forge.families.table import Row, Table, row

SELECTION_BIAS = "feed_forward.router.selection_bias"
LATENT_EPS = "mixer.latent_norm_eps"
FURTHER = "mtp."
NO_EXPERTS = "model.moe.num_experts=0"
OF_TRAINING = (
    *("init_std", "init_scale_residual", "sdpa_backend", "document_attention", "pad_vocab_to"),
    *("new_rows", "fused_qkv", "fused_gate_up", "logits_dot_in_fp32", "initial_law"),
    *("layers", "kinds", "path", "pretrained", "_target_", "mla_naive_kvcache"),
    *("gdn_chunk_size", "gdn_kernel", "ssm_chunk_size", "recipe", "init_std_tables"),
    *("indexer_sparse_training", "indexer_loss_scaling_factor"),
)
OF_MOE_TRAINING = (
    "force_balance",
    *("aux_loss_weight", "sequence_aux_loss_weight", "z_loss_weight", "balance_scope"),
    *("bias_update_rate", "bias_schedule", "capacity_factor", "gradient_scale", "kernel"),
    *("float32_gate_logits", "frequency", "first_num_dense_layers", "ffn_hidden_dim"),
)
"""Options absent from every config.json: options of training, or stored in another form."""


class Family:
    """A model family of Hugging Face, by its model_type.

    model_types: further model types read as this family. either: options with free values, each of
    them with tensor names. partial_rotary: whether the transformers class obeys
    partial_rotary_factor; other classes silently rotate whole heads. absent: defaults of the class
    for keys missing in config.json, where null differs from a missing key. turns_by_kind: whether
    each kind of layers has a rotation. further: names inside of a module for a further token, for
    families that store it as a layer behind the last.
    """

    model_type: ClassVar[str]
    architecture: ClassVar[str]
    model_types: ClassVar[tuple[str, ...]] = ()
    either: ClassVar[tuple[str, ...]] = ()
    partial_rotary: ClassVar[bool] = False
    absent: ClassVar[dict[str, Any]] = {}
    turns_by_kind: ClassVar[bool] = False
    prefix: ClassVar[str] = "model."
    layers: ClassVar[str] = "layers."
    head: ClassVar[str] = "lm_head.weight"
    further: ClassVar[Table] = {}
    outside: ClassVar[Table]
    block: ClassVar[Table]

    def options(self, keys: Keys) -> dict[str, Any]:
        """Return the options of the model section.

        Inner sections are dicts, `mixer` with a `schema`.
        """
        raise NotImplementedError

    def content(self, section: Decoder) -> dict[str, Any]:
        """Return config.json of a section, as far as the family can express the section.

        Raises ValueError, with an option, for a section without the features of the family.
        """
        raise NotImplementedError

    def keys(self, content: dict[str, Any]) -> Keys:
        """Open a config.json of the family for reading."""
        return Keys(content, self.absent)

    def table(self, layer: Decoder) -> Table:
        """Return the tensor names inside of a block of this section."""
        return self.block

    def ignored(self, name: str, section: Decoder) -> bool:
        """Whether the model has no use for a tensor of the files: a buffer, or a part left out."""
        tied = section.tie_embeddings and name == self.head
        return tied or name.endswith("rotary_emb.inv_freq")

    def rows(self, section: Decoder) -> list[Row]:
        """Return a row for every tensor of a section.

        Raises ValueError for a tensor without a name.
        """
        outside = (spec for part in section.outside() for spec in part)
        rows = [
            self._outside(section, spec) for spec in outside if not spec.name.startswith(FURTHER)
        ]
        of_kinds = {kind: section.of_kind(kind.name) for kind in section.kinds_in()}
        tables = {kind: self.table(layer) for kind, layer in of_kinds.items()}
        specs = {kind: list(self._specs(section, kind)) for kind in of_kinds}
        for number in range(section.n_layers):
            kind = section.kind_of(number)
            hf_prefix = f"{self.prefix}{self.layers}{number}."
            for spec in specs[kind]:
                entry = tables[kind].get(spec.name)
                if entry is None and spec.name == SELECTION_BIAS:
                    continue
                if entry is None:
                    raise ValueError(f"{self.model_type} has no tensor like blocks.*.{spec.name}")
                prefix = f"blocks.{number}."
                rows.append(row(of_kinds[kind], spec, entry, prefix, hf_prefix))
        return rows + [
            row for n in range(section.mtp_num_layers) for row in self._further(section, n)
        ]

    def _further(self, section: Decoder, depth: int) -> Iterator[Row]:
        """Yield the rows of a module for a further token: a layer after the last one."""
        kind = section.repeated_kind
        layer = section.of_kind(kind.name)
        place, inside = self.further_place(section.n_layers, depth)
        table = self.further | self.inside(inside, self.table(layer))
        specs = [*section.further_tensors(), *self._buffers(section, kind, "block.")]
        for spec in specs:
            if (entry := table.get(spec.name)) is not None:
                yield row(layer, spec, entry, f"mtp.{depth}.", place)
            elif not spec.name.endswith(SELECTION_BIAS):
                raise ValueError(f"{self.model_type} has no tensor like mtp.*.{spec.name}")

    def further_place(self, n_layers: int, depth: int) -> tuple[str, str]:
        """Return the place of a module for a further token, and of its block inside of it."""
        return f"{self.prefix}{self.layers}{n_layers + depth}.", ""

    def inside(self, place: str, block: Table) -> Table:
        """Return the table of the block of a module for a further token."""
        return {
            f"block.{name}": f"{place}{entry}"
            if isinstance(entry, str)
            else replace(entry, name=f"{place}{entry.name}")
            for name, entry in block.items()
        }

    def _specs(self, section: Decoder, kind: Any) -> Iterator[TensorSpec]:
        """Yield the tensors of a block, with the selection bias, a buffer and no parameter."""
        yield from section.block_tensors(kind)
        yield from self._buffers(section, kind)

    def _buffers(self, section: Decoder, kind: Any, prefix: str = "") -> Iterator[TensorSpec]:
        """Yield the selection bias of a block with experts, and the factor of its output."""
        if section.layer_scalar:
            name = f"{prefix}layer_scalar.factor"
            yield TensorSpec(name=name, shape=(1,), role="buffer", part="scalars")
        if kind.moe:
            shape, name = (section.moe.num_experts,), f"{prefix}{SELECTION_BIAS}"
            yield TensorSpec(name=name, shape=shape, role="buffer", part="routers")

    def _outside(self, section: Decoder, ours: TensorSpec) -> Row:
        entry = self.outside.get(ours.name)
        if entry is None:
            raise ValueError(f"{self.model_type} has no tensor like {ours.name}")
        name = entry if isinstance(entry, str) else entry.name
        return row(section, ours, entry, "", "" if name == self.head else self.prefix)

    def unsaid(self, section: Decoder) -> list[str]:
        """Return the options beyond the family's config.json, in the words for users."""
        try:
            content = self.content(section)
        except ValueError as error:
            return [str(error)]
        keys = self.keys(content | {"model_type": self.model_type})
        options = self.options(keys)
        keys.finish()
        if keys.faults or keys.unknown:
            return [*keys.faults, *keys.unknown.values()]
        if "moe" in options and not section.is_moe:
            return [NO_EXPERTS]
        restored = decoder_section(options)
        if ignored := self.unread(restored):
            return ignored
        return [str(difference) for difference in self.differences(section, restored)]

    def unread(self, section: Decoder) -> list[str]:
        """Return options that the transformers class ignores, or obeys in another way than forge.

        The section holds the options of a config.json. With a fault, forge and transformers would
        read different models.
        """
        layers = [section.of_kind(kind.name) for kind in section.kinds_in()]
        faults = {}
        for layer in (layer for layer in layers if layer.position == "rope"):
            if layer.partial_rotary_factor != 1 and not self.partial_rotary:
                setting = f"model.partial_rotary_factor={shown(layer.partial_rotary_factor)}"
                faults[f"{setting} (transformers turns whole heads in {self.model_type})"] = None
            if self.turns_by_kind and layer.rope_type == "yarn" and not layer.rope_truncate:
                setting = "model.rope_truncate=false"
                faults[
                    f"{setting} (transformers rounds the range of pairs in {self.model_type})"
                ] = None
            if layer.rope_type == "llama3.1" and layer.beta_fast < layer.beta_slow:
                setting = "model.beta_fast below model.beta_slow"
                faults[f"{setting} (transformers blends otherwise)"] = None
            length = layer.original_max_position_embeddings
            by_length = layer.rope_type == "longrope" and (
                list(layer.rope_short_factor) != list(layer.rope_long_factor)
            )
            if (by_length or layer.rope_type == "dynamic") and layer.max_seq_len > length:
                setting = f"model.rope_type={layer.rope_type} with model.max_seq_len above {length}"
                faults[f"{setting} (transformers turns each text by its own length)"] = None
        return list(faults)

    def is_near(self, section: Decoder) -> bool:
        """Whether a section has the features of this family."""
        try:
            self.content(section)
        except ValueError:
            return False
        return self.unsaid(section) != [NO_EXPERTS]

    def differences(self, one: Decoder, other: Decoder) -> list[Difference]:
        """Return the options by which two sections of this family compute different results."""
        free = {f"model.{name}" for name in self.either}
        return [
            difference
            for difference in differences_between(one, other)
            if difference.key not in free
        ]


def decoder_section(options: dict[str, Any]) -> Decoder:
    """Build the model section with these options."""
    values = {name: value for name, value in options.items() if value is not None}
    if "mixer" in values:
        values["mixer"] = variant_of(Mixer, values["mixer"])
    if "moe" in values:
        values["moe"] = MoE(**values["moe"])
    return Decoder(**values)


class Difference(NamedTuple):
    """An option by which two sections compute different results, with both values."""

    key: str
    one: Any
    other: Any

    def __str__(self) -> str:
        return f"{self.key}={shown(self.one)}"


def differences_between(one: Decoder, other: Decoder) -> list[Difference]:
    """Return the options by which two sections compute different results."""
    if one.n_layers != other.n_layers:
        return [Difference("model.n_layers", one.n_layers, other.n_layers)]
    changed: dict[str, Difference] = {}
    compared: dict[Any, tuple[dict[str, Any], dict[str, Any]]] = {}
    for layer in range(one.n_layers):
        kinds = one.kind_of(layer), other.kind_of(layer)
        if kinds not in compared:
            compared[kinds] = _facts(one, kinds[0]), _facts(other, kinds[1])
            facts, other_facts = compared[kinds]
            for name in sorted(facts.keys() | other_facts.keys()):
                pair = facts.get(name), other_facts.get(name)
                if _plain(pair[0]) != _plain(pair[1]):
                    changed.setdefault(name, Difference(f"model.{name}", *pair))
    return list(changed.values())


def _plain(value: Any) -> Any:
    """A value of an option, equal before and after its section is frozen."""
    return tuple(value) if isinstance(value, list) else value


WORKED_OUT = (
    *("mixer", "feed_forward", "moe", "ffn_dim_multiplier"),
    *("bias", "q_bias", "k_bias", "v_bias", "o_bias", "mlp_bias"),
)
"""Options compared by the values they lead to, not as typed."""


def _facts(section: Decoder, kind: Any) -> dict[str, Any]:
    """Return the options of the computation of a layer kind, with open values worked out."""
    layer = section.of_kind(kind.name)
    skipped = {*OF_TRAINING, *layer.mixer.unread, *WORKED_OUT, *RotaryOptions.__dataclass_fields__}
    facts = {f.name: getattr(layer, f.name) for f in fields(Decoder) if f.name not in skipped}
    facts |= _positions(layer)
    facts["n_kv_heads"] = layer.kv_heads
    if "head_dim" not in layer.mixer.unread:
        facts["head_dim"] = layer.computed_head_dim
    facts["gated_mlp"] = layer.is_gated
    if "bias" not in layer.mixer.unread:
        facts |= {f"{name}_bias": value for name, value in layer.attention_biases.items()}
    facts["mlp_bias"] = layer.has_mlp_bias
    if "query_scale" in facts:
        usual = layer.computed_head_dim**-0.5
        facts["query_scale"] = round(layer.query_scale or usual, 12)
    for name, acts in _acting(layer).items():
        if not acts:
            facts.pop(name, None)
    if layer.norm_type == "layernorm":
        facts["bias"] = layer.bias
    if layer.position != "learned" and layer.stretches not in ("dynamic", "longrope"):
        del facts["max_seq_len"]  # a bound on lengths without effect on the computation
    window = facts.get("sliding_window_size", 0)
    facts["sliding_window_size"] = 0 if window >= layer.max_seq_len else window
    facts |= _inside("mixer", layer.mixer)
    if facts.get(LATENT_EPS, 0) is None:
        facts[LATENT_EPS] = layer.norm_eps
    if kind.moe:
        facts |= _experts(layer)
        if not layer.moe.beside_dense:
            del facts["ffn_hidden_dim"], facts["mlp_bias"]
    else:
        facts |= _inside("feed_forward", layer.feed_forward)
        facts["ffn_hidden_dim"] = layer.computed_ffn_hidden_dim
        facts["moe.num_experts"] = 0
    return facts


def _acting(layer: Decoder) -> dict[str, bool]:
    """Return, for options effective only beside another option, whether each has an effect."""
    tempered = layer.temperature_tuning and layer.position != "rope"
    of_norms = ("qk_norm_width", "qk_norm_with_scale", "qk_norm_after_rope", "qk_scale")
    return {
        **dict.fromkeys(of_norms, layer.qk_norm),
        "short_window": False,  # compared by the windows of the layers
        "v_norm_with_scale": layer.v_norm,
        **dict.fromkeys(("moba_chunk_size", "moba_topk"), layer.moba),
        **{name: bool(layer.engram_layers) for name in OF_ENGRAM},
        "sinkhorn_iterations": layer.mhc_expansion_rate > 1,
        "temperature_tuning": tempered,
        "temperature_tuning_scale": tempered,
        "temperature_tuning_floor": tempered,
        "mlp_up_offset": layer.is_gated,
    }


def _experts(layer: Decoder) -> dict[str, Any]:
    """Return the options of the computation of a layer of experts."""
    moe, facts = layer.moe, _inside("moe", layer.moe, OF_MOE_TRAINING)
    facts["moe.ffn_hidden_dim"] = layer.expert_hidden_dim
    facts["moe.group_score"] = moe.computed_group_score
    if moe.n_routing_groups == 1:
        del facts["moe.topk_routing_group"], facts["moe.group_score"]
    facts["moe.shared_hidden_dim"] = moe.shared_width(layer)
    for name in ("shared_experts", *(() if moe.shared_experts else ("shared_expert_gate",))):
        del facts[f"moe.{name}"]
    return facts


def _positions(layer: Decoder) -> dict[str, Any]:
    """Return the options of positions; with rotation, only the options of its type."""
    facts: dict[str, Any] = {"position": layer.position}
    if layer.position != "rope":
        return facts
    kind = layer.rope_type
    names = ["rope_theta", "rope_type", "rope_interleave", "partial_rotary_factor"]
    names += ["rope_factor"] if kind != "default" else []
    names += ["original_max_position_embeddings"] if kind in OF_LENGTH else []
    names += ["beta_fast", "beta_slow"] if kind in ("llama3.1", "yarn") else []
    names += ["rope_truncate"] if kind == "yarn" else []
    names += ["rope_short_factor", "rope_long_factor"] if kind == "longrope" else []
    facts |= {name: thaw_value(getattr(layer, name)) for name in names}
    facts["rope_attention_factor"] = round(layer.rotary_scale, 12)
    return facts | {"mscale": round(layer.scores_scale, 12)}


def _inside(name: str, section: Section, skipped: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the options of a section inside of a layer's section, and the name of its schema."""
    out = {*OF_TRAINING, *skipped}
    values = {f.name: getattr(section, f.name) for f in fields(section) if f.name not in out}
    prefixed = {f"{name}.{option}": value for option, value in values.items()}
    return prefixed | {name: type(section).schema_name}
