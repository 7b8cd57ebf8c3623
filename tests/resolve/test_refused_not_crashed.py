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
