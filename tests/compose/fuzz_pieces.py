"""Pieces of command lines with a known verdict, to be put together at random: right ones, and wrong
ones at each stage.

A new kind of piece is one more entry of RIGHT or WRONG.
"""

from __future__ import annotations

import functools
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from forge.compose.engine import Library
from forge.config import schemas


class Stage(IntEnum):
    """Where a wrong piece is found out; RIGHT never is."""

    USAGE = 0  # argparse: an unknown flag, or one without its value
    COMPOSE = 2  # grammar, keys, group choices, types
    VALUE = 3  # bounds and choices of one option
    RULE = 4  # what the whole config demands
    RIGHT = 9


@dataclass(frozen=True)
class Piece:
    """Words of a command line; `named` must appear in the refusal. `also`: keys that it touches
    without saying so.
    """

    words: tuple[str, ...]
    stage: Stage = Stage.RIGHT
    named: str = ""
    also: tuple[str, ...] = ()

    @property
    def keys(self) -> set[str]:
        """What two pieces of one line may not have in common: the later would hide the earlier."""
        keys = {word.lstrip("+~").partition("=")[0].partition("@")[0] for word in self.words} | set(
            self.also
        )
        return keys | ({"run.dir"} if "run.root" in keys else set())  # run.dir makes run.root idle


@dataclass(frozen=True)
class Desk:
    """The folder that lines are typed in, and what lies there."""

    path: Path

    def lay(self) -> None:
        """Files and folders that pieces name."""
        for folder in ("books", "empty", "full", "conf/experiment", "damaged", "ü b"):
            (self.path / folder).mkdir(parents=True)
        for name, text in (
            ("a file.txt", "text"),
            ("books/one.txt", "text"),
            ("full/x", "x"),
            ("damaged/config.yaml", "a: ["),
        ):
            (self.path / name).write_text(text, encoding="utf-8")
        (self.path / "conf/experiment/mine.yaml").write_text(
            "# @package _global_\neval:\n  patience: 4\n", encoding="utf-8"
        )


def quoted(text: str) -> str:
    """A text as the grammar reads it back; without interpolation."""
    text = text.replace("$", "S").replace("\\", "/")
    return '"' + text.replace('"', '\\"') + '"'


LIBRARY = Library()
GROUPS = list(schemas.sections())
OPTIONS = [(key, field) for key, _, _, field in schemas.walk_options()]
KINDS = {
    "int": ["train.max_steps", "seed", "model.dim", "eval.interval"],
    "float": ["optimizer.lr", "train.grad_clip_norm"],
}
KINDS["bool"] = ["run.inline", "train.compile_model", "run.deterministic"]
TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\x00"), max_size=30)
WORD = st.text(string.ascii_lowercase, min_size=3, max_size=12)
OPEN = [
    "[1", "{a:", "'x", '"x', "(", "a b(", "[1,,2]", "{,}", "a}", "]", "${", "${seed", "é", "%",
    "@x", "~", "x=y=[", "[" * 400, "\\",
]  # fmt: skip
SIGNS = st.sampled_from(["", "+", "++"])
FLAGS = [("--foo",), ("-x",), ("--config-dirr", "x"), ("--cfgg", "job")]
NOWHERE = [
    "nothing/here", "ü/ü", "a file.txt/x", "**/*.nothing", "[", "x" * 300, "y/" * 2500, "\x1b[31m",
    " ", "~nobody_here/x",
]  # fmt: skip
UNKNOWN = [
    f"{group}.{name}" for group in GROUPS for name in ("lrr", "_x", "dims", "x.y.z", "Config")
]
UNKNOWN += [
    "modl.dim", "lr", "schema", "schema/model", "_target_", "hydr.run.dir",
    "a.b.c.d", "model/dim", "defaults", "self",
]  # fmt: skip
HYDRA = [
    "hydra.run.dir=x",
    "hydra.job.name=x",
    "hydra.verbose=true",
    "~hydra.searchpath",
    "hydra.sweep.dir=x",
]
HYDRA += ["hydra.searchpath=conf", "hydra.mode=MULTIRUN", "+hydra.foo=1"]
NONE = ["-9", "-1.5"]  # argparse takes a negative number for an override


def right(*words: str, also: tuple[str, ...] = ()) -> Piece:
    return Piece(words, also=also)


def wrong(stage: Stage, *words: str, named: str = "") -> Piece:
    return Piece(words, stage, named or words[-1])


def _values() -> SearchStrategy[Piece]:
    number = st.integers(1, 10**6)
    return st.one_of(
        st.builds(lambda n: right(f"seed={n}"), st.integers(0, 10**18)),
        st.builds(lambda x: right(f"optimizer.lr={x!r}"), st.floats(1e-12, 1e3)),
        st.builds(
            lambda n, sign: right(f"{sign}train.max_steps={n}"), number, st.sampled_from(["", "++"])
        ),
        st.builds(
            lambda a, b: right(f"optimizer.betas=[{a!r},{b!r}]"),
            st.floats(0, 0.99),
            st.floats(0, 0.99),
        ),
        st.builds(lambda n: right(f"eval.interval={n}"), number),
        st.builds(lambda text: right(f"run.name={quoted(text)}"), TEXT),
        st.builds(
            lambda texts: right(f"eval.sample_prompts=[{','.join(map(quoted, texts))}]"),
            st.lists(TEXT, max_size=3),
        ),
        st.builds(lambda word: right(f"run.trust=[{word}.]"), WORD),
        st.builds(lambda n: right(f"run.name={'x' * n}"), st.integers(1, 3000)),
    )


