"""The table of the rule on the place of a run directory."""

from __future__ import annotations

from rule_cases import Case

OTHER = "choose another place with run.root or run.dir"

PLACE_CASES = [
    Case(
        "run.place",
        "run.root={tmp}/my.txt",
        "the directory {tmp}/my.txt cannot be made or written: {tmp}/my.txt is no directory.",
        OTHER,
        "run.root={tmp}/empty",
    ),
    Case(
        "run.place",
        "run.dir={tmp}/my.txt/a/b",
        "the directory {tmp}/my.txt/a/b cannot be made or written: {tmp}/my.txt is no directory.",
        OTHER,
        "run.dir={tmp}/empty/a/b",
    ),
    Case(
        "run.place",
        "run.dir=''",
        "the directory  cannot be made or written: its name is empty.",
        OTHER,
        "run.dir=null",
    ),
    Case(
        "run.place",
        f"run.dir={{tmp}}/new/{'x' * 256}",
        f"the directory {{tmp}}/new/{'x' * 256} cannot be made or written: a name in it is longer than 255 bytes.",
        OTHER,
        f"run.dir={{tmp}}/new/{'x' * 255}",
    ),
    Case(
        "run.place",
        f"run.root={{tmp}}/{'x/' * 3000}",
        f"the directory {{tmp}}/{'x/' * 3000} cannot be made or written: file name too long.",
        OTHER,
        f"run.root={{tmp}}/{'x/' * 300}",
    ),
]
