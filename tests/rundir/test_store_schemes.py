"""Stores of every scheme: the package that one needs, where it is absent, and files in a store in
the place of it.
"""

from __future__ import annotations

import importlib.machinery
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from helpers.tiny import TINY

from forge import resume, train
from forge.config import places
from forge.rundir.remote.store import Store

PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "hf": "huggingface_hub"}
PACKAGES |= {"az": "adlfs", "abfs": "adlfs"}


def registered() -> dict[str, Any]:
    """fsspec's classes by scheme, which can be taken back."""
    return import_module("fsspec.registry")._registry


def absent(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """As on a machine without a package."""

    def found(name: str) -> importlib.machinery.ModuleSpec | None:
        return None if name == package else find_spec(name)

    monkeypatch.setattr(places, "find_spec", found)


@pytest.mark.parametrize("scheme", PACKAGES)
def test_a_scheme_whose_package_is_absent(
    scheme: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One message with the address and the package, exit code 2, and nothing written: where
    checkpoints go to, where data comes from, and which run continues.
    """
    package, address = PACKAGES[scheme], f"{scheme}://bucket/runs/mine"
    absent(monkeypatch, package)
    monkeypatch.chdir(tmp_path)
    missing = f"it needs the library {package}, which is absent"
    commands = [
        lambda: train.main([*TINY, f"checkpoint.remote={address}"]),
        lambda: train.main([*TINY, "data=shards", f"data.path={address}"]),
        lambda: resume.main([address]),
    ]
    for command in commands:
        assert command() == 2
        said = capsys.readouterr().err
        assert address in said
        assert said.count(missing) == 1, said
        assert f"pip install {package}" in said
        assert "Traceback" not in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("scheme", ["gs", "hf", "az"])
def test_files_in_a_store_of_a_scheme(
    scheme: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The address reaches the file system that fsspec has for its scheme; here one in memory."""

    class InMemory(MemoryFileSystem):
        protocol = scheme
        store: ClassVar[dict[str, Any]] = {}
        pseudo_dirs: ClassVar[list[str]] = [""]

    monkeypatch.setattr(
        places, "find_spec", lambda name: importlib.machinery.ModuleSpec(name, None)
    )
    monkeypatch.setitem(registered(), scheme, InMemory)
    store = Store(f"{scheme}://bucket/runs")
    store.probe()
    assert not store.files()
    (tmp_path / "a").write_bytes(b"weights")
    store.upload({"a": tmp_path / "a"})
    assert set(store.files()) == {"a"}
    store.download(["a"], tmp_path / "back")
    assert (tmp_path / "back" / "a").read_bytes() == b"weights"
    (name,) = InMemory.store
    assert name.endswith("bucket/runs/a")
