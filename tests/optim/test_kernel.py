"""AdamW's update where the compiler cannot work, for example without a C compiler."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

from forge.config.optimizers.compiler import compiler_fault
from forge.optim import adam_update
from forge.optim.adam_update import Kernel, Options, _update


def arguments():
    torch.manual_seed(0)
    tensors = [torch.randn(4, 3) for _ in range(4)]
    numbers = torch.tensor(0.1), torch.tensor(0.01)
    options = Options((0.9, 0.99), 1e-8)
    weight, gradient, first, second = *tensors[:3], tensors[3].square()
    count = torch.tensor(3.0)
    return [options, weight, None, gradient, first, second, count, None, None, None, *numbers]


def failing(graph, _):
    raise RuntimeError("Failed to find C compiler. Please specify via CC.")


def test_an_update_that_cannot_be_compiled_runs_and_says_why_once(monkeypatch, recwarn):
    monkeypatch.setattr(adam_update, "compiler_fault", lambda: "")
    compiled = torch.compile(_update, fullgraph=True, backend=failing)
    with pytest.raises(BackendCompilerFailed):
        compiled(*arguments())
    kernel, ours, reference = Kernel(compiled), arguments(), arguments()
    for _ in range(2):
        kernel(*ours)
        _update(*reference)
    assert all(torch.equal(ours[i], reference[i]) for i in (1, 4, 5))
    messages = [str(warning.message) for warning in recwarn if "AdamW" in str(warning.message)]
    assert len(messages) == 1
    assert "Failed to find C compiler" in messages[0]
    assert "python -m forge.doctor" in messages[0]


def test_what_the_compiler_lacks(tmp_path):
    here, headers = {"PATH": str(tmp_path)}, str(tmp_path)
    assert compiler_fault(here, headers) == "no C compiler: gcc, clang, cc not found"
    assert compiler_fault({**here, "CC": "icx"}, headers) == "no C compiler: icx not found"
    (tmp_path / "gcc").write_text("#!/bin/sh\n")
    (tmp_path / "gcc").chmod(0o755)
    assert compiler_fault(here, headers) == f"no {tmp_path}/Python.h"
    (tmp_path / "Python.h").touch()
    assert compiler_fault(here, headers) == ""
