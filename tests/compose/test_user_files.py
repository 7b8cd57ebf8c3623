"""YAML files of the user's own: what works, and how each mistake in one is refused, with the file's
name and no traceback.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from refusing import only, problems, resolved

from forge.compose.many import Composer

Write = Callable[[str, str], str]
CORRECT = "correct the file"
GLOBAL = "# @package _global_\n"

BROKEN = {
    "an unknown option of a group": (
        "defaults:\n  - override /optimizer: adamv\n",
        ":3",
        "there is no optimizer named 'adamv', which the file asks for.",
        "did you mean optimizer: adamw?",
    ),
    "an unknown group": (
        "defaults:\n  - override /modl: tiny\n",
        "",
        "there is no group modl to override.",
        "did you mean override /model?",
    ),
    "a group without a slash": (
        "defaults:\n  - model: small\n",
        "",
        "model is looked for beside this file, as '/' is missing.",
        "write '- override /model: small'",
    ),
    "several options of a group": (
        "defaults:\n  - override /model: tiny,small\n",
        ":3",
        "the file chooses one model, and 'tiny,small' are several.",
        "one of them; a sweep over these is sweeper.params: {model: 'tiny,small'}",
    ),
    "several values": (
        "optimizer:\n  lr: 1e-3,3e-3\n",
        ":3",
        "optimizer.lr is a number; '1e-3,3e-3' is not.",
        "one value; a sweep over these is sweeper.params: {optimizer.lr: '1e-3,3e-3'}",
    ),
    "a list of values": (
        "train:\n  seq_len: [64, 128]\n",
        ":3",
        "train.seq_len is an integer; [64,128] is not.",
        "one value; a sweep over these is sweeper.params: {train.seq_len: '64,128'}",
    ),
    "a list of one value": (
        "run:\n  name: [a]\n",
        ":3",
        "run.name is a text or null; ['a'] is not.",
        "name: a",
    ),
    "an integer with an exponent": (
        "train:\n  max_steps: 1e3\n",
        ":3",
        "train.max_steps is an integer; '1e3' is not.",
        "max_steps: 1000",
    ),
    "a parameter without values": (
        "sweeper:\n  params:\n    seed:\n",
        ":4",
        "sweeper.params.seed is a text; null is not.",
        "seed: 'A,B', or leave it out",
    ),
    "parameters of the wrong section": (
        "sweep:\n  params: {}\n",
        ":3",
        "Sweep has no option 'params'.",
        "did you mean sweeper.params?",
    ),
    "an arm named yes": (
        "sweep:\n  ablation:\n    arms: {yes: []}\n",
        ":4",
        "the names in sweep.ablation.arms are texts, and YAML reads yes as true or false.",
        "'yes' in quotes",
    ),
    "an arm named null": (
        "sweep:\n  ablation:\n    arms: {null: []}\n",
        ":4",
        "the names in sweep.ablation.arms are texts, and YAML reads null as null.",
        "'null' in quotes",
    ),
    "a parameter named 1": (
        "sweeper:\n  params: {1: a}\n",
        ":3",
        "the names in sweeper.params are texts, and YAML reads 1 as a number.",
        "'1' in quotes",
    ),
    "an unknown key": (
        "optimizer:\n  lr: 1e-3\n  lrr: 1\n",
        ":4",
        "AdamW has no option 'lrr'.",
        "did you mean lr: 1?",
    ),
    "an option by another name": (
        "optimizer:\n  learning_rate: 1e-3\n",
        ":3",
        "AdamW has no option 'learning_rate'.",
        "did you mean lr: 1e-3?",
    ),
    "an option of another choice": (
        "launch:\n  time: 60\n",
        ":3",
        "Local has no option 'time'. It belongs to launch=slurm.",
        "choose launch=slurm, or leave this out",
    ),
    "an option that is worked out": (
        "scheduler:\n  warmup_ratio: 0.1\n",
        ":3",
        "Linear has no option 'warmup_ratio'.",
        "did you mean warmup_steps: 160? (0.1 of train.max_steps=1600)",
    ),
    "an unknown section": (
        "optimiser:\n  lr: 1\n",
        ":2",
        "there is no group or option 'optimiser'.",
        "did you mean optimizer?",
    ),
    "Hydra's settings": (
        "hydra:\n  run: {dir: x}\n",
        ":2",
        "there is no group or option 'hydra'.",
        "python -m forge.train --help lists them",
    ),
    "a wrong type": (
        "train:\n  max_steps: soon\n",
        ":3",
        "train.max_steps is an integer; 'soon' is not.",
        "for example max_steps: 1600",
    ),
    "one number for several": (
        "optimizer:\n  betas: 0.9\n",
        ":3",
        "optimizer.betas is a list of numbers; 0.9 is not.",
        "for example betas: [0.9, 0.99]",
    ),
    "a text for a list": (
        "eval:\n  sample_prompts: Hello, you\n",
        ":3",
        "eval.sample_prompts is a list of texts; 'Hello, you' is not.",
        "sample_prompts: ['Hello, you']",
    ),
    "a token without quotes": (
        "defaults:\n  - override /tokenizer: file\ntokenizer:\n  eos_token: [SEP]\n",
        ":5",
        "tokenizer.eos_token is a text or null; ['SEP'] is not.",
        "eos_token: '[SEP]'",
    ),
    "a time": (
        "defaults:\n  - override /launch: slurm\nlaunch:\n  time: 1-00:00:00\n",
        ":5",
        "launch.time is an integer; '1-00:00:00' is not.",
        "time: 1440",
    ),
    "a list for a dict": (
        "sweeper:\n  params: [seed]\n",
        ":3",
        "sweeper.params is a dict of entries by name; ['seed'] is not.",
        CORRECT,
    ),
    "a section that is a number": (
        "optimizer: 5\n",
        ":2",
        "optimizer is a section of options; 5 is not.",
        "its options go below it, like 'optimizer: {lr: ...}'; "
        "to choose one of adamw, adamw_large, '- override /optimizer: ...' in the defaults list",
    ),
    "a section that is null": (
        "train: null\n",
        ":2",
        "train is a section of options; null is not.",
        "its options go below it, like 'train: {batch_size: ...}'; "
        "to choose one of long, quick, '- override /train: ...' in the defaults list",
    ),
    "a section that is a name": (
        "launch: slurm\n",
        ":2",
        "launch is a section of options; 'slurm' is not.",
        "to choose it, '- override /launch: slurm' in the defaults list",
    ),
    "Hydra's launcher as a name": (
        "hydra:\n  launcher: submitit_slurm\n",
        ":3",
        "launch is a section of options; 'submitit_slurm' is not.",
        "to choose it, '- override /launch: slurm' in the defaults list",
    ),
    "a section that is a list": (
        "sweep:\n  ablation: [base]\n",
        ":3",
        "sweep.ablation is a section of options; ['base'] is not.",
        "its options go below it, like 'ablation: {baseline: ...}'",
    ),
    "a section below a section": (
        "model:\n  moe: 3\n",
        ":3",
        "model.moe is a section of options; 3 is not.",
        "its options go below it, like 'moe: {num_experts: ...}'",
    ),
    "another model": (
        "defaults:\n  - /model: small\n",
        "",
        "the defaults list chooses model again, which has been chosen.",
        "write '- override /model: ...'",
    ),
    "no model": (
        "defaults:\n  - override /model: null\n",
        "",
        "this leaves no model.",
        "choose one: model=...",
    ),
    "two models": (
        "defaults:\n  - /model: tiny\n",
        "",
        "the defaults list chooses model again, which has been chosen.",
        "write '- override /model: ...'",
    ),
    "an open bracket": (
        "optimizer: {betas: [1\n",
        ":3",
        "the file is not YAML: expected ',' or ']', but got '<stream end>'.",
        CORRECT,
    ),
    "a tab": (
        "\toptimizer: 1\n",
        ":2",
        "the file is not YAML: found character '\\t' that cannot start any token.",
        CORRECT,
    ),
    "a key twice": (
        "optimizer:\n  lr: 1\n  lr: 2\n",
        ":4",
        "the file is not YAML: found duplicate key lr.",
        CORRECT,
    ),
    "a Python object": (
        "seed: !!python/object/apply:os.getpid []\n",
        ":2",
        "the file is not YAML: could not determine a constructor for the tag 'tag:yaml.org,2002:python/object/apply:os.getpid'.",
        CORRECT,
    ),
    "a defaults list that is none": (
        "defaults: tiny\n",
        "",
        "this does not compose: Invalid defaults list in 'experiment/mine', defaults must be a list (got str).",
        CORRECT,
    ),
    "a file that includes itself": (
        "defaults:\n  - mine\n",
        "",
        "the defaults list leads back to this file.",
        CORRECT,
    ),
    "a missing file": (
        "defaults:\n  - yours\n",
        "",
        "there is no experiment named 'yours', which the file asks for.",
        "",
    ),
}


@pytest.mark.parametrize(("text", "line", "what", "fix"), BROKEN.values(), ids=BROKEN)
def test_a_broken_experiment(text: str, line: str, what: str, fix: str, write: Write):
    folder = write("experiment/mine.yaml", GLOBAL + text)
    (found,) = [
        p for p in problems(["experiment=mine"], config_dirs=[folder]) if p.where.startswith(folder)
    ]
    assert (found.what, found.key, found.where) == (
        what,
        "experiment=mine",
        f"{folder}/experiment/mine.yaml{line}",
    )
    assert found.fix == fix or (not fix and found.fix)


IS_ARM = "sweep.ablation.arms.other is a list of overrides;"
IS_ARMS = "sweep.ablation.arms is a dict of lists of overrides, by the names of the arms;"
WRONG_ABLATIONS = [
    ("arms: {other: model.dim=64}", f"{IS_ARM} 'model.dim=64' is not.", "other: [model.dim=64]"),
    (
        "arms: {other: 'model.dim=64,seed=2'}",
        f"{IS_ARM} 'model.dim=64,seed=2' is not.",
        "other: [model.dim=64, seed=2]",
    ),
    (
        "arms: {other: 'optimizer.betas=[0,1]'}",
        f"{IS_ARM} 'optimizer.betas=[0,1]' is not.",
        "other: ['optimizer.betas=[0,1]']",
    ),
    ("arms: {other: null}", f"{IS_ARM} null is not.", "other: []"),
    (
        "arms: {other: {optimizer.lr: 0.01}}",
        f"{IS_ARM} {{optimizer.lr: 0.01}} is not.",
        "other: [optimizer.lr=0.01]",
    ),
    (
        "arms: {other: [optimizer.lr: 0.01]}",
        f"{IS_ARM} [{{optimizer.lr: 0.01}}] is not.",
        "other: [optimizer.lr=0.01]",
    ),
    ("arms: {other: 3}", f"{IS_ARM} 3 is not.", CORRECT),
    ("arms: [base, other]", f"{IS_ARMS} ['base','other'] is not.", "arms: {base: [], other: []}"),
    ("arms: null", f"{IS_ARMS} null is not.", "arms: {base: [], wide: [model.dim=256]}"),
    ("seeds: 1,2", "sweep.ablation.seeds is a list of integers; '1,2' is not.", "seeds: [1, 2]"),
    ("seeds: 3", "sweep.ablation.seeds is a list of integers; 3 is not.", "seeds: [3]"),
    ("seeds: [a]", "sweep.ablation.seeds is a list of integers; ['a'] is not.", CORRECT),
]


@pytest.mark.parametrize(
    ("text", "what", "fix"), WRONG_ABLATIONS, ids=[text for text, *_ in WRONG_ABLATIONS]
)
def test_an_ablation_of_wrong_types(text: str, what: str, fix: str, write: Write):
    folder = write("experiment/mine.yaml", f"{GLOBAL}sweep:\n  ablation:\n    {text}\n")
    found = only(["experiment=mine"], config_dirs=[folder])
    assert (found.what, found.fix, found.where) == (what, fix, f"{folder}/experiment/mine.yaml:4")


SEVERAL = {
    "[1e-3, 3e-3]": "0.001,0.003",
    "[5]": "5",
    "[true, null, a b]": "true,null,a b",
    "[[0.9, 0.95], [0.9, 0.99]]": "[0.9,0.95],[0.9,0.99]",
    "['range(1,3)', 7]": "range(1,3),7",
    "1e-3,3e-3": "1e-3,3e-3",
}


@pytest.mark.parametrize(("written", "values"), SEVERAL.items(), ids=SEVERAL)
def test_several_values_as_a_list(written: str, values: str, write: Write):
    folder = write("experiment/mine.yaml", f"{GLOBAL}sweeper:\n  params:\n    train.x: {written}\n")
    assert resolved(["experiment=mine"], config_dirs=[folder]).config.sweeper.params == {
        "train.x": values
    }
    assert Composer([folder])(["experiment=mine"])[1].sweeper.params == {"train.x": values}


@pytest.mark.parametrize(
    ("text", "key", "what", "fix"),
    [
        (
            "optimizer: {lr: '1e-3,3e-3', eps: [1, 2]}",
            "sweeper.params.optimizer",
            "sweeper.params has dotted keys, with nothing below them.",
            "optimizer.lr: 1e-3,3e-3; optimizer.eps: 1,2",
        ),
        ("seed: []", "sweeper.params.seed", "it stands for no value at all.", "at least one"),
        ("seed: {}", "sweeper.params.seed", "it stands for no value at all.", "at least one"),
    ],
)
def test_what_varies_in_another_form(text: str, key: str, what: str, fix: str, write: Write):
    folder = write("experiment/mine.yaml", f"{GLOBAL}sweeper:\n  params:\n    {text}\n")
    found = only(["experiment=mine"], config_dirs=[folder])
    assert (found.key, found.what, found.fix, found.where) == (
        key,
        what,
        fix,
        f"{folder}/experiment/mine.yaml:4",
    )


CHECKED_LATER = {
    "a value out of bounds": (
        "optimizer:\n  lr: -1\n",
        "optimizer.lr=-1.0",
        ":3",
        "optimizer.lr must be greater than 0.",
    ),
    "a target outside the allow-list": (
        "optimizer:\n  _target_: os.system\n",
        "optimizer._target_=os.system",
        ":3",
        "os.system may not be built for optimizer: it is under no trusted prefix.",
    ),
    "trust": ("run:\n  trust: [os.]\n", "run.trust", ":3", "a file sets run.trust."),
    "trust by interpolation": (
        "run:\n  trust: ${eval.sample_prompts}\n",
        "run.trust",
        ":3",
        "a file sets run.trust.",
    ),
    "an interpolation to nothing": (
        "run:\n  name: ${nokey}\n",
        "run.name",
        ":3",
        "its interpolation fails: Interpolation key 'nokey' not found.",
    ),
    "a list in a list": (
        "eval:\n  sample_prompts: [[a]]\n",
        "eval.sample_prompts=[['a']]",
        ":3",
        "eval.sample_prompts must be a list of texts.",
    ),
    "a rule": ("train:\n  seq_len: 99999\n", "train.seq_len=99999", ":3", None),
}


@pytest.mark.parametrize(("text", "key", "line", "what"), CHECKED_LATER.values(), ids=CHECKED_LATER)
def test_an_experiment_that_composes_and_cannot_run(
    text: str, key: str, line: str, what: str | None, write: Write
):
    folder = write("experiment/mine.yaml", GLOBAL + text)
    found = only(["experiment=mine"], config_dirs=[folder])
    assert (found.key, found.where) == (key, f"{folder}/experiment/mine.yaml{line}")
    assert what is None or found.what == what


@pytest.mark.parametrize(
    "text",
    ["", "x", "- a\n", "optimizer:\n  lr: 1\n"],
    ids=["empty", "a word", "a list", "no package"],
)
def test_an_experiment_without_its_first_line(text: str, write: Write):
    folder = write("experiment/mine.yaml", text)
    found = only(["experiment=mine"], config_dirs=[folder])
    assert (found.what, found.fix) == (
        "its values have no place under 'experiment'.",
        "start the file with # @package _global_",
    )


def test_bytes_that_are_no_text(write: Write):
    folder = write("experiment/mine.yaml", "")
    Path(folder, "experiment", "mine.yaml").write_bytes(b"\xff\xfe\x00")
    assert only(["experiment=mine"], config_dirs=[folder]).what == "the file is not UTF-8 text."


def test_a_broken_file_takes_nothing_else_with_it(write: Write):
    folder = write("experiment/mine.yaml", GLOBAL + "optimizer: {betas: [1\n")
    told = [
        "data=text",
        "experiment=mine",
        "data.path=/nowhere",
        "optimizer.lrr=1",
        "model=small",
        "train.seq_len=2049",
    ]
    found = problems(told, config_dirs=[folder])
    assert [p.key for p in found] == [
        "experiment=mine",
        "data.path=/nowhere",
        "optimizer.lrr=1",
        "train.seq_len=2049",
    ]
    assert "(2048)" in found[-1].what, "model=small still counts"


def test_two_broken_files_are_both_reported(write: Write):
    write("experiment/mine.yaml", GLOBAL + "nokey: 1\n")
    folder = write("model/mine.yaml", "dim: 64\n")
    first, second = problems(["experiment=mine", "model=mine"], config_dirs=[folder])
    assert (first.key, second.key) == ("experiment=mine", "model=mine")
    assert second.fix == "start the file with 'defaults: [/schema/model@_here_: decoder, _self_]'"


def test_a_wrong_choice_of_a_file_hides_nothing_else(write: Write):
    text = "defaults:\n  - override /model: tinyy\n  - override /scheduler: cosin\noptimizer:\n  lrr: 1\ntrain:\n  seq_len: 4096\n"
    folder = write("experiment/mine.yaml", GLOBAL + text)
    found = problems(["experiment=mine"], config_dirs=[folder])
    assert [
        (p.where.removeprefix(f"{folder}/experiment/mine.yaml"), p.what, p.fix) for p in found
    ] == [
        (
            ":3",
            "there is no model named 'tinyy', which the file asks for.",
            "did you mean model: tiny or model: moe_tiny?",
        ),
        (
            ":4",
            "there is no scheduler named 'cosin', which the file asks for.",
            "did you mean scheduler: cosine?",
        ),
        (":6", "AdamW has no option 'lrr'.", "did you mean lr: 1?"),
        (
            ":8",
            "train.seq_len (4096) exceeds model.max_seq_len (512).",
            "train.seq_len=512 or model.max_seq_len=4096",
        ),
    ]


def test_all_mistakes_of_a_file_are_told_at_once(write: Write):
    text = """\
