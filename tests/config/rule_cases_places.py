"""The table of the rule on the place of a run directory."""

from __future__ import annotations

from rule_cases import Case

ROOT, DIR = (
    f"run.{value}, or a place that you may write in" for value in ("root=runs", "dir=null")
)

PLACE_CASES = [
    Case(
        "run.place",
        "run.root={tmp}/my.txt",
        "the directory {tmp}/my.txt cannot be made or written: {tmp}/my.txt is no directory.",
        ROOT,
        "run.root={tmp}/empty",
    ),
    Case(
        "run.place",
        "run.dir={tmp}/my.txt/a/b",
        "the directory {tmp}/my.txt/a/b cannot be made or written: {tmp}/my.txt is no directory.",
        DIR,
        "run.dir={tmp}/empty/a/b",
    ),
    Case(
        "run.place",
        "run.dir=''",
        "the directory  cannot be made or written: its name is empty.",
        DIR,
        "run.dir=null",
    ),
    Case(
        "run.place",
        f"run.dir={{tmp}}/new/{'x' * 256}",
        f"the directory {{tmp}}/new/{'x' * 256} cannot be made or written: a name in it is longer than 255 bytes.",
        DIR,
        f"run.dir={{tmp}}/new/{'x' * 255}",
    ),
    Case(
        "run.place",
        f"run.root={{tmp}}/{'x/' * 3000}",
        f"the directory {{tmp}}/{'x/' * 3000} cannot be made or written: file name too long.",
        ROOT,
        f"run.root={{tmp}}/{'x/' * 300}",
    ),
]
