"""What a user may type, and what is said of everything else: one problem each, in these words."""

from __future__ import annotations

from pathlib import Path

import pytest
from advice import alternatives
from refusing import only, problems, resolved

from forge.compose import composition as compose
from forge.compose.grammar import read
from forge.config.packages import IMPORTABLE
from forge.config.problems import ConfigError

KEYS = "group=option or key=value, such as model=small or optimizer.lr=1e-3"
MODELS = "gpt2, llama13b, llama3_70b, llama3_8b, llama70b, llama7b, mixtral_8x7b, moe_small, moe_tiny, small, tiny"


def unread(value: str) -> str:
    return f"the value {value} cannot be read: a bracket or quote is left open, or a sign in it needs quotes."


def needs_quotes(value: str) -> str:
    return f"the value {value} cannot be read: a sign in it needs quotes."


MISSING = "a value is missing beside a comma."
RANGE, RANGE_FIX = (
    "range takes numbers, and a step that is not 0.",
    "'seed=range(START, STOP[, STEP])' with numbers",
)


def no_key(name: str) -> str:
    return f"'{name}' is no key: a key is made of letters a-z, digits, _ and dots."


ADAMW = "its options: lr, weight_decay, decay_embeddings, betas, eps, fused"
NOTHING_AROUND = "several values have commas between them, and nothing around them."
IS_SECTION, ONE_BY_ONE = "is a section of options;", "set its options one by one, like"
NO_SWEEP = "has several values, and this is not a sweep."
INTERPOLATION = "name an existing key in ${...}"
SAID = [
    # the grammar
    ("foo", "this is not key=value.", "write foo=..."),
    ("train.max_steps", "this is not key=value.", "write train.max_steps=..."),
    ("model/tiny", "this is not key=value.", "write model/tiny=..."),
    ("", "this is not key=value.", KEYS),
    ("~", "this is not key=value.", KEYS),
    ("=1", no_key(""), KEYS),
    ("a b=1", no_key("a b"), KEYS),
    ("größe=1", no_key("größe"), KEYS),
    ("train..max_steps=5", no_key("train..max_steps"), KEYS),
    ("train.=5", no_key("train."), KEYS),
    ("train.max_steps:5", "this is not key=value.", KEYS),
    ("optimizer.betas=[1", unread("[1"), "optimizer.betas is a list of numbers"),
    ("run.name=ü", unread("ü"), "to give it as a text: 'run.name=\"ü\"'"),
    ('run.name=a"b', unread('a"b'), 'to give it as a text: \'run.name="a\\"b"\''),
    ("run.name=~/x", unread("~/x"), "to give it as a text: 'run.name=\"~/x\"'"),
    ("train.max_steps==5", unread("=5"), "train.max_steps is an integer"),
    ("seed=${", unread("${"), "seed is an integer"),
    ("seed=int(abc)", unread("int(abc)"), "seed is an integer"),
    ("optimizer.lr=1e-3,", MISSING, "write optimizer.lr=1e-3"),
    ("optimizer.lr=,1e-3", MISSING, "write optimizer.lr=1e-3"),
    ("optimizer.lr=1,,2", MISSING, "write optimizer.lr=1,2"),
    ("optimizer.lr=, ,", MISSING, "write optimizer.lr=..."),
    ("optimizer.betas=[,0.9,,0.95,]", MISSING, "write optimizer.betas=[0.9,0.95]"),
    ('run.name="a,,b",', MISSING, "write 'run.name=\"a,,b\"'"),
    ("seed=choice(1,,2)", MISSING, "write seed=choice(1,2)"),
    ("seed=choice()", "choice takes values, with commas between them.", "'seed=choice(a, b)'"),
    ("seed=range(a,b)", RANGE, RANGE_FIX),
    ("seed=range(1,5,0)", RANGE, RANGE_FIX),
    ("seed=interval(1)", "interval takes two numbers.", "'seed=interval(LOW, HIGH)' with numbers"),
    (
        "eval.sample_prompts=[a=b, c]",
        needs_quotes("[a=b, c]"),
        "write 'eval.sample_prompts=[\"a=b\", c]'",
    ),
    ("eval.sample_prompts=a=b", needs_quotes("a=b"), "write 'eval.sample_prompts=[\"a=b\"]'"),
    (
        "sweep.ablation.arms.wide=[model.dim=256]",
        needs_quotes("[model.dim=256]"),
        "write 'sweep.ablation.arms.wide=[\"model.dim=256\"]'",
    ),
    (
        "sweep.ablation.arms.wide=model.dim=256",
        needs_quotes("model.dim=256"),
        "write 'sweep.ablation.arms.wide=[\"model.dim=256\"]'",
    ),
    (
        "sweep.ablation.arms={base: [], wide: [model.dim=256]}",
        needs_quotes("{base: [], wide: [model.dim=256]}"),
        "write 'sweep.ablation.arms={base: [], wide: [\"model.dim=256\"]}'",
    ),
    ("optimizer.betas[0]=0.5", "a list is given as a whole.", "optimizer.betas=[...]"),
    # groups
    (
        "model=lama7b",
        "there is no model named 'lama7b'.",
        "did you mean model=llama7b, model=llama70b or model=llama3_70b?",
    ),
    ("optimizer=nope", "there is no optimizer named 'nope'.", "options: adamw, adamw_large"),
    ("train=1", "there is no train named '1'.", "options: long, quick"),
    ("model=null", "there is no model named 'null'.", f"options: {MODELS}"),
    ("model=", "there is no model named ''.", f"options: {MODELS}"),
    ("model=true", "there is no model named 'true'.", f"options: {MODELS}"),
    ("precision=fp8", "there is no precision named 'fp8'.", "options: auto, bf16, fp16, fp32"),
    ("model=[tiny,small]", "model takes one option.", "one of them, or model=tiny,small with -m"),
    ("model=tiny,small", f"model {NO_SWEEP}", "choose one, or -m for a sweep"),
    ("model=glob(*)", f"model {NO_SWEEP}", "choose one, or -m for a sweep"),
    ("~model", "the group model cannot be removed.", f"choose one: {MODELS}"),
    ("~model=tiny", "the group model cannot be removed.", f"choose one: {MODELS}"),
    (
        "model={dim: 3}",
        "model is chosen by name; its values are set one by one.",
        "write model.dim=3",
    ),
    (
        "model={dimm: 3}",
        "model is chosen by name; its values are set one by one.",
        "write model.dimm=3",
    ),
    (
        "train={}",
        "train is chosen by name; its values are set one by one.",
        "choose one: long, quick",
    ),
    ("model@x=tiny", "model has one place in the config.", "write model=tiny"),
    ("+model@x=tiny", "model has one place in the config.", "write model=tiny"),
    (
        "schema=config",
        "there is no group or option 'schema'.",
        "python -m forge.train --help lists them",
    ),
    (
        "+schema/model=decoder",
        "there is no group 'schema/model', and options are written with dots.",
        "python -m forge.train --help lists them",
    ),
    (
        "debug.x=1",
        "debug is a group without options of its own.",
        "choose one of its files: debug=...",
    ),
    # keys
    ("optimizer.lrr=1", "AdamW has no option 'lrr'.", "did you mean optimizer.lr=1?"),
    ("modl.dim=3", "there is no group or option 'modl'.", "did you mean model.dim=3?"),
    ("modle=tiny", "there is no group or option 'modle'.", "did you mean model=tiny?"),
    ("sead=3", "there is no group or option 'sead'.", "did you mean seed=3?"),
    (
        "wramup=3",
        "there is no group or option 'wramup'.",
        "python -m forge.train --help lists them",
    ),
    (
        "train.warmup_steps=3",
        "Train has no option 'warmup_steps'.",
        "did you mean scheduler.warmup_steps=3?",
    ),
    ("seed.x=1", "seed is a value and has nothing below it.", "did you mean seed=1?"),
    (
        "optimizer.betas.0=0.5",
        "optimizer.betas is a list, and is given as a whole.",
        "optimizer.betas=[...]",
    ),
    (
        "optimizer/lr=1",
        "there is no group 'optimizer/lr', and options are written with dots.",
        "did you mean optimizer.lr=1?",
    ),
    ("seed@foo=3", "only a group takes @.", "write seed=3"),
    (
        "data.path=x",
        "PythonSource has no option 'path'. It belongs to data=text.",
        "choose data=text, or leave this out",
    ),
    ("+optimizer.foo=1", "AdamW has no option 'foo'.", ADAMW),
    ("++optimizer.foo=1", "AdamW has no option 'foo'.", ADAMW),
    ("+optimizer.lr=1", "optimizer.lr exists; + is for what does not.", "write optimizer.lr=1"),
    ("~optimizer.lr", "an option cannot be removed.", "give it a value: optimizer.lr=..."),
    ("~optimizer.lrr", "AdamW has no option 'lrr'.", "did you mean optimizer.lr?"),
    (
        "+experiment.lr=1",
        "experiment is a group without options of its own.",
        "choose one of its files: experiment=...",
    ),
    # keys of the seeds
    (
        "trainer.learning_rate=1",
        "there is no group or option 'trainer'.",
        "did you mean optimizer.lr=1?",
    ),
    (
        "distributed.tp=4",
        "there is no group or option 'distributed'.",
        "did you mean parallel.tp=4?",
    ),
    (
        "model.num_experts=8",
        "Decoder has no option 'num_experts'.",
        "did you mean model.moe.num_experts=8?",
    ),
    ("base_emb_dim=8", "there is no group or option 'base_emb_dim'.", "did you mean model.dim=8?"),
    ("lora.rank=8", "there is no group or option 'lora'.", "lora.rank comes later: LoRA"),
    (
        "scan_layers=true",
        "there is no group or option 'scan_layers'.",
        "scan_layers is left out: JAX: layers are never scanned here; train.compile_model compiles each block",
    ),
    (
        "stable_steps=3",
        "there is no group or option 'stable_steps'.",
        "it is scheduler.stable_steps here; choose scheduler=wsd, or leave this out",
    ),
    # what newcomers type
    (
        "scheduler.warmup_ratio=0.1",
        "Linear has no option 'warmup_ratio'.",
        "did you mean scheduler.warmup_steps=160? (0.1 of train.max_steps=1600)",
    ),
    (
        "min_lr=3e-5",
        "there is no group or option 'min_lr'.",
        "did you mean scheduler.min_lr_ratio=0.01? (of the peak, optimizer.lr=0.003)",
    ),
    (
        "optimizer.beta1=0.8",
        "AdamW has no option 'beta1'.",
        "did you mean optimizer.betas=[0.8,0.99]? (both in one list)",
    ),
    ("dropout=0.1", "there is no group or option 'dropout'.", "no model has dropout: leave it out"),
    (
        "bf16=false",
        "there is no group or option 'bf16'.",
        "leave it out; precision=bf16 switches it on",
    ),
    ("run.device=gpu", "run.device is one of auto, cpu, cuda.", "did you mean run.device=cuda?"),
    ("device=gpu", "there is no group or option 'device'.", "did you mean run.device=cuda?"),
    ("precision=float32", "there is no precision named 'float32'.", "did you mean precision=fp32?"),
    ("parallel=tp3", "there is no parallel named 'tp3'.", "did you mean parallel.tp=3?"),
    ("data=my.txt", "there is no data named 'my.txt'.", "did you mean data=text data.path=my.txt?"),
    ("name=x", "there is no group or option 'name'.", "did you mean run.name=x or sweep.name=x?"),
    (
        "train.compile=true",
        "Train has no option 'compile'.",
        "did you mean train.compile_model=true?",
    ),
    (
        "training=100",
        "there is no group or option 'training'.",
        "did you mean the group train? its options: long, quick",
    ),
    ("steps=many", "there is no group or option 'steps'.", "did you mean train.max_steps=1600?"),
    # dashes
    ("--optimizer.lr=3e-3", "options are typed without dashes.", "write optimizer.lr=3e-3"),
    (
        "--callbacks.ema._target_=x.EMA",
        "options are typed without dashes.",
        "write +callbacks.ema._target_=x.EMA",
    ),
    ("--model=smal", "options are typed without dashes.", "write model=small or model=moe_small"),
    (
        "--lr=3e-3",
        "options are typed without dashes, and there is no group or option 'lr'.",
        "did you mean optimizer.lr=3e-3?",
    ),
    (
        "--bf16",
        "options are typed without dashes, and there is no group or option 'bf16'.",
        "did you mean precision=bf16?",
    ),
    (
        "--learning-rate=3e-3",
        "options are typed without dashes, and there is no group or option 'learning_rate'.",
        "did you mean optimizer.lr=3e-3?",
    ),
    # values
    ("seed=abc", "seed is an integer; 'abc' is not.", "for example seed=42"),
    ("seed=1.5", "seed is an integer; '1.5' is not.", "for example seed=42"),
    ("seed=true", "seed is an integer; 'true' is not.", "for example seed=42"),
    ("seed=null", "seed cannot be null; it is an integer.", "for example seed=42"),
    (
        "optimizer.lr=null",
        "optimizer.lr cannot be null; it is a number.",
        "for example optimizer.lr=0.003",
    ),
    (
        "optimizer.lr=fast",
        "optimizer.lr is a number; 'fast' is not.",
        "for example optimizer.lr=0.003",
    ),
    ("run.inline=maybe", "run.inline is true or false; 'maybe' is not.", ""),
    ("run.trust=os.", "run.trust is a list of texts; 'os.' is not.", "run.trust=[os.]"),
    (
        "eval.sample_prompts=a b",
        "eval.sample_prompts is a list of texts; 'a b' is not.",
        "'eval.sample_prompts=[a b]'",
    ),
    (
        "eval.sample_prompts='a=b'",
        "eval.sample_prompts is a list of texts; ''a=b'' is not.",
        "\"eval.sample_prompts=['a=b']\"",
    ),
    (
        "optimizer.betas=0.9",
        "optimizer.betas is a list of numbers; '0.9' is not.",
        "for example optimizer.betas=[0.9,0.99]",
    ),
    (
        "optimizer.betas=null",
        "optimizer.betas cannot be null; it is a list of numbers.",
        "for example optimizer.betas=[0.9,0.99]",
    ),
    (
        "parallel.pp_layers=3",
        "parallel.pp_layers is a list of integers; '3' is not.",
        "parallel.pp_layers=[3]",
    ),
    ("parallel.pp_layers=x", "parallel.pp_layers is a list of integers; 'x' is not.", ""),
    (
        "train.max_steps=1e400",
        "train.max_steps is an integer; '1e400' is not.",
        "for example train.max_steps=1600",
    ),
    ("optimizer.lr=1e400", "optimizer.lr must be finite.", ""),
    ("optimizer.lr=nan", "optimizer.lr must be finite.", ""),
    ("run.name=[a]", "run.name is a text; '[a]' is not.", "run.name=a"),
    (
        "optimizer.lr=[1e-3,1e-2]",
        "optimizer.lr is a number; '[1e-3,1e-2]' is not.",
        "optimizer.lr=0.001,0.01 with -m, for a sweep over these",
    ),
    ("seed=[]", "seed is an integer; '[]' is not.", "for example seed=42"),
    (
        "model.ffn_hidden_dim=['${seed}',1]",
        "model.ffn_hidden_dim is an integer; '['${seed}',1]' is not.",
        "for example model.ffn_hidden_dim=null",
    ),
    ("seed=[1,a]", "seed is an integer; '[1,a]' is not.", "for example seed=42"),
    (
        "model.moe=3",
        f"model.moe {IS_SECTION} '3' is not.",
        f"{ONE_BY_ONE} model.moe.num_experts=...",
    ),
    (
        "model.moe=null",
        f"model.moe {IS_SECTION} 'null' is not.",
        f"{ONE_BY_ONE} model.moe.num_experts=...",
    ),
    (
        "sweep.ablation=[1]",
        f"sweep.ablation {IS_SECTION} '[1]' is not.",
        f"{ONE_BY_ONE} sweep.ablation.baseline=...",
    ),
    (
        "model.moe={a: 1}",
        "'{a: 1}' does not fit model.moe: Key 'a' not in 'MoE'.",
        f"{ONE_BY_ONE} model.moe.num_experts=...",
    ),
    ("sweep.arms.b=[]", "Sweep has no option 'arms'.", "did you mean sweep.ablation.arms.b=[]?"),
    ("sweeper.param.seed=1", "Basic has no option 'param'.", "did you mean sweeper.params.seed=1?"),
    ("optimizer.lr=(1e-3,1e-2)", NOTHING_AROUND, "write optimizer.lr=1e-3,1e-2"),
    ("optimizer.lr={1e-3,1e-2}", NOTHING_AROUND, "write optimizer.lr=1e-3,1e-2"),
    (
        "optimizer.lr=loguniform(1e-4,1e-2)",
        "there is no function loguniform().",
        "sweeps have choice, range, interval, glob, sort, shuffle and tag(log, interval(LOW, HIGH)); optimizer.lr is a number",
    ),
    (
        "optimizer.betas={a: 1}",
        "optimizer.betas is a list of numbers; '{a: 1}' is not.",
        "for example optimizer.betas=[0.9,0.99]",
    ),
    ("eval.sample_prompts=[[a]]", "eval.sample_prompts must be a list of texts.", ""),
    (
        "optimizer.betas=0.9,0.95",
        f"optimizer.betas {NO_SWEEP}",
        "optimizer.betas=[0.9,0.95] for a list, or -m for a sweep",
    ),
    (
        "run.name=a,b",
        f"run.name {NO_SWEEP}",
        "one value, or -m for a sweep; 'run.name=\"a,b\"' for a text",
    ),
    ("optimizer.lr=1,2", f"optimizer.lr {NO_SWEEP}", "one value, or -m for a sweep"),
    ("seed=range(1,5)", f"seed {NO_SWEEP}", "one value, or -m for a sweep"),
    ("run.name=???", "a value is missing.", "give one: run.name=..."),
    ("optimizer.betas=[???,0.9]", "a value is missing.", "give one: optimizer.betas=..."),
    (
        "optimizer.lr=${nokey.x}",
        "its interpolation fails: Interpolation key 'nokey.x' not found.",
        INTERPOLATION,
    ),
    (
        "optimizer.betas=['${nokey}',0.9]",
        "its interpolation fails: Interpolation key 'nokey' not found.",
        INTERPOLATION,
    ),
    ("seed=${seed}", "its interpolation fails: Recursive interpolation detected.", INTERPOLATION),
    (
        "seed=${nope:1}",
        "its interpolation fails: Unsupported interpolation type nope.",
        INTERPOLATION,
    ),
    # Hydra's own
    ("hydra.run.dir=x", "forge makes its own run directory.", "write run.dir=x"),
    ("hydra.job.name=x", "forge makes its own run directory.", "write run.name=x"),
    (
        "hydra/launcher=joblib",
        "there is no launch named 'joblib'.",
        "options: local, slurm, submitit_local",
    ),
    (
        "hydra.verbose=true",
        "Hydra's own settings have no effect on a run of forge.",
        "of hydra.*, forge reads hydra.searchpath, and of a sweep hydra/launcher, hydra.launcher.*, hydra/sweeper and hydra.sweeper.*",
    ),
    (
        "~hydra.searchpath",
        "hydra.searchpath is a list of directories.",
        "hydra.searchpath=[my/conf]",
    ),
    (
        "hydra.searchpath=conf",
        "hydra.searchpath is a list of directories.",
        "hydra.searchpath=[my/conf]",
    ),
    (
        "hydra.searchpath=[/nonexistent]",
        "there is no directory or package /nonexistent.",
        "give an existing one",
    ),
    (
        "hydra.searchpath=[pkg://nope.conf]",
        "there is no package nope, which nope.conf is in.",
        IMPORTABLE,
    ),
    (
        "hydra.searchpath=[s3://x]",
        "s3://x is neither a directory nor a package.",
        "hydra.searchpath=[my/conf] or [pkg://my.conf]",
    ),
]


