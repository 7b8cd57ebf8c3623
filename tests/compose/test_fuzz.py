"""Any command line is run or refused: never a traceback, never exit 0 for a wrong one, nothing
written by a refused one. Lines are put together at random from words with a known verdict.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import forge.train
import forge.worker
from forge import check, cli, explain
from forge.config import problems as errors
from forge.config import schemas
from forge.config.problems import Problem
from forge.launch.local import processes
from forge.planning.world import Devices
from forge.resolve import resolve as resolving

LINES = int(os.environ.get("FORGE_FUZZ_EXAMPLES", "100"))
OPTIONS = sorted({key for key, *_ in schemas.walk_options()})
PLAIN = [key for key in OPTIONS if key.startswith(("train.", "eval.", "run.", "metrics."))]
RIGHT = [
    "seed=7", "++train.max_steps=900", "optimizer.lr=1e-9", "optimizer.betas=[0,0.5]",
    "eval.sample_prompts=['ü, b','']", 'run.name="a/ü [x"', "model=small", "+precision=fp32",
    "scheduler=wsd", "tokenizer=bpe", "train=quick", "debug=null", "experiment=null",
    "run.root=empty", 'run.root="~/elsewhere"', "hydra.searchpath=[conf]", "-cd=conf",
    "checkpoint.interval=${train.max_steps}", "data.cache_dir=empty/cache", "run.dir='ü/ö x'",
]  # fmt: skip
USAGE = ["-x"]
COMPOSE = [
    *(f"{key}[0]=1" for key in OPTIONS), *(f"~{key}" for key in PLAIN),
    *(f"+{key}=1" for key in PLAIN), *(f"{key}.deeper=1" for key in PLAIN),
    *(f"{group}.lrr=1" for group in schemas.sections()), "modl.dim=3", "schema/model=1", "a.b=x",
    "hydra.run.dir=x", "+hydra.foo=1", "hydra.searchpath=[nowhere]", "hydra.searchpath=[s3://x]",
    "model=''", "data=../x", "parallel=[a,b]", "train={a: 1}", "eval=a,b", "++model=no_such",
    "train.max_steps=abc", "seed=1.5", "seed=true", "optimizer.lr=[1]", "run.inline=3",
    "eval.interval=1e400", f"model.dim={'9' * 400}", "run.trust=os.", "train.seq_len=1,2",
    "optimizer.eps=[1", "run.name=${", 'run.name="x', "eval.steps=@", "ü=1", ".a=1", "a b=1", "-9",
    "--foo",
]  # fmt: skip
VALUE = [
    "seed=-1", "optimizer.lr=0", "optimizer.lr=nan", "train.grad_clip_norm=-inf",
    "train.max_steps=10000000000000000000", "run.device=gpu", "eval.metric=x",
    "profiling.ranks=[-1]",
]  # fmt: skip
RULE = [
    "run.dir=full", "run.dir=damaged", "run.dir='a file.txt'", "run.dir=''", "run.device=cuda",
    "parallel.tp=7", "checkpoint.init_from=nowhere", "checkpoint.resume_from=nowhere",
    "optimizer._target_=os.system", "model._target_=forge.no.No", "train.seq_len=99999999",
    "+callbacks.mine=3", "+trackers.mine=3", "run.objective=eval/nothing",
]  # fmt: skip
STAGES = [USAGE, COMPOSE, VALUE, RULE]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with files that words name, home and cache beside it; nothing is trained there."""
    place = tmp_path_factory.mktemp("desk").resolve()
    for folder in ("home", "cache", "work/empty", "work/full", "work/damaged", "work/conf"):
        (place / folder).mkdir(parents=True)
    for name, text in {"a file.txt": "text", "full/x": "x", "damaged/config.yaml": "a: ["}.items():
        (place / "work" / name).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(place / "home"))
        patch.setenv("FORGE_CACHE", str(place / "cache"))
        patch.chdir(place / "work")
        patch.delenv("WORLD_SIZE", raising=False)
        patch.setattr(processes, "start", lambda *_, **__: 0)
        patch.setattr(forge.worker, "main", lambda *_, **__: 0)
        patch.setattr(resolving, "find_devices", lambda: Devices(gpus=0, source="the test"))
        yield place


