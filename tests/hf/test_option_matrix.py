"""Every option of every family against transformers, out of folders; a few into them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import option_matrix as matrix
import option_matrix_written as written
import pytest
import transformers
from tiny_families import CASES, SIZES

from forge.families import folder as folders
from forge.families.keys import NEEDED, Keys

ONCE_UNEQUAL = {
    "gemma": ["hidden_act='gelu'"],
    "gemma 2": ["attn_logit_softcapping=0.0", "query_pre_attn_scalar=0", "+rope_scaling"],
    "gemma 3": ["attn_logit_softcapping=0.5", "full_attention: yarn, betas"],
    "olmo 3": ["rotation: yarn", "older rotation: default"],
    "gpt-oss": ["rope_parameters='absent'", "rope_parameters=None", "swiglu_limit=0.0"],
    "mixtral": ["rms_norm_eps='absent'", "rope_parameters='absent'"],
    "deepseek 3": ["norm_topk_prob=None", "routed_scaling_factor='absent'", "rms_norm_eps=0.0"],
    "qwen3-next": ["hidden_act='relu'", "decoder_sparse_step=0"],
}
"""Changes of config.json that two readers once made two models of, or that crashed forge."""
ONCE_UNREADABLE = {
    "llama 4": ["moe.num_experts=0", "beta_fast=0.3"],
    "deepseek 3": ["norm_eps=0.3", "mixer.latent_norm_eps=0.3"],
    "qwen3-next": ["activation='gelu'"],
}
"""Options of forge that were written into a folder of which transformers made another model."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with matrix.quiet():
        yield


@pytest.mark.parametrize("case", ONCE_UNEQUAL)
def test_what_was_read_as_two_models_is_read_as_one_or_refused(case: str, tmp_path: Path) -> None:
    contents = dict(matrix.changes(matrix.base_of(case)))
    for number, change in enumerate(ONCE_UNEQUAL[case]):
        found = matrix.Finding(change, *matrix.imported(contents[change], tmp_path / str(number)))
        assert not found.wrong(case), found
        assert "transformers" not in found.outcome or change.endswith("=0"), found


@pytest.mark.parametrize("case", ONCE_UNREADABLE)
def test_what_was_written_as_another_model_is_refused(case: str, tmp_path: Path) -> None:
    family = folders.family_of(matrix.base_of(case)["model_type"])
    assert family is not None
    sections = dict(written.sections(case, tmp_path / "base"))
    for change in ONCE_UNREADABLE[case]:
        outcome, off = written.exported(sections[change], family, tmp_path / change)
        assert outcome == "refused", (change, outcome, off)


@pytest.mark.slow  # so that its file begins first
@pytest.mark.nightly
@pytest.mark.parametrize("case", CASES)
def test_every_change_of_a_folder_is_read_as_transformers_reads_it(
    case: str, tmp_path: Path
) -> None:
    found = list(matrix.imports(case, tmp_path))
    assert [each for each in found if each.wrong(case)] == []
    assert sum(each.outcome == "read" for each in found) > 50


class Read(Keys):
    """Keys that note what they give for each that is not there."""

    def __init__(self, content: dict[str, Any], absent: dict[str, Any]) -> None:
        super().__init__(content, absent)
        self.given: dict[str, Any] = {}

    def take(self, *names: str, default: Any = NEEDED) -> Any:
        value = super().take(*names, default=default)
        if default is not NEEDED:
            self.given |= {name: value for name in names if not self.has(name)}
        return value


WORKED_OUT = {"num_key_value_heads", "n_inner", "layer_types", "moe_layers", "head_dim"}
WORKED_OUT |= {"n_group", "topk_group", "rope_parameters", "no_rope_layers"}
WORKED_OUT |= {"mlp_layer_types", "full_attn_idxs", "indexer_types"}
"""Keys that a class fills in by others, where it has None for them."""
READ_ELSEWHERE = {"head_dim", "attn_logit_softcapping", "final_logit_softcapping"}
"""Keys whose values of the class stand behind an `or`, or by whether they are there."""
OF_LATENTS = {
    (name, "num_key_value_heads")
    for name in ("deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa")
}
"""Keys that are known to change nothing."""
BY_FILES = {"num_mtp_layers", "num_nextn_predict_layers", "mtp_num_hidden_layers"}
"""Numbers of modules, which the files have or have not, whatever is stated."""


def test_keys_that_are_absent_have_the_values_of_the_class() -> None:
    sizes = SIZES | {"n_positions": 128, "n_embd": 32, "n_layer": 3, "n_head": 4}
    sizes = {name: value for name, value in sizes.items() if name != "num_key_value_heads"}
    for family in folders.all_families():
        kind = type(transformers.AutoConfig.for_model(family.model_type))
        keys = Read(sizes, family.absent)
        family.options(keys)
        of_class = {field.name: field.default for field in dataclasses.fields(kind)}
        for name, value in keys.given.items():
            theirs, value = of_class.get(name), _plain(value)
            known = name in READ_ELSEWHERE | BY_FILES or (family.model_type, name) in OF_LATENTS
            if name not in of_class or known or (theirs is None and name in WORKED_OUT):
                continue
            assert value == theirs or not (value or theirs), (family.model_type, name, value)


def _plain(value: Any) -> Any:
    """A value read from JSON, where an infinity may be a dict."""
    if isinstance(value, tuple):
        return tuple(float(x["__float__"]) if isinstance(x, dict) else x for x in value)
    return value
