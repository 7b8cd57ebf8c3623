"""The state of CMA-ES in a sweep's journal, which is a pickle: it runs no code."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import optuna
import pytest

from forge.config.problems import ConfigError
from forge.launch.optuna.trials import restored
from forge.launch.optuna.trials import sampler as _sampler


class Command:
    """Its pickle makes a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self):
        return Path.touch, (self.file,)


def test_a_state_runs_no_command(tmp_path: Path):
    study = optuna.create_study(sampler=_sampler("cmaes", 1))
    space: dict[str, optuna.distributions.BaseDistribution] = {
        name: optuna.distributions.FloatDistribution(0, 1) for name in "ab"
    }
    trial = study.ask(space)
    study._storage.set_trial_system_attr(
        trial._trial_id, "cma:optimizer:0", pickle.dumps(Command(tmp_path / "made")).hex()
    )
    study.tell(trial, 1.0)
    with pytest.raises(
        ConfigError,
        match=r"the state of cmaes in the journal of the sweep cannot be used: it names pathlib\.\w+",
    ):
        study.ask(space)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    "digits",
    ["x", "", "80", pickle.dumps(eval).hex(), pickle.dumps(np.random.RandomState(1)).hex()],
)
def test_what_is_no_state_is_refused(digits: str):
    with pytest.raises(ConfigError, match="cannot be used"):
        restored(digits)


def test_the_arrays_of_a_state_are_read():
    state = {"mean": np.arange(3.0), "sigma": np.float64(0.5), "names": ["a"]}
    again = restored(pickle.dumps(state).hex())
    assert again["mean"].tolist() == [0.0, 1.0, 2.0]
    assert (again["sigma"], again["names"]) == (0.5, ["a"])


def test_the_optimizers_are_read():
    cmaes = pytest.importorskip("cmaes")
    given = {"mean": np.zeros(2), "sigma": 1.0, "bounds": np.array([[-1.0, 1.0]] * 2), "seed": 3}
    for optimizer in (
        cmaes.CMA(**given),
        cmaes.SepCMA(**given),
        cmaes.CMAwM(**given, steps=np.array([0.0, 0.1])),
    ):
        optimizer.ask()
        assert type(restored(pickle.dumps(optimizer).hex())) is type(optimizer)
