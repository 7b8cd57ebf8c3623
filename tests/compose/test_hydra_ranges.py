"""What both ends of the ranges of Hydra and OmegaConf have in common here; `make oldest` and `make
newest` run it on each.
"""

import subprocess
import sys

import pytest

import forge

WARNED = "import warnings; warnings.simplefilter('error'); from forge import check; check.main()"


def test_composing_warns_of_nothing() -> None:
    """Neither end is used by names, or left to conversions, that it says will go."""
    words = ["model=tiny", "+sweeper.params={optimizer.lr: 1}", "run.name=${now:%Y}"]
    command = [sys.executable, "-c", WARNED, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "Warning" not in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("text", ["optimizer.betas[0]=0.5", "optimizer.betas=[0.9]"])
def test_a_tuple_is_a_list_given_as_a_whole(text: str) -> None:
    with pytest.raises(forge.ConfigError) as refused:
        forge.compose(["optimizer=adamw", text])
    assert str(refused.value).splitlines()[2] in (
        "     a list is given as a whole.",
        "     optimizer.betas has 2 values, not 1.",
    )
