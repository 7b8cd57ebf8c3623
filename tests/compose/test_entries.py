"""Dicts inside a section, like sweeper.params: entries are set, added, removed and refused on the
command line.
"""

from __future__ import annotations

import pytest
from refusing import problems, resolved

SLURM = ["launch=slurm", "run.device=cpu"]


@pytest.mark.parametrize(
    ("overrides", "params"),
    [
        (["sweeper.params.seed=1,2,3"], {"seed": "1,2,3"}),
        (["+sweeper.params.optimizer.lr=1e-3"], {"optimizer.lr": "1e-3"}),
        (
            ["sweeper.params.optimizer.lr=range(1,3)", "sweeper.params.seed=1"],
            {"optimizer.lr": "range(1,3)", "seed": "1"},
        ),
        (
            ["sweeper.params={seed: '1,2', optimizer.lr: 5}", "sweeper.params.seed=3"],
            {"seed": "3", "optimizer.lr": "5"},
        ),
        (["sweeper.params.seed=1", "~sweeper.params.seed"], {}),
        (["sweeper.params.eval.enabled=true"], {"eval.enabled": "true"}),
    ],
)
def test_entries_by_key(overrides: list[str], params: dict[str, str]) -> None:
    assert resolved(overrides).config.sweeper.params == params


def test_arms_are_lists_of_overrides() -> None:
    section = resolved(
        [
            "sweep.ablation.arms.a=[]",
            "sweep.ablation.arms.b=['seed=1']",
            "sweep.ablation.baseline=a",
        ]
    ).config.sweep.ablation
    assert section.arms == {"a": (), "b": ("seed=1",)}


@pytest.mark.parametrize(
    ("override", "what", "fix"),
    [
        ("~launch.sbatch.nice", "launch.sbatch has no 'nice'.", "it is empty"),
        ("launch.sbatch.nice=[1]", "launch.sbatch.nice is a text; '[1]' is not.", ""),
        ("launch.sbatch=1", "launch.sbatch is a dict of entries by name; '1' is not.", ""),
        (
            "launch.sbatch={nice: [1]}",
            "it does not fit launch.sbatch: Cannot convert",
            "docs/options.md says what it holds",
        ),
        (
            "sweep.ablation.arms.x=3",
            "sweep.ablation.arms.x is a list of overrides; '3' is not.",
            "",
        ),
        (
            'sweep.ablation.arms.x="seed=3"',
            "sweep.ablation.arms.x is a list of overrides; '\"seed=3\"' is not.",
            "'sweep.ablation.arms.x=[\"seed=3\"]'",
        ),
        (
            "sweep.ablation.arms.x={seed: 3}",
            "sweep.ablation.arms.x is a list of overrides; '{seed: 3}' is not.",
            "\"sweep.ablation.arms.x=['seed=3']\"",
        ),
        (
            "sweep.ablation.arms=x",
            "sweep.ablation.arms is a dict of lists of overrides, by the names of the arms; 'x' is not.",
            "\"sweep.ablation.arms={base: [],wide: ['model.dim=256']}\"",
        ),
        (
            "sweeper.params={seed: [1,2], model: tiny}",
            "several values of sweeper.params have commas between them, and nothing around them.",
            "sweeper.params.seed=1,2 sweeper.params.model=tiny",
        ),
        (
            "sweeper.params.seed=[1,2]",
            "sweeper.params.seed is a text; '[1,2]' is not.",
            "sweeper.params.seed=1,2",
        ),
    ],
)
def test_what_does_not_fit_is_refused(override: str, what: str, fix: str) -> None:
    (found,) = problems([*SLURM, override])
    assert found.key == override
    assert found.what.startswith(what)
    assert found.fix == fix


def test_what_is_there_is_named() -> None:
    (found,) = problems([*SLURM, "launch.sbatch.nice=5", "~launch.sbatch.nise"])
    assert (found.what, found.fix) == ("launch.sbatch has no 'nise'.", "it has nice")
