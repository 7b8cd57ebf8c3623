"""A config.json read key by key: each key is used, known to change nothing, or refused."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from forge.families.formats.format import format_of

NEEDED = object()
INERT = (
    # origin, and the format of the weights, stated by the weight files themselves
    *("architectures", "model_type", "dtype", "torch_dtype", "transformers_version", "auto_map"),
    *(
        "_name_or_path",
        "_model_name_or_path",
        "_commit_hash",
        "name_or_path",
        "_attn_implementation",
        "attn_implementation",
    ),
    *("_attn_implementation_autoset", "_experts_implementation"),
    # ways to call the model, and outputs besides logits
    *("use_cache", "return_dict", "return_dict_in_generate", "output_attentions"),
    *("output_hidden_states", "output_router_logits", "output_scores", "torchscript"),
    *("keys_to_ignore_at_inference", "use_return_dict", "loss_type", "tf_legacy_loss"),
    *("chunk_size_feed_forward", "gradient_checkpointing", "use_bfloat16", "is_decoder"),
    # tokens: the tokenizer states the tokens at the start and end of a text
    *("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "decoder_start_token_id"),
    *("tokenizer_class", "prefix", "unk_token_id"),
    # generation, read from generation_config.json
    *("do_sample", "early_stopping", "max_length", "min_length", "num_beams", "num_beam_groups"),
    *("num_return_sequences", "no_repeat_ngram_size", "repetition_penalty", "temperature"),
    *("top_k", "top_p", "typical_p", "length_penalty", "diversity_penalty", "bad_words_ids"),
    *("begin_suppress_tokens", "suppress_tokens", "exponential_decay_length_penalty"),
    *("encoder_no_repeat_ngram_size", "forced_bos_token_id", "forced_eos_token_id"),
    "remove_invalid_values",
    # labels of other tasks
    *("id2label", "label2id", "num_labels", "problem_type", "task_specific_params"),
    *("finetuning_task", "_num_labels"),
    # dropout in training, set by model.dropout; the split of tensor parallel pretraining
    *("attention_dropout", "hidden_dropout", "hidden_dropout_prob", "dropout", "pretraining_tp"),
    # coefficients of losses in transformers; forge's own are options of model.moe
    *("router_aux_loss_coef", "router_z_loss_coef", "aux_loss_alpha", "seq_aux"),
    "router_jitter_noise",
)
"""Keys without effect on logits."""
QUANTIZATION = "quantization_config"
REFUSED = {
    "text_config": "it is of a model that reads more than text, and forge has the text part alone: "
    "save its language model by itself",
    "vision_config": "it is of a model that reads images",
}
OF_ROTATION = ("scaling", "parameters")
OFF = {
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": (None,),
    "tie_encoder_decoder": (False,),
    "pruned_heads": ({}, None),
    "use_bidirectional_attention": (False, None),
    "ep_size": (1,),
}
"""Keys with their only values in forge."""


OWN_CODE = "auto_map"
"""A key of models with code in their folder, which may read any key."""
WITHOUT_EFFECT = re.compile(
    r"_|unsloth_|transformers[._]js|.*_version$|.*(dropout|pdrop)(_prob|_rate)?$"
    r"|(model_max_length|max_window_layers|license|library_name|tags|base_model|datasets)$"
)
"""Names of keys for the origin of a model, for training or for switched off features."""


class Keys:
    """The keys of one config.json, with the problems gathered in `faults`.

    unknown: keys read by no family of this kind and able to change the model, as `name=value` by
    name. unread: keys harmless by their name or value.
    """

    def __init__(self, content: dict[str, Any], absent: dict[str, Any] | None = None) -> None:
        """absent: values of missing keys; a null is no missing key."""
        self._content, self._read, self._absent = content, set[str](), absent or {}
        self.faults: list[str] = []
        self.unknown: dict[str, str] = {}
        self.unread: list[str] = []

    def has(self, name: str) -> bool:
        """Whether a key is in the file, even as null."""
        return name in self._content

    def take(self, *names: str, default: Any = NEEDED) -> Any:
        """Return the value of the first of these names in the file, and mark all names as used.

        A null counts as missing.
        """
        self._read.update(names)
        for name in names:
            if self._content.get(name) is not None:
                return self._content[name]
        for name in names:
            if name in self._absent and not any(n in self._content for n in names):
                return self._absent[name]
        if default is NEEDED:
            self.faults.append(f"it has no {names[0]}")
            return None
        return default

    def flag(self, name: str, default: bool) -> bool:
        """Whether a key says yes; null says no."""
        value = self.take(name, default=default)
        return bool(value) and (not self.has(name) or self._content[name] is not None)

    def number(self, *names: str, default: Any = NEEDED) -> Any:
        """Return a number under the first of these names, as `take` does."""
        value = self.take(*names, default=default)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            self.faults.append(f"{names[0]}={value!r} is no number")
            return None
        return value

    def only(self, name: str, *values: Any, why: str) -> None:
        """Check a key against its allowed values, the first of them for a missing key."""
        value = self._content.get(name, values[0])
        self._read.add(name)
        if value not in values:
            self.faults.append(f"{name}={value!r}: {why}")

    def choice(self, name: str, known: dict[str, Any], default: Any = NEEDED) -> Any:
        """Return the meaning of a text."""
        value = self.take(name, default=default)
        if value is not None and value not in known:
            self.faults.append(f"{name}={value!r} is none of {', '.join(known)}")
            return None
        return None if value is None else known[value]

    def inert(self, *names: str) -> None:
        """Mark keys of a family as without effect on logits."""
        self._read.update(names)

    def finish(self) -> None:
        """Refuse keys with values outside of forge, and sort the unread keys."""
        if (config := self._content.get(QUANTIZATION)) is not None:
            try:
                format_of(config)
            except ValueError as error:
                self.faults.insert(0, f"{QUANTIZATION}: {error}")
        for name, why in REFUSED.items():
            if self._content.get(name) is not None and name not in self._read:
                self.faults.insert(0, f"{name}: {why}")
        scaling, parameters = (self._content.get(f"rope_{suffix}") for suffix in OF_ROTATION)
        if scaling and parameters and scaling != parameters:
            self.faults.append("rope_scaling and rope_parameters are both there, and differ")
        for name, values in OFF.items():
            if name not in self._read and name in self._content:
                self.only(name, *values, why="forge has no such model")
        expected: Collection[str] = {*self._read, *INERT, *REFUSED, *OFF, QUANTIZATION}
        for name, value in self._content.items():
            if name in expected or value is None:
                continue
            if self._has_no_effect(name, value):
                self.unread.append(name)
            else:
                self.unknown[name] = f"{name}={value!r}"

    def _has_no_effect(self, name: str, value: Any) -> bool:
        """Whether a key unread by the family has another purpose, or is switched off."""
        if WITHOUT_EFFECT.match(name):
            return True
        if name == "layer_types":
            return set(value) <= {"full_attention"}
        return not value and OWN_CODE not in self._content