def _groups() -> SearchStrategy[Piece]:
    free = (
        "model train eval precision profiling metrics checkpoint run parallel tokenizer objective"
    )
    free = [
        (group, option)
        for group in free.split()
        for option in LIBRARY.options(group)
        if (group, option) != ("tokenizer", "file")
    ]
    return st.one_of(
        st.builds(
            lambda pair, sign: right(f"{sign}{pair[0]}={pair[1]}"),
            st.sampled_from(free),
            st.sampled_from(["", "+", "++"]),
        ),
        st.builds(
            lambda option: right(f"scheduler={option}"),
            st.sampled_from(LIBRARY.options("scheduler")),
        ),
        st.sampled_from(
            [
                right("experiment=wsd", also=("scheduler",)),
                right("experiment=null"),
                right("debug=fast"),
                right("debug=null"),
            ]
        ),
    )


def _paths(desk: Desk) -> list[Piece]:
    return [
        right("data=text", 'data.path="a file.txt"'),
        right("data=text", "data.path=books"),
        right("data=text", 'data.path="**/*.txt"'),
        right("data=text", 'data.path="ü b"'),
        right("run.dir=empty"),
        right("run.dir=new/er"),
        right('run.dir="ü/ö x"'),
        right("run.root=empty"),
        right('run.root="~/elsewhere"'),
        right(f"run.root={desk.path}/abs"),
        right("hydra.searchpath=[conf]"),
        right("hydra.searchpath=[]"),
        right("hydra.searchpath=[conf]", "experiment=mine"),
        right("-cd", "conf"),
        right("run.name=${run.device}"),
        right("run.root=${oc.env:HOME}/x"),
        right("checkpoint.interval=${train.max_steps}"),
        right("data.cache_dir=empty/cache"),
    ]


RIGHT: list[Callable[[Desk], SearchStrategy[Piece]]] = [
    lambda desk: _values(),
    lambda desk: _groups(),
    lambda desk: st.sampled_from(_paths(desk)),
]


def _wrong_choice() -> SearchStrategy[Piece]:
    odd = ["''", "../x", "true", "3", "[a,b]", "a,b", "{a: 1}", "${seed}", "../data/text"]
    names = st.one_of(WORD.map(lambda word: f"no_{word}"), st.sampled_from(odd))
    groups = st.sampled_from(
        [*(group for group in GROUPS if LIBRARY.options(group)), "experiment", "debug"]
    )
    return st.builds(
        lambda group, name, sign: wrong(Stage.COMPOSE, f"{sign}{group}={name}"),
        groups,
        names,
        SIGNS,
    )


def _wrong_key() -> SearchStrategy[Piece]:
    values = st.sampled_from(["1", "x", "[1]", "null", "true", "'a b'", "1e400", "${seed}"])
    keys = [
        key
        for key, _ in OPTIONS
        if not key.startswith(("callbacks", "trackers", "launch", "sweep"))
    ]  # what has keys of its own
    known, shared = (
        st.sampled_from(keys),
        st.sampled_from([key for key in keys if key.startswith(("train", "run", "eval", "seed"))]),
    )
    return st.one_of(
        st.builds(
            lambda sign, key, value: wrong(Stage.COMPOSE, f"{sign}{key}={value}"),
            SIGNS,
            st.sampled_from(UNKNOWN),
            values,
        ),
        shared.map(lambda key: wrong(Stage.COMPOSE, f"+{key}=1")),
        known.map(lambda key: wrong(Stage.COMPOSE, f"~{key}")),
        known.map(lambda key: wrong(Stage.COMPOSE, f"{key}@x=1")),
        known.map(lambda key: wrong(Stage.COMPOSE, f"{key}.deeper=1")),
        known.map(lambda key: wrong(Stage.COMPOSE, f"{key}[0]=1")),
        st.sampled_from([wrong(Stage.COMPOSE, text) for text in HYDRA]),
    )


def _wrong_type() -> SearchStrategy[Piece]:
    bad = {
        "int": ["abc", "1.5", "true", "null", "[1]", "{a: 1}", "1e400", "0x", "''"],
        "float": ["abc", "null", "[1]", "true,false"],
    }
    bad["bool"] = ["maybe", "null", "[true]", "1.5"]
    words = [
        f"{key}={value}" for kind, keys in KINDS.items() for key in keys for value in bad[kind]
    ]
    words += [f"optimizer.lr={'9' * 400}", "run.trust=os.", "seed=1,2"]
    open_ends = [
        (key, value) for key in ("seed", "run.name") for value in ("${nokey}", "${nope:1}", "???")
    ]
    return st.one_of(
        st.sampled_from([wrong(Stage.COMPOSE, word) for word in words]),
        st.sampled_from(
            [wrong(Stage.COMPOSE, f"{key}={value}", named=key) for key, value in open_ends]
        ),
    )


