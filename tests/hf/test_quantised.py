"""Quantised folders: the values that their codes stand for, by ranges of rows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from quantised_folders import CASES, Tensors, write_plain, write_quantised

from forge.families import folder as folders
from forge.families.formats.coded import Coded
from forge.hf.read import load_folder, read_part
from forge.models.decoder import Decoder


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_plain(tmp_path_factory.mktemp("quantised") / "plain")


def weights(folder: Path) -> Tensors:
    """The weights of a model read from a folder."""
    section = folders.read_folder(folder).section
    model = Decoder(section)
    load_folder(folder, section, model.state_dict())
    return model.state_dict()


@pytest.mark.parametrize("case", CASES)
def test_weights_are_those_of_the_reference_bit_for_bit(
    case: str, plain: Path, tmp_path: Path
) -> None:
    folder = write_quantised(plain, tmp_path / "model", *CASES[case])
    found, expected = weights(folder), weights(tmp_path / "model-values")
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert torch.equal(found[name], values), name
    original = weights(plain)
    off = [float((found[n] - original[n]).norm() / original[n].norm()) for n in original]
    assert 0 < max(off) < 0.2  # quantised it is, and nothing else
    read = folders.read_folder(folder)
    coded = [x for x in folders.stored_rows(read, read.section)[1].values() if isinstance(x, Coded)]
    assert len(coded) == 14
    for stored in coded[:7]:  # any rows of any matrix are those of the whole
        every_column = torch.arange(stored.shape[1])
        whole = read_part(stored, [torch.arange(stored.shape[0]), every_column])
        for first, last in ((0, 1), (13, 30), (stored.shape[0] - 3, stored.shape[0])):
            part = read_part(stored, [torch.arange(first, last), every_column])
            assert torch.equal(part, whole[first:last])