@pytest.mark.parametrize(
    ("typed", "what", "fix"), SAID, ids=[typed or "nothing" for typed, *_ in SAID]
)
def test_what_is_said(typed: str, what: str, fix: str):
    found = only([typed])
    assert (found.what, found.fix) == (what, fix)
    assert found.where == "command line"


@pytest.mark.parametrize(
    ("time", "minutes"),
    [
        ("24:00:00", 1440),
        ("1-00:00:00", 1440),
        ("1-12", 2160),
        ("2-03:30", 3090),
        ("0:30:01", 31),
        ("12:30", None),
        ("1 h", None),
    ],
)
def test_a_time_of_slurm_in_minutes(time: str, minutes: int | None):
    found = only(["launch=slurm", "run.device=cpu", f"launch.time={time}"])
    fix = f"launch.time={minutes}" if minutes else "for example launch.time=60"
    assert (found.what, found.fix) == (f"launch.time is an integer; '{time}' is not.", fix)


@pytest.mark.parametrize(
    "fix", [*dict.fromkeys(fix for *_, fix in SAID if alternatives(fix)), "write seed=1"]
)
def test_what_is_advised_can_be_typed(fix: str):
    """But for what is then several values, or an option with a mistake of its own."""
    for words in alternatives(fix):
        left = [
            p.what for p in problems(words, as_point=True) if not p.rule and NO_SWEEP not in p.what
        ]
        assert left == (["Decoder has no option 'dimm'."] if fix == "write model.dimm=3" else []), (
            words
        )


