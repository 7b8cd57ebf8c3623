"""Masks keys, tokens and passwords in a text: by their form, and by the name of the assigned
variable.
"""

from __future__ import annotations

import re

MASK = "<masked>"
NAME = (
    r"(?:pass(?:word|wd|phrase)|(?<![a-z])(?:[a-z]+_)?(?:pass|pwd|pw)(?![a-z_])"
    r"|secret(?!_(?:santa|sharing))|credential"
    r"|(?:api|access|private|account)[_-]?key(?!_(?:path|file)\b)"
    r"|(?:auth|access|api|bearer|refresh|session|hf|hub|github|gitlab|slack|wandb|bot)"
    r"[_-]?token(?!_count\b))"
)
QUOTED = r"\"[^\"]{1,500}\"|'[^']{1,500}'"
WORD = (
    r"(?!(?:str|int|bool|bytes|none|null|true|false|any|optional)\b)"
    r"(?!(?:config|cfg|args|self|options|settings|os|env)\.)"
    r"[^\s\"'`(){}\[\],;$]{1,500}(?=[\s,;]|$)"
)
# The type of a default, as in `password: str = "..."`.
TYPE = r"(?::\s*[\w.]+(?:\[[\w., ]*\])?(?:\s*\|\s*\w+)*\s*(?==))?"
END = r"(?=['\"\s,;)]|$)"
# A line is tried with a pattern when the line has one of the words, in any case; the match of
# `kept` stays.
PATTERNS = (
    (
        "://",
        r"(?P<kept>\bhttps?://|\b[a-z][a-z0-9+.-]{0,20}://[^\s/@:'\"]{0,200}:)"
        r"[^\s/'\"]{1,500}(?=@)",
    ),
    (
        "bearer authorization",
        r"(?P<kept>\bbearer\s+|\bauthorization['\"]?\s*[:=]\s*[frbu]{0,2}['\"]?(?:basic|token)\s+)"
        r"[\w.~+/=-]{8,}",
    ),
    (
        "pass pwd pw secret credential key _token -token authtoken accesstoken",
        rf"(?P<kept>{NAME}[\w.-]{{0,40}}['\"\]]{{0,2}}\s*{TYPE}(?:=>|:=|[:=])\s*[frbu]{{0,2}})"
        rf"(?:{QUOTED}|{WORD})",
    ),
    (
        "token",
        r"(?P<kept>(?<!special_)(?<!unk_)token['\"\]]{0,2}\s*[:=]\s*['\"]?)"
        rf"(?=[^\s'\"]{{0,500}}\d)[\w+/=-]{{16,500}}{END}",
    ),
    (
        "token",
        r"(?P<kept>\b(?-i:(?:[A-Z0-9]+_)*TOKEN)['\"\]]{0,2}\s*=\s*['\"]?)"
        rf"[\w+/=-]{{8,500}}{END}",
    ),
    (
        "curl x-api-key",
        r"(?P<kept>\bcurl\b.{0,300}?\s(?:-u|--user)[\s=]+['\"]?[^\s:'\"]{1,100}:|x-api-key:\s*)"
        r"[^\s'\"]{4,500}",
    ),
    # Connection strings of Azure, in which a key stands between others, and its signed addresses.
    (
        "accountkey sharedaccesskey sig=",
        r"(?P<kept>\b(?:AccountKey|SharedAccessKey)\s*=\s*|[?&]sig=)[\w+/%-]{20,500}={0,2}",
    ),
    # Tokens of bots and webhooks of Discord, keys of SendGrid and Databricks.
    (
        "discord.com/api/webhooks/ discordapp.com/api/webhooks/",
        r"(?P<kept>discord(?:app)?\.com/api/webhooks/\d{5,25}/)[\w-]{20,}",
    ),
    (
        ". dapi",
        r"(?P<kept>)(?<![\w.-])(?:(?-i:[MNO][A-Za-z0-9_-]{22,27})\.[\w-]{6}\.[\w-]{27,45}"
        r"|(?-i:SG)\.[\w-]{16,32}\.[\w-]{32,64}|dapi[0-9a-f]{32}(?:-\d)?)(?![\w.-])",
    ),
    ("hooks.slack.com", r"(?P<kept>hooks\.slack\.com/services/)[\w/]{8,}"),
    (
        "-- password",
        r"(?P<kept>--(?:password|passwd|token|secret|api-key)(?:\s+|=)|^.?\s*password\s+)"
        r"[^\s'\"]{6,}",
    ),
    # A key of W&B; elsewhere 40 hexadecimal digits are a commit.
    ("wandb login key secret", r"(?P<kept>)\b[0-9a-f]{40}\b"),
    # AWS, Google, JSON web tokens.
    (
        "akia asia aiza eyj",
        r"(?P<kept>)\b(?:(?-i:A[KS]IA[0-9A-Z]{16})\b|(?-i:AIza)[\w-]{35}"
        r"|eyJ[\w-]{10,2000}\.eyJ[\w-]{10,2000}\.[\w-]+)",
    ),
    (
        "ghp_ gho_ ghu_ ghs_ ghr_ github_pat_ glpat- hf_ sk- k_live_ wandb_v xox pypi- npm_",
        r"(?P<kept>)\b(?:gh[pousr]_[a-z0-9]{30,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
        r"|hf_[a-z0-9]{20,}"
        r"|sk-(?!learn\b)[\w-]{20,}|[sr]k_live_\w{10,}|wandb_v\d_\w{20,}|xox[a-z]-[\w-]{10,}"
        r"|pypi-[\w-]{30,}|npm_[a-z0-9]{30,})",
    ),
)
COMPILED = [(words.split(), re.compile(pattern, re.IGNORECASE)) for words, pattern in PATTERNS]
BEGIN = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
OF_BLOCK = re.compile(r".?[\s'\"]*(?:[A-Za-z0-9+/=]{4,}(?:\\n)?|[A-Za-z-]+: [\w,-]+)?[\s'\",]*")


def masked(text: str) -> str:
    """Replace each recognised secret in a text, for example a diff."""
    lines, inside = text.splitlines(keepends=True), False
    for index, line in enumerate(lines):
        begin = BEGIN.search(line) if "-----BEGIN" in line else None
        inside = begin is not None or (inside and OF_BLOCK.fullmatch(line) is not None)
        start, least = (begin.end(), 16) if begin is not None else (1, 4)
        if not inside:
            lines[index] = _line(line)
        elif re.search(f"[A-Za-z0-9+/=]{{{least}}}", line[start:]):
            lines[index] = line[:start] + MASK + line[len(line.rstrip("\r\n")) :]
    return "".join(lines)


def _line(line: str) -> str:
    lower = line.lower()
    for words, pattern in COMPILED:
        if any(word in lower for word in words):
            line = pattern.sub(rf"\g<kept>{MASK}", line)
    return line
