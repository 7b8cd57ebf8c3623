"""In which directory a command of a sweep belongs."""

from __future__ import annotations

from pathlib import Path

import pytest

from forge.launch.sweep import sweep
from forge.launch.sweep.command import Command
from forge.launch.sweep.directory import SweepDirectory

SMALL = ["train.max_steps=5", "scheduler.warmup_steps=1", "run.device=cpu", "parallel=single"]


@pytest.fixture(autouse=True)
def entered(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    """Points are entered into the ledger, and none is started."""

    def enter(command: Command, here: object) -> int:
        with command.open():
            return 0

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sweep, "execute", enter)


RATES = "optimizer.lr=1e-3,2e-3"
COMMANDS = {  # what is typed, in this order: the directory that it comes into
    (RATES,): "tiny",
    ("optimizer.lr=3e-3", "seed=1,2", "eval.interval=3"): "tiny",
    (RATES, "model.dim=64"): "tiny_dim-64",
    ("model.dim=64", "optimizer.lr=2e-3,1e-3"): "tiny_dim-64",  # typed in another order
    ("optimizer.lr=5e-3", "model.dim=256"): "tiny_dim-256",  # with a value that is new
    (RATES, "train.batch_size=8", "train.grad_accum_steps=1"): "tiny_global_batch_size-8",
    (RATES, "optimizer=adamw"): "tiny_optimizer-adamw",
    ("optimizer.weight_decay=0,0.1",): "tiny_weight_decay",
    ("optimizer.weight_decay=0,0.1", "model.dim=64"): "tiny_weight_decay_",
    (RATES, "model.dim=64", "sweep.name=tiny"): "tiny",  # a name that is typed is kept
}


def test_a_sweep_has_a_directory_for_each_set_of_what_does_not_vary(capsys) -> None:
    """The same commands again come to the same places, and say why they are others."""
    places: dict[Path, int] = {}
    for overrides, name in [*COMMANDS.items(), *list(COMMANDS.items())[-2:-1]]:
        assert sweep.run_sweep([*SMALL, *overrides]) == 0
        now = {one: len(SweepDirectory(one).commands()) for one in Path("sweeps").iterdir()}
        (used,) = [one for one, count in now.items() if count != places.get(one, 0)]
        matches = used.name.startswith(name) if name.endswith("_") else used.name == name
        assert matches, (overrides, used)
        places = now
    assert len(places) == len({*COMMANDS.values()})
    said = capsys.readouterr().out
    ways = "this one gets a directory of its own, or a sweep.name"
    assert f"sweeps/tiny has a sweep with model.dim=128; {ways}" in said
    assert f"sweeps/tiny has a sweep with optimizer=muon; {ways}" in said


def test_a_file_that_has_changed_makes_other_points(capsys, tmp_path: Path) -> None:
    """Of an option that is worked out from what varies, too."""
    (tmp_path / "experiment").mkdir()
    file, command = tmp_path / "experiment" / "mine.yaml", [*SMALL, "experiment=mine", RATES]
    for width, name in ((256, "mine"), (512, "mine_ffn_hidden_dim-512")):
        file.write_text(f"# @package _global_\nmodel:\n  ffn_hidden_dim: {width}\n")
        assert sweep.run_sweep(command, [str(tmp_path)]) == 0
        assert SweepDirectory(Path("sweeps") / name).commands()
    file.write_text("# @package _global_\n")  # the width is worked out: 512 again, then
    assert sweep.run_sweep([*command, "model.n_kv_heads=2"], [str(tmp_path)]) == 0
    assert len(list(Path("sweeps").iterdir())) == 3
