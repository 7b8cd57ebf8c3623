"""What a user may type, and how problems are told; test_screens.py has what is said of mistakes."""

from __future__ import annotations

import pytest
from helpers.refusing import only, problems, resolved

from forge.compose import composition as compose

WORKS = [
    ("++optimizer.lr=0.5", "optimizer", "lr", 0.5),
    ("+model=small", "model", "dim", 512),
    ("train.max_steps=1e5", "train", "max_steps", 100_000),
    ("train.max_steps=1_000", "train", "max_steps", 1000),
    ("optimizer.lr='0.5'", "optimizer", "lr", 0.5),
    ("optimizer.lr=1", "optimizer", "lr", 1.0),
    ("optimizer.betas=[0,0.5]", "optimizer", "betas", (0.0, 0.5)),
    ("run.name=1.50", "run", "name", "1.50"),
    ('run.name="ü = [x"', "run", "name", "ü = [x"),
    ("run.name='null'", "run", "name", "null"),
    (
        "eval.sample_prompts=[007,1e3,1_0,'a,b']",
        "eval",
        "sample_prompts",
        ("007", "1e3", "1_0", "a,b"),
    ),
    ("run.name=${run.device}", "run", "name", "auto"),
    ("eval.sample_prompts=[]", "eval", "sample_prompts", ()),
    ("experiment=[wsd]", "scheduler", "wsd_decay_type", "sqrt"),
    ("hydra.searchpath=[]", "model", "dim", 128),
]


@pytest.mark.parametrize(("typed", "section", "name", "value"), WORKS)
def test_what_works(typed: str, section: str, name: str, value: object) -> None:
    found = getattr(getattr(resolved(["optimizer=adamw", typed]).config, section), name)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("overrides", "params"),
    [
        (["sweeper.params.seed=1,2,3"], {"seed": "1,2,3"}),
        (["+sweeper.params.optimizer.lr=1e-3"], {"optimizer.lr": "1e-3"}),
        (
            ["sweeper.params={seed: '1,2', optimizer.lr: 5}", "sweeper.params.seed=range(1,3)"],
            {"seed": "range(1,3)", "optimizer.lr": "5"},
        ),
        (["sweeper.params.seed=1", "~sweeper.params.seed"], {}),
        (["sweeper.params.eval.enabled=true"], {"eval.enabled": "true"}),
    ],
)
def test_entries_of_a_dict_in_a_section(overrides: list[str], params: dict[str, str]) -> None:
    assert resolved(overrides).config.sweeper.params == params


def test_arms_are_lists_of_overrides() -> None:
    arms = ["sweep.ablation.arms.a=[]", "sweep.ablation.arms.b=['seed=1']"]
    section = resolved([*arms, "sweep.ablation.baseline=a"]).config.sweep.ablation
    assert section.arms == {"a": (), "b": ("seed=1",)}


@pytest.mark.parametrize(
    ("time", "minutes"),
    [("24:00:00", 1440), ("1-12", 2160), ("2-03:30", 3090), ("0:30:01", 31), ("12:30", None)],
)
def test_a_time_of_slurm_in_minutes(time: str, minutes: int | None) -> None:
    fix = f"launch.time={minutes}" if minutes else "for example launch.time=60"
    assert only(["launch=slurm", "run.device=cpu", f"launch.time={time}"]).fix == fix


def test_several_paths_in_one_value() -> None:
    data = ["data=text", "data.path=a.txt,b.txt"]
    over_all = "for one run over several files a directory that holds them, or a glob such as"
    assert over_all in only(data).fix
    fix = only(["data=text", "data.path=[a.txt,b.txt]"]).fix
    assert fix.startswith(f"data.path=a.txt,b.txt with -m, for a sweep over these; {over_all}")


@pytest.mark.parametrize("token", ["[SEP]", "[1]", "'[SEP]'"])
def test_brackets_belong_to_the_name_of_a_token(token: str) -> None:
    composition = compose.compose(["tokenizer=file", f"tokenizer.eos_token={token}"])
    assert composition.problems == []
    assert composition.tree.tokenizer.eos_token == token.strip("'")


def test_the_last_value_counts_and_a_wrong_one_before_it_is_reported() -> None:
    assert resolved(["train.max_steps=5", "train.max_steps=7"]).config.train.max_steps == 7
    assert resolved(["model=llama7b", "model=small"]).config.model.dim == 512
    found = only(["train.max_steps=abc", "train.max_steps=7"])
    assert (found.key, found.fix) == ("train.max_steps=abc", "for example train.max_steps=7")


def test_an_optional_group_can_be_switched_off_again() -> None:
    both = resolved(["experiment=wsd", "debug=fast", "debug=null", "experiment=null"]).config
    assert both == resolved().config
    assert resolved(["experiment=null", "experiment=wsd"]).config.scheduler != both.scheduler


def test_a_problem_is_reported_once() -> None:
    assert [p.key for p in problems(["run.num_processes=0"])] == ["run.num_processes=0"]
    two = ["scheduler.warmup_steps=-1", "scheduler.decay_steps=x"]
    assert [p.key for p in problems(two)] == two


def test_problems_come_in_the_order_they_were_typed() -> None:
    typed = "train.seq_len=9999 optimizer.lrr=1 model=lama7b train.batch_size=0 foo seed=abc"
    found = problems(typed.split())
    assert [p.key for p in found] == typed.split()
    assert found[3].what == "train.batch_size = 0: a micro-batch has a sequence or more."
    assert found[3].fix == "train.batch_size=1, or -1 to work it out"