@pytest.mark.parametrize(
    ("overrides", "config_dirs", "key"),
    [
        ([], ["my/nope"], "--config-dir my/nope"),
        (["hydra.searchpath=[my/nope]"], [], "hydra.searchpath"),
    ],
)
def test_a_folder_that_is_not_there_comes_before_what_comes_of_it(
    overrides: list[str], config_dirs: list[str], key: str
):
    first, second = problems(["experiment=mine", *overrides], config_dirs=config_dirs)
    assert (first.key, first.what) == (
        key,
        f"there is no directory or package {Path('my/nope').resolve()}.",
    )
    assert second.what == "there is no experiment named 'mine'."


WORKS = [
    ("++optimizer.lr=0.5", "optimizer", "lr", 0.5),
    ("+model=small", "model", "dim", 512),
    ("++model=small", "model", "dim", 512),
    ("train.max_steps=1e5", "train", "max_steps", 100_000),
    ("train.max_steps=1_000", "train", "max_steps", 1000),
    ("optimizer.lr='0.5'", "optimizer", "lr", 0.5),
    ("optimizer.lr=1", "optimizer", "lr", 1.0),
    ("model.n_kv_heads=null", "model", "n_kv_heads", 4),
    ("optimizer.betas=[0,0.5]", "optimizer", "betas", (0.0, 0.5)),
    ("run.name=1.50", "run", "name", "1.50"),
    ('run.name="ü = [x"', "run", "name", "ü = [x"),
    ("run.name=${run.device}", "run", "name", "auto"),
    ("eval.sample_prompts=[]", "eval", "sample_prompts", ()),
    ("experiment=[wsd]", "scheduler", "wsd_decay_type", "sqrt"),
    ("hydra.searchpath=[]", "model", "dim", 256),
]


