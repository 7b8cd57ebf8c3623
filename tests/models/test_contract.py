"""What a model must have: ours has it, and what another lacks is named at once."""

from __future__ import annotations

import pytest
from torch import nn

from forge.config.model.decoder import Decoder as Section
from forge.models.contract import Cached, check_model
from forge.models.decoder import Decoder


class Half(nn.Module):
    """Has some of the parts."""

    max_seq_len = 8

    def hidden(self, tokens: object) -> None: ...


def test_the_decoder_keeps_it() -> None:
    model = Decoder(Section(vocab_size=8, dim=8, n_layers=1, n_heads=1, max_seq_len=8))
    check_model(model, "forge.models.decoder.Decoder")
    assert isinstance(model, Cached)


def test_what_is_missing_is_named() -> None:
    what = r"^model._target_=mine.Half: Half lacks output_weight, init_std, reset_buffers; docs/"
    with pytest.raises(ValueError, match=what):
        check_model(Half(), "mine.Half")
    assert not isinstance(Half(), Cached)


def test_what_is_no_module_is_refused() -> None:
    what = r"model._target_=mine.make builds a dict, which is no torch.nn.Module"
    with pytest.raises(ValueError, match=what):
        check_model({}, "mine.make")
