"""Keys, tokens and passwords in a text, by what they are known to look like, and by what they are
assigned to.
"""

from __future__ import annotations

import re

MASK = "<masked>"
SECRET = r"(?:pass(?:word|wd|phrase)|(?<![a-z])(?:[a-z]+_)?(?:pass|pwd)(?![a-z_])|secret(?!_(?:santa|sharing))|credential"
SECRET += r"|(?:api|access|private|account)[_-]?key(?!_(?:path|file)\b)"
SECRET += r"|(?:auth|access|api|bearer|refresh|session|hf|hub|github|gitlab|slack|wandb|bot)[_-]?token(?!_count\b))"
QUOTED = r"\"[^\"]{1,500}\"|'[^']{1,500}'"
WORD = r"(?!(?:str|int|bool|bytes|none|null|true|false|any|optional)\b)(?!(?:config|cfg|args|self|options|settings|os|env)\.)"
WORD += r"[^\s\"'`(){}\[\],;$]{1,500}(?=[\s,;]|$)"
# of a default, as in `password: str = "..."`
TYPE = r"(?::\s*[\w.]+(?:\[[\w., ]*\])?(?:\s*\|\s*\w+)*\s*(?==))?"
PATTERNS = {
    (
        "://",
    ): r"(?P<kept>\bhttps?://|\b[a-z][a-z0-9+.-]{0,20}://[^\s/@:'\"]{0,200}:)[^\s/'\"]{1,500}(?=@)",
    (
        "bearer",
        "authorization",
    ): r"(?P<kept>\bbearer\s+|\bauthorization['\"]?\s*[:=]\s*[frbu]{0,2}['\"]?(?:basic|token)\s+)[\w.~+/=-]{8,}",
    (
        "pass",
        "pwd",
        "secret",
        "credential",
        "key",
        "_token",
        "-token",
        "authtoken",
        "accesstoken",
    ): (
        rf"(?P<kept>{SECRET}[\w.-]{{0,40}}['\"\]]{{0,2}}\s*{TYPE}(?:=>|:=|[:=])\s*[frbu]{{0,2}})(?:{QUOTED}|{WORD})"
    ),
    ("token",): (
        r"(?P<kept>(?<!special_)(?<!unk_)token['\"\]]{0,2}\s*[:=]\s*['\"]?)(?=[^\s'\"]{0,500}\d)[\w+/=-]{16,500}(?=['\"\s,;)]|$)"
        r"|(?P<variable>\b(?-i:(?:[A-Z0-9]+_)*TOKEN)['\"\]]{0,2}\s*=\s*['\"]?)[\w+/=-]{8,500}(?=['\"\s,;)]|$)"
    ),
    (
        "curl",
        "x-api-key",
    ): r"(?P<kept>\bcurl\b.{0,300}?\s(?:-u|--user)[\s=]+['\"]?[^\s:'\"]{1,100}:|x-api-key:\s*)[^\s'\"]{4,500}",
    ("hooks.slack.com",): r"(?P<kept>hooks\.slack\.com/services/)[\w/]{8,}",
    (
        "--",
        "password",
    ): r"(?P<kept>--(?:password|passwd|token|secret|api-key)(?:\s+|=)|^.?\s*password\s+)[^\s'\"]{6,}",
    (
        "wandb",
        "login",
        "key",
        "secret",
    ): r"(?P<kept>)\b[0-9a-f]{40}\b",  # a key of W&B; elsewhere it is a commit
    ("akia", "asia", "aiza", "eyj"): (  # AWS, Google, JSON web tokens
        r"(?P<kept>)\b(?:(?-i:A[KS]IA[0-9A-Z]{16})\b|(?-i:AIza)[\w-]{35}|eyJ[\w-]{10,2000}\.eyJ[\w-]{10,2000}\.[\w-]+)"
    ),
    (
        "ghp_",
        "gho_",
        "ghu_",
        "ghs_",
        "ghr_",
        "github_pat_",
        "glpat-",
        "hf_",
        "sk-",
        "k_live_",
        "wandb_v",
        "xox",
        "pypi-",
        "npm_",
    ): (
        r"(?P<kept>)\b(?:gh[pousr]_[a-z0-9]{30,}|github_pat_\w{20,}|glpat-[\w-]{16,}|hf_[a-z0-9]{20,}|sk-(?!learn\b)[\w-]{20,}|[sr]k_live_\w{10,}"
        r"|wandb_v\d_\w{20,}|xox[a-z]-[\w-]{10,}|pypi-[\w-]{30,}|npm_[a-z0-9]{30,})"
    ),
}
"""What to look for in lines that have one of these words, in whatever case."""
LOOKED_FOR = [(words, re.compile(pattern, re.IGNORECASE)) for words, pattern in PATTERNS.items()]
BEGIN = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
OF_BLOCK = re.compile(r".?[\s'\"]*(?:[A-Za-z0-9+/=]{4,}(?:\\n)?|[A-Za-z-]+: [\w,-]+)?[\s'\",]*")


def masked(text: str) -> str:
    """The text, such as a diff, with each secret that is recognised replaced; lines without one are
    as they were.
    """
    lines, inside = text.splitlines(keepends=True), False
    for place, line in enumerate(lines):
        begin = BEGIN.search(line) if "-----BEGIN" in line else None
        inside = begin is not None or (inside and OF_BLOCK.fullmatch(line) is not None)
        kept, least = (begin.end(), 16) if begin is not None else (1, 4)
        if not inside:
            lines[place] = _line(line)
        elif re.search(f"[A-Za-z0-9+/=]{{{least}}}", line[kept:]):
            lines[place] = line[:kept] + MASK + line[len(line.rstrip("\r\n")) :]
    return "".join(lines)


def _line(line: str) -> str:
    known = line.lower()
    for words, pattern in LOOKED_FOR:
        if any(word in known for word in words):
            line = pattern.sub(lambda match: f"{match.group(match.lastgroup or 0)}{MASK}", line)
    return line