@pytest.mark.parametrize(
    ("typed", "section", "name", "value"), WORKS, ids=[typed for typed, *_ in WORKS]
)
def test_what_works(typed: str, section: str, name: str, value: object):
    small = (
        ["model.n_heads=4", "model.dim=256"] if section == "model" and "small" not in typed else []
    )
    found = getattr(getattr(resolved([*small, typed]).config, section), name)
    assert found == value
    assert type(found) is type(value)


def test_the_last_value_wins():
    assert resolved(["train.max_steps=5", "train.max_steps=7"]).config.train.max_steps == 7
    assert resolved(["model=llama7b", "model=small"]).config.model.dim == 512


def test_a_wrong_value_is_reported_though_a_right_one_follows():
    assert only(["train.max_steps=abc", "train.max_steps=7"]).key == "train.max_steps=abc"


def test_an_optional_group_can_be_switched_off_again():
    plain, both = (
        resolved().config,
        resolved(["experiment=wsd", "debug=fast", "debug=null", "experiment=null"]).config,
    )
    assert both == plain
    assert resolved(["experiment=null", "experiment=wsd"]).config.scheduler != plain.scheduler


def test_no_two_spellings_of_several_paths_point_at_each_other():
    over_all = "for one run over several files a directory that holds them, or a glob such as 'data.path=texts/*.txt'"
    found = only(["data=text", "data.path=a.txt,b.txt"])
    assert (
        found.fix
        == "one value, or -m for a sweep; 'data.path=\"a.txt,b.txt\"' for a text; " + over_all
    )
    found = only(["data=text", "data.path=[a.txt,b.txt]"])
    assert found.fix == f"data.path=a.txt,b.txt with -m, for a sweep over these; {over_all}"


