"""The first line of `forge.check`, and its exit code: whether what was typed can run."""

from __future__ import annotations

import pytest

from forge import check
from forge.planning.world import Devices
from forge.resolve import resolve as resolving

PLANNED = "plan.device=h100 plan.world_size"
NO_SWEEP = "and without -m one run that has none of it"


@pytest.mark.parametrize(
    ("typed", "code", "said"),
    [
        ("", 0, "fits: 1 rank on cpu, 53.9 MiB of the "),
        (f"{PLANNED}=2", 0, "fits: 2 ranks on cuda of plan.device=h100, which is not here, "),
        (f"{PLANNED}=1 model=llama70b", 1, "does not fit: a device is estimated to need "),
        ("model=llama70b", 2, "cannot run here: 1 rank (from a CPU) needs a GPU, or "),
        ("model=lama7b", 2, "cannot run here: there is no model named 'lama7b'."),
        ("seed=x run.device=cuda", 2, "cannot run here: seed=x; run.device=cuda"),
        ("run.device=cuda", 2, "cannot run here: no GPU can be used here (torch is a CPU build)."),
        ("launch=slurm", 0, "can run: 1 rank on cpu, as torch is a CPU build here (plan.device=h1"),
        (
            "launch=slurm plan.device=h100",
            0,
            "fits: 1 rank on cuda of plan.device=h100, which is not here, ",
        ),
        ("-m seed=1,2", 0, "fits: 2 points"),
        ("-m model=tiny,llama7b seed=1,2", 2, "cannot run here: 1 rank (from a CPU) needs a GPU"),
        (f"-m {PLANNED}=1 model=tiny,llama70b", 1, "does not fit: 1 of 2 points"),
        ("-m experiment=qk_norm_ablation", 0, "fits: 9 points"),
        ("-m seed=1,x", 2, "cannot run here: seed is an integer; 'x' is not."),
    ],
)
def test_the_verdict_comes_first_and_is_the_exit_code(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    typed: str,
    code: int,
    said: str,
) -> None:
    here = Devices(gpus=0, source="torch is a CPU build", torch=(2, 13))
    monkeypatch.setattr(resolving, "find_devices", lambda: here)
    monkeypatch.setattr("forge.launch.sweep.preflight.find_devices", lambda: here)
    assert check.main(typed.split()) == code
    shown = capsys.readouterr()
    assert shown.out.startswith(said), shown.out[:300]
    if typed == "run.device=cuda":
        assert "plan.device=h100 with forge.check plans for GPUs elsewhere" in shown.err
    if typed.startswith("-m") and code < 2:
        points = [line for line in shown.out.splitlines() if line.startswith("  #")]
        assert len(points) == (9 if "ablation" in typed else 2)
        assert ["does not fit" in line for line in points] == [False, code == 1, *[False] * 7][
            : len(points)
        ]
    assert NO_SWEEP not in shown.out


def test_an_ablation_without_m_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    for typed, values in {
        "qk_norm_ablation": "the arms tiny, no_qk_norm, untied",
        "lr_sweep": "values of optimizer.lr, seed",
    }.items():
        assert check.main([f"experiment={typed}"]) == 0
        shown = capsys.readouterr().out
        assert f"this is a sweep ({values}), {NO_SWEEP}." in shown
        assert f"-> python -m forge.train -m experiment={typed}\n" in shown
