"""checkpoint.export_at_end: the folder that forge.export would write, beside the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from forge import export


def test_the_folder_is_that_of_forge_export(trained, tmp_path: Path) -> None:
    run = trained("checkpoint.export_at_end=true")
    assert export.main([str(run), str(tmp_path / "hf"), "--format", "hf"]) == 0
    names = sorted(path.name for path in (tmp_path / "hf").iterdir())
    assert sorted(path.name for path in (run / "export").iterdir()) == names
    assert "model.safetensors" in names
    for name in names:
        assert (run / "export" / name).read_bytes() == (tmp_path / "hf" / name).read_bytes(), name


def test_weights_beside_adapters_are_a_warning(trained, caplog: pytest.LogCaptureFixture) -> None:
    run = trained("checkpoint.export_at_end=true adapter=lora adapter.rank=2")
    assert not (run / "export").exists()
    assert "checkpoint.export_at_end: nothing is exported" in caplog.text
