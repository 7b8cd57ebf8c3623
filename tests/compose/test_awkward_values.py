"""Whatever is typed for any option or group is composed or refused: nothing raises anything but a
ConfigError.
"""

from __future__ import annotations

import pytest
from refusing import problems

from forge.config import schemas

KEYS = sorted({key for key, *_ in schemas.walk_options()})
AWKWARD = [
    "0", "-1", "1", "7", "1e5", "0.5", "1e18", "1e308", "9223372036854775808", "nan", "inf", "null", "true", "abc", "", "''", "???",
    "[]", "[1]", "[1,2]", "[a,b]", "[[]]", "[null]", "['${seed}',1]", "{}", "{a: 1}", "${seed}", "${model}", "${nokey}", "${", "1,2",
    "range(1,3)", "glob(*)", "int(1)", "é", "a b", "~", "@", "%", "a=b", "../..", "/dev/null", "x.y", "forge.optim.adamw.adamw",
]  # fmt: skip


@pytest.mark.parametrize("value", AWKWARD)
def test_every_option_with_an_awkward_value(value: str):
    found = problems([f"{key}={value}" for key in KEYS])
    assert all(p.what and p.key for p in found)


@pytest.mark.parametrize("value", AWKWARD)
def test_every_group_with_an_awkward_choice(value: str):
    groups = [*schemas.sections(), "experiment", "debug", "local", "schema", "hydra", "nothing"]
    found = problems(
        [f"{sign}{group}={value}" for group in groups for sign in ("", "+", "++", "~")]
    )
    assert found
    assert all(p.what and p.key for p in found)


KEYS_THAT_ARE_NONE = [
    "",
    " ",
    ".",
    "a.",
    ".a",
    "a..b",
    "a@b",
    "a@b@c",
    "@",
    "a/b",
    "/",
    "a[0]",
    "a b",
    "-a",
    "~+",
    "ü",
    "${seed}",
    "a:b",
    "\\",
    "'a'",
]


@pytest.mark.parametrize("sign", ["", "+", "++", "~"])
def test_every_awkward_key(sign: str):
    typed = [text for key in KEYS_THAT_ARE_NONE for text in (f"{sign}{key}=1", f"{sign}{key}")]
    assert len(problems(typed)) == len(typed)