@pytest.mark.parametrize("token", ["[SEP]", "[1]", "'[SEP]'"])
def test_brackets_belong_to_the_name_of_a_token(token: str):
    composition = compose.compose(["tokenizer=file", f"tokenizer.eos_token={token}"])
    assert composition.problems == []
    assert composition.tree.tokenizer.eos_token == token.strip("'")


@pytest.mark.parametrize(
    "typed",
    ["run.name=ü", "run.name=a b(", 'run.name=a"b\\', "data.path=~/my text.txt", "run.name=a,b"],
)
def test_the_quotes_that_are_advised_work(typed: str):
    key, _, value = typed.partition("=")
    fix = getattr(read(typed), "fix", f"'{key}=\"{value}\"'")
    advised = read(fix.rpartition("text: ")[2].strip("'"))
    assert getattr(advised, "value", str)() == value


def test_a_problem_is_not_reported_twice():
    assert [p.key for p in problems(["run.num_processes=0"])] == ["run.num_processes=0"]
    assert [p.key for p in problems(["data=text", "data.path=[a]"])] == ["data.path=[a]"]
    assert [p.key for p in problems(["scheduler.warmup_steps=-1", "scheduler.decay_steps=x"])] == [
        "scheduler.warmup_steps=-1",
        "scheduler.decay_steps=x",
    ]


def test_problems_come_in_the_order_they_were_typed():
    typed = [
        "train.seq_len=9999",
        "optimizer.lrr=1",
        "model=lama7b",
        "train.batch_size=0",
        "foo",
        "seed=abc",
    ]
    assert [p.key for p in problems(typed)] == typed


def test_a_text_instead_of_a_list_of_overrides():
    with pytest.raises(ConfigError, match="overrides come as a list of texts") as refused:
        compose.config("model=tiny")
    assert "compose(['model=tiny'])" in str(refused.value)


def test_absurdly_long_input_is_refused_as_any_other():
    assert only([f"{'x' * 5000}=1"]).what.startswith("there is no group or option 'xxx")
    assert only(["data=text", f"data.path={'x' * 5000}"]).what.endswith(
        "and as a glob it matches nothing."
    )
    assert only([f"run.dir={'x' * 300}/y{chr(0)}"]) is not None
