"""Kinds of layers and parts of the model's section, as users type them."""

from __future__ import annotations

import pytest

import forge
from forge.config.problems import ConfigError

KINDS = "model.kinds={local:{sliding_window_size:64,n_heads:2,head_dim:64,n_kv_heads:2}}"


def test_a_kind_overrides_options_of_its_layers_alone() -> None:
    config = forge.compose([KINDS, "model.layers=[local,default]", "model.n_layers=3"])
    model = config.validate().config.model
    found = [model.of_kind(model.kind_of(layer).name) for layer in range(3)]
    assert [each.sliding_window_size for each in found] == [64, 0, 64]
    assert [each.n_heads for each in found] == [2, 4, 2]
    assert [each.computed_head_dim for each in found] == [64, 32, 64]


def test_a_kind_may_have_a_mixer_of_another_schema() -> None:
    kind = "model.kinds={latent:{mixer:{schema:mla,kv_lora_rank:24}}}"
    config = forge.compose([kind, "model.layers=[default,latent]"]).validate().config
    found = [config.model.of_kind(name).mixer for name in ("default", "latent")]
    assert [each.schema_name for each in found] == ["attention", "mla"]
    assert found[1].kv_lora_rank == 24


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            ["model.kinds={a:{sliding_windw_size:64}}", "model.layers=[a]"],
            "Decoder has no option 'sliding_windw_size'; did you mean sliding_window_size or "
            "chunk_attn_window_size?",
        ),
        (["model.kinds={a:{n_layers:64}}", "model.layers=[a]"], "n_layers is the same in all"),
        (["model.kinds={a:{n_heads:x}}", "model.layers=[a]"], "model.kinds.a.n_heads must be an"),
        (["model.kinds={a:{n_heads:0}}", "model.layers=[a]"], "model.kinds.a.n_heads must be gr"),
        (["model.kinds={a:3}", "model.layers=[a]"], "model.kinds.a is a dict of options"),
        (["model.kinds={a:{position:learned}}", "model.layers=[a]"], "learned positions are added"),
        (["model.kinds={a:{mixer:{schema:x}}}", "model.layers=[a]"], "its schema is one of att"),
        (
            [KINDS, "model.layers=[lokal]"],
            "there is no kind of layer 'lokal': there are default, l",
        ),
        (["mixer=attention"], "write +mixer@model.mixer=attention"),
        (["model.mixer=attention"], "+mixer@model.mixer=attention"),
        (["model.mixer.v_head_dim=8"], "belongs to +mixer@model.mixer=mla"),
        (["+mixer@model.mixer=attn"], "there is no mixer named 'attn'"),
    ],
)
def test_mistakes(overrides: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        forge.compose(overrides).validate()
    assert said in " ".join(str(refused.value).split())
