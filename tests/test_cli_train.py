"""`python -m forge.train`: refusals word by word, what it shows, and that it leaves nothing behind
when it refuses.
"""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

import forge.train
from forge.compose import composition
from forge.compose.engine import Library
from forge.config import schemas
from forge.config.model.decoder import Decoder

SEVEN = (
    "optimizer.lrr=1 model=lama7b train.seq_len=4096 scheduler.min_lr_ratio=2 train.max_steps=abc "
    "+optimizer.foo=1 modl.dim=3"
)
SEVEN_SAID = """\
7 problems; nothing was started or written.
  1. optimizer.lrr=1   [command line]
     Muon has no option 'lrr'.
     -> did you mean optimizer.lr=1?
  2. model=lama7b   [command line]
     there is no model named 'lama7b'.
     -> did you mean model=llama7b, model=llama70b or model=llama3_70b?
  3. train.seq_len=4096   [command line]
     train.seq_len (4096) must not exceed model.max_seq_len ({longest}).
     -> train.seq_len={longest} or model.max_seq_len=4096
  4. scheduler.min_lr_ratio=2.0   [command line]
     scheduler.min_lr_ratio must be at least 0 and at most 1.
  5. train.max_steps=abc   [command line]
     train.max_steps is an integer; 'abc' is not.
     -> for example train.max_steps=1600
  6. +optimizer.foo=1   [command line]
     Muon has no option 'foo'.
     -> its options: lr, lr_base_dim, lr_dim_power, weight_decay, weight_decay_schedule, \
decay_embeddings, no_decay_parameters, trainable_parameters, freeze_parameters, groups, \
momentum, momentum_start, momentum_warmup_steps, momentum_end, nesterov, ns_steps, ns_dtype, \
consistent_rms, cautious, scale_decay, coefficients, equilibrate_rows, renormalize
  7. modl.dim=3   [command line]
     there is no group or option 'modl'.
     -> did you mean model.dim=3?
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def shell(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "forge.train", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environ})


def test_seven_mistakes_in_one_screen():
    start = time.perf_counter()
    done = shell(*SEVEN.split())
    took = time.perf_counter() - start
    assert done.stderr == SEVEN_SAID.format(longest=composition.config().model.max_seq_len)
    assert (done.returncode, done.stdout) == (2, "")
    assert took < 10  # it takes well under a second; this machine may be busy
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.parametrize(
    "arguments", ["-m launch.jobs=1,2", "--cfg job -p nothing", "optimizer.betas=[1"]
)
def test_a_refusal_exits_with_two_and_writes_nothing(
    arguments: str, capsys: pytest.CaptureFixture[str]
):
    assert forge.train.main(arguments.split()) == 2
    out, err = capsys.readouterr()
    assert err.startswith("1 problem; nothing was started or written.\n")
    assert (out, list(Path.cwd().iterdir())) == ("", [])


def test_a_model_that_this_machine_cannot_hold_is_checked_and_not_started(
    capsys: pytest.CaptureFixture[str],
):
    import forge.check

    huge = ["optimizer=adamw", "model=llama70b", "parallel.tp=8", "run.device=cpu"]
    assert forge.check.main([*huge, "model=small"]) == 0
    assert "of a CPU's memory" not in capsys.readouterr().out
    assert forge.check.main(huge) == 2
    assert forge.train.main(huge) == 2
    said = capsys.readouterr().err
    assert "-> a smaller model, such as model=small, or a machine with GPUs" in said
    need = "8 ranks (from the parallel degrees) need 8 GPUs, or 8 * 128.5 GiB = 1,028.0 GiB"
    assert f"{need} of a CPU's memory" in said
    assert os.listdir() == []


def test_a_flag_that_is_nearly_one(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as stopped:
        forge.train.main(["--cfgg", "job"])
    assert stopped.value.code == 2
    assert "unrecognized arguments: --cfgg=job; did you mean --cfg?" in capsys.readouterr().err


def test_options_with_dashes_are_refused_beside_all_else(capsys: pytest.CaptureFixture[str]):
    assert forge.train.main(["--lr", "3e-3", "model=smal", "--bf16", "--seed=3"]) == 2
    assert capsys.readouterr().err == DASHES


DASHES = """\
4 problems; nothing was started or written.
  1. --lr=3e-3   [command line]
     options are typed without dashes, and there is no group or option 'lr'.
     -> did you mean optimizer.lr=3e-3?
  2. model=smal   [command line]
     there is no model named 'smal'.
     -> did you mean model=small or model=moe_small?
  3. --bf16   [command line]
     options are typed without dashes, and there is no group or option 'bf16'.
     -> did you mean precision=bf16?
  4. --seed=3   [command line]
     options are typed without dashes.
     -> write seed=3
"""


def test_help_lists_groups_options_and_flags(capsys: pytest.CaptureFixture[str]):
    assert forge.train.main(["--help"]) == 0
    text = capsys.readouterr().out
    library = Library()
    for group in library.groups():
        assert f"  {group:<12} {', '.join(library.options(group))}\n" in text
    flags = (
        "-cd, --config-dir, -cp, --config-path",
        "-h, --help",
        "-c, --cfg",
        "-p, --package",
        "-m, --multirun",
    )
    for flag in (*flags, "-i, --info", "-sc, --shell-completion"):
        assert re.search(rf"^  {flag} +\S", text, re.MULTILINE), flag


@pytest.mark.parametrize("group", Library().groups())
def test_help_of_a_group_has_every_option_and_key(group: str, capsys: pytest.CaptureFixture[str]):
    assert forge.train.main([group, "--help"]) == 0
    text = capsys.readouterr().out
    for option in Library().options(group):
        assert re.search(rf"^  {group}={option} +\S", text, re.MULTILINE), option
    for key, *_ in schemas.walk_options():
        if key.startswith(f"{group}.") and not key.endswith("_target_"):
            assert re.search(rf"^    {key} +\S+ .*\w", text, re.MULTILINE), key


def test_the_config_is_shown_with_flags_and_overrides_in_any_order(
    capsys: pytest.CaptureFixture[str],
):
    for words in ("--cfg job model=small seed=7", "model=small seed=7 -c job"):
        assert forge.train.main(words.split()) == 0
        shown = yaml.safe_load(capsys.readouterr().out)
        assert list(shown) == [
            *(
                "seed",
                *schemas.sections(),
                *schemas.free_dicts(),
                "rewards",
                "environment",
                "tags",
                "hparams",
            )
        ]
        assert (shown["seed"], shown["model"]["dim"]) == (7, 512)


def test_one_section_of_the_config(capsys: pytest.CaptureFixture[str]):
    assert forge.train.main(["--cfg", "job", "--package", "model", "model=llama7b"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("_target_: forge.models.decoder.Decoder\nvocab_size: 32000\n")
    names = {field.name for field in dataclasses.fields(Decoder)}
    assert set(yaml.safe_load(text)) == names


def test_hydra_shows_the_defaults_list():
    done = shell("--info", "defaults", "model=small")
    assert done.returncode == 0
    assert re.search(r"\| model/small +\| model +\|", done.stdout)
    assert re.search(r"\| schema/model/decoder +\| model +\|", done.stdout)
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.parametrize("words", [[], ["install=powershell"], ["install=bash", "query=bash"]])
def test_completion_says_what_it_takes(words: list[str], capsys: pytest.CaptureFixture[str]):
    assert forge.train.main(["-sc", *words]) == 2
    assert "-> -sc install=bash (or fish, zsh)" in capsys.readouterr().err


def test_a_reader_that_stops_early_is_no_error():
    command = f"{sys.executable} -m forge.train --cfg job | head -c 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
