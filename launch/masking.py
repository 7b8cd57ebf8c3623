"""Keys, tokens and passwords in a text, by what they are known to look like, and by what they are assigned to."""

from __future__ import annotations

import re

MASK = "<masked>"
SECRET = r"(?:pass(?:word|wd|phrase)|secret|credential|(?:api|access|private|account)[_-]?key"
SECRET += r"|(?:auth|access|api|bearer|refresh|session|hf|hub|github|gitlab|slack|wandb|bot)[_-]?token)"
QUOTED = r"\"[^\"]{1,500}\"|'[^']{1,500}'"
WORD = r"(?!(?:str|int|bool|bytes|none|null|true|false|any|optional)\b)[^\s\"'`(){}\[\],;$]{1,500}(?=[\s,;]|$)"
PATTERNS = {
    ("://",): r"(?P<kept>\bhttps?://|\b[a-z][a-z0-9+.-]{0,20}://[^\s/@:'\"]{0,200}:)[^\s/@'\"]{1,500}(?=@)",
    ("bearer", "authorization"): r"(?P<kept>\bbearer\s+|\bauthorization['\"]?\s*[:=]\s*['\"]?(?:basic|token)\s+)[\w.~+/=-]{8,}",
    ("passw", "passp", "secret", "credential", "key", "_token", "-token", "authtoken", "accesstoken"): (
        rf"(?P<kept>{SECRET}[\w.-]{{0,40}}['\"\]]{{0,2}}\s*(?:=>|:=|[:=])\s*[frbu]{{0,2}})(?:{QUOTED}|{WORD})"
    ),
    ("token",): r"(?P<kept>token['\"\]]{0,2}\s*[:=]\s*['\"]?)(?=[^\s'\"]{0,500}\d)[\w+/=-]{16,500}(?=['\"\s,;)]|$)",
    ("--", "password"): r"(?P<kept>--(?:password|passwd|token|secret|api-key)(?:\s+|=)|^.?\s*password\s+)[^\s'\"]{6,}",
    ("wandb", "login", "key", "secret"): r"(?P<kept>)\b[0-9a-f]{40}\b",  # a key of W&B; elsewhere it is a commit
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
        "wandb_v",
        "xox",
        "pypi-",
        "npm_",
    ): (
        r"(?P<kept>)\b(?:gh[pousr]_[a-z0-9]{30,}|github_pat_\w{20,}|glpat-[\w-]{16,}|hf_[a-z0-9]{20,}|sk-[\w-]{20,}"
        r"|wandb_v\d_\w{20,}|xox[a-z]-[\w-]{10,}|pypi-[\w-]{30,}|npm_[a-z0-9]{30,})"
    ),
}
"""What to look for in lines that have one of these words, in whatever case."""
LOOKED_FOR = [(words, re.compile(pattern, re.IGNORECASE)) for words, pattern in PATTERNS.items()]
BEGIN = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
OF_BLOCK = re.compile(r".?[\s'\"]*(?:[A-Za-z0-9+/=]{4,}(?:\\n)?|[A-Za-z-]+: [\w,-]+)?[\s'\",]*")


def masked(text: str) -> str:
    """The text, such as a diff, with each secret that is recognised replaced; lines without one are as they were."""
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
            line = pattern.sub(lambda match: f"{match['kept']}{MASK}", line)
    return line