defaults:
  - override /scheduler: wsd
optimizer:
  lrr: 1
  lr: fast
  eps: 1.0e-6
train:
  seq_len: 4096
  max_steps: [10, 20]
hydra:
  sweeper:
    param: 3
modl:
  dim: 3
  n_heads: 4
sweep: x
"""
    write("model/mine.yaml", "defaults:\n  - tiny\n  - _self_\nn_layer: 3\ndim: 256\n")
    folder = write("experiment/mine.yaml", GLOBAL + text)
    told = ["experiment=mine", "scheduler.foo=1", "model=mine", "train.batch_size=0"]
    found = problems(told, config_dirs=[folder])
    experiment, model = f"{folder}/experiment/mine.yaml", f"{folder}/model/mine.yaml"
    assert [(p.key, p.where, p.what) for p in found] == [
        ("experiment=mine", f"{experiment}:5", "AdamW has no option 'lrr'."),
        ("experiment=mine", f"{experiment}:6", "optimizer.lr is a number; 'fast' is not."),
        ("experiment=mine", f"{experiment}:10", "train.max_steps is an integer; [10,20] is not."),
        ("experiment=mine", f"{experiment}:14", "there is no group or option 'modl'."),
        ("experiment=mine", f"{experiment}:17", "sweep is a section of options; 'x' is not."),
        ("experiment=mine", f"{experiment}:13", "Basic has no option 'param'."),
        ("scheduler.foo=1", "command line", "WSD has no option 'foo'."),
        ("model=mine", f"{model}:4", "Decoder has no option 'n_layer'."),
        ("train.batch_size=0", "command line", "a micro-batch of no sequence trains nothing."),
        (
            "train.seq_len=4096",
            f"{experiment}:9",
            "train.seq_len (4096) exceeds model.max_seq_len (512).",
        ),
    ]


def test_a_file_that_two_choices_bring_is_told_of_once(write: Write):
    write("model/mine.yaml", "defaults:\n  - tiny\n  - _self_\nn_layer: 3\n")
    folder = write("experiment/mine.yaml", GLOBAL + "defaults:\n  - override /model: mine\n")
    found = only(["experiment=mine"], config_dirs=[folder])
    assert (found.key, found.where) == ("model=mine", f"{folder}/model/mine.yaml:4")