def tree(place: Path) -> dict[Path, tuple[int, int]]:
    """Every path below a folder, with size and time of change."""
    return {path: (path.lstat().st_size, path.lstat().st_mtime_ns) for path in place.rglob("*")}


def key_of(word: str) -> str:
    return word.lstrip("+~").partition("=")[0].partition("[")[0]


def line(draw: random.Random) -> list[str]:
    """A few right words, mostly with wrong ones; none that hides another."""
    words = draw.sample(RIGHT, draw.randint(0, 4))
    words += [draw.choice(draw.choice(STAGES)) for _ in range(draw.choice([0, 1, 1, 2, 3]))]
    draw.shuffle(words)
    kept: list[str] = []
    for word in words:
        key, others = f"{key_of(word)}.", [f"{key_of(other)}." for other in kept]
        if not any(other.startswith(key) or key.startswith(other) for other in others):
            kept.append(word)
    return kept


def say(verb: str, words: Sequence[str]) -> tuple[object, str, str, list[Problem]]:
    """Type a line in this process: the exit code, what was printed, the problems."""
    main = {"check": check.main, "explain": explain.main}.get(verb, forge.train.main)
    given = ["-cd", "conf"] if "-cd=conf" in words else []
    argv = [*verb.split()[1:], *given, *(word for word in words if word != "-cd=conf")]
    found: list[Problem] = []

    def render(problems: Sequence[Problem]) -> str:
        found.extend(problems)
        return "\n".join(problem.render() for problem in problems)

    out, err = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        patch.setattr(errors, "render_problems", render)
        try:
            code = main(argv)
        except SystemExit as left:  # argparse's way
            code = left.code
    return code, out.getvalue(), err.getvalue(), found


def judge(verb: str, words: Sequence[str], code: object, out: str, err: str, found: list) -> None:
    """Exit 0 for nothing wrong, else 2 with every word named that is wrong at a stage that the verb
    got to; showing the config checks no values.
    """
    stages = STAGES[:2] if "--cfg" in verb else STAGES
    first = next((stage for stage in stages if set(stage) & set(words)), None)
    if first is None:  # right words can only be against a rule together
        too_large = verb == "check" and out.startswith(("does not fit: ", "cannot run here: "))
        assert code in (0, 1, 2)
        assert code == 0 or found or too_large
        assert all(p.rule or "It belongs to" in p.what for p in found), found
        return
    assert code == 2
    assert "Traceback" not in err
    if first is USAGE:
        assert "error: " in err, "by argparse"
        return
    reached = stages[1:]
    if any(problem.rule == "type" for problem in found):
        reached = stages[1:3]
    for word in (word for stage in reached for word in stage if word in words):
        shown = [cli.printable(text) for text in (word, key_of(word))]
        assert any(text in err for text in shown), f"{word} is not named"
    assert out.startswith("cannot run here: ") if verb == "check" else out == ""
    assert found
    assert all(problem.what for problem in found)


@pytest.mark.nightly
@pytest.mark.parametrize("number", range(LINES))
def test_any_line(desk: Path, number: int) -> None:
    draw = random.Random(number)
    verb = draw.choice(["train", "check", "explain", "train --cfg job"])
    words = line(draw)
    typed = [draw.choice(OPTIONS[:9]), *words] if verb == "explain" else words
    before = tree(desk)
    try:
        code, *said = say(verb, typed)
        judge(verb, words, code, *said)
        if code != 0 or verb != "train":
            assert tree(desk) == before, "a line that starts nothing writes nothing"
    finally:
        for path in sorted(set(tree(desk)) - set(before)):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
