"""A value that is refused is refused, and no rule or plan that reads it too ends in a traceback."""

from __future__ import annotations

import pytest

from forge import check

TYPED = {
    "precision.param_dtype=x": "precision.param_dtype",
    "precision.mixed_precision=x": "precision.mixed_precision",
    "optimizer=adamw_low_bit optimizer.state_format=x": "optimizer.state_format",
    "train.grad_accum_steps=-1": "train.grad_accum_steps",
    "data=mix data.anneal_start_step=-1": "data.anneal_start_step",
    "data=mix +data.anneal_weights={}": "data.anneal_weights",
    "quantization=fp8 adapter.double_quantization=true": "adapter.double_quantization",
}


@pytest.mark.parametrize("typed", TYPED)
def test_each_ends_in_its_refusal(typed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main(typed.split()) == 2
    said = capsys.readouterr().err
    assert TYPED[typed] in said
    assert "Traceback" not in said


def test_a_rule_reads_what_a_kind_of_layers_does_not_state(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The rule warns of 2,048 chosen keys, which is a default, and its advice can be typed."""
    mixer = "{schema:mla,q_lora_rank:24,use_indexer:true,indexer_sparse_training:true}"
    typed = ["model=tiny", "model.kinds={s:{mixer:" + mixer + "}}", "model.layers=[default,s]"]
    typed += ["run.device=cpu", "train.seq_len=64"]
    assert check.main(typed) == 0
    advice = "++model.kinds.s.mixer.indexer_topk=16"
    said = capsys.readouterr()
    assert advice in said.out + said.err
    assert check.main([*typed, advice]) == 0
    said = capsys.readouterr()
    assert advice not in said.out + said.err