def _grammar() -> SearchStrategy[Piece]:
    junk = st.text(
        st.characters(exclude_characters="\x00=", exclude_categories=("Cs",)),
        min_size=1,
        max_size=12,
    )
    keys = st.sampled_from(["train.max_steps", "optimizer.betas", "seed", "model", "nothing"])
    return st.one_of(
        st.builds(
            lambda key, value: wrong(Stage.COMPOSE, f"{key}={value}"), keys, st.sampled_from(OPEN)
        ),
        st.builds(lambda key: wrong(Stage.COMPOSE, f".{key}=1"), junk),
        st.builds(lambda key: wrong(Stage.COMPOSE, f"{key} =1"), WORD),
        st.sampled_from([wrong(Stage.COMPOSE, text) for text in NONE]),
    )


def _out_of_bounds() -> SearchStrategy[Piece]:
    found = []
    others = (
        "scheduler",
        "data",
        "tokenizer",
        "objective",
        "model",
    )  # where options belong to one variant
    plain = [(key, field) for key, field in OPTIONS if key.partition(".")[0] not in others]
    for key, field in plain:
        bounds, choices = field.metadata.get("bounds", {}), field.metadata.get("choices")
        listed = isinstance(
            field.default_factory() if callable(field.default_factory) else None, list
        )
        low, high = bounds.get("gt", bounds.get("ge")), bounds.get("lt", bounds.get("le"))
        values = [] if low is None else [str(int(low) - 1)]
        values += [] if high is None else [str(int(high) + 1)]
        values += (
            [str(10**19)]
            if values and field.type == "int"
            else ["nan", "inf", "1e400"]
            if values and field.type == "float"
            else []
        )
        found += [
            wrong(Stage.VALUE, f"{key}=[{v},{v}]" if listed else f"{key}={v}", named=key)
            for v in values
        ]
        found += [wrong(Stage.VALUE, f"{key}=no_such_choice", named=key)] if choices else []
    return st.sampled_from(found)


def _against_a_rule() -> SearchStrategy[Piece]:
    places = [
        Piece(("data=text", f"data.path={quoted(place)}"), Stage.RULE, "data.path=")
        for place in NOWHERE
    ]
    words = """
        run.dir=full run.dir=damaged run.device=cuda parallel.tp=4 checkpoint.resume_from=nowhere
        checkpoint.init_from=nowhere optimizer._target_=os.system model._target_=forge.no.No
        data._target_=x run.objective=eval/nothing train.seq_len=99999999
        +callbacks.mine.decay=1 +callbacks.mine._target_=os.system +trackers.mine=3"""
    others = [*words.split(), "run.dir='a file.txt'", "run.root='a file.txt'", "run.dir=''"]
    return st.sampled_from(
        [
            *places,
            *(Piece((word,), Stage.RULE, word.lstrip("+").partition("=")[0]) for word in others),
        ]
    )


def _search_path() -> SearchStrategy[Piece]:
    places = ("nowhere", "pkg://no.pkg", "s3://x", "'~nobody_here/x'", "'a file.txt'", "x" * 5000)
    return st.sampled_from(
        [
            wrong(Stage.COMPOSE, f"hydra.searchpath=[{place}]", named="hydra.searchpath")
            for place in places
        ]
    )


def _usage(desk: Desk) -> SearchStrategy[Piece]:
    return st.sampled_from([Piece(words, Stage.USAGE, words[0]) for words in FLAGS])


WRONG: list[Callable[[Desk], SearchStrategy[Piece]]] = [
    lambda desk: _wrong_choice(),
    lambda desk: _wrong_key(),
    lambda desk: _wrong_type(),
    lambda desk: _grammar(),
    lambda desk: _out_of_bounds(),
    lambda desk: _against_a_rule(),
    lambda desk: _search_path(),
    _usage,
]


@functools.cache
def lines(desk: Desk) -> SearchStrategy[list[Piece]]:
    """Up to seven pieces that do not hide each other, two of three lines with one wrong piece or
    more.
    """
    good = st.one_of(*(make(desk) for make in RIGHT))
    bad = st.one_of(*(make(desk) for make in WRONG))
    mixed = st.tuples(st.lists(good, max_size=4), st.lists(bad, min_size=1, max_size=3)).map(
        lambda both: [*both[0], *both[1]]
    )
    return st.one_of(st.lists(good, max_size=5), mixed, mixed).flatmap(st.permutations).map(_apart)


def _apart(pieces: Sequence[Piece]) -> list[Piece]:
    kept: list[Piece] = []
    for piece in pieces:
        if all(piece.keys.isdisjoint(other.keys) for other in kept):
            kept.append(piece)
    return kept
