"""One line of a diagnosis: what was looked at, how it is, what was found and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

OK, WARN, MISSING = "ok", "warn", "missing"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """`needed`: a plain run on the CPU cannot do without it. `fix` is empty only where all is well."""

    check: str
    status: str
    found: str
    fix: str = ""
    needed: bool = False

    def render(self) -> str:
        """The line, and a second one with the fix."""
        head = f"{self.check:<15}{self.status:<9}"
        return f"{head}{self.found}" + (f"\n{'':<{len(head)}}-> {self.fix}" if self.fix else "")


def ok(check: str, found: str) -> Finding:
    """It is as it should be."""
    return Finding(check=check, status=OK, found=found)


def warn(check: str, found: str, fix: str) -> Finding:
    """It works, but not well, or not for everything."""
    return Finding(check=check, status=WARN, found=found, fix=fix)


def missing(check: str, found: str, fix: str, *, needed: bool = False) -> Finding:
    """It is not there or does not work; `needed` when a plain run on the CPU needs it."""
    return Finding(check=check, status=MISSING, found=found, fix=fix, needed=needed)


def lacking(findings: Sequence[Finding]) -> list[Finding]:
    """What is missing that a plain run on the CPU needs."""
    return [finding for finding in findings if finding.status == MISSING and finding.needed]


def report(findings: Sequence[Finding]) -> str:
    """All findings and a last line that sums up."""
    lack = lacking(findings)
    last = (
        f"missing, and every run needs it: {', '.join(f.check for f in lack)}"
        if lack
        else "a run on the CPU has all that it needs"
    )
    return "\n".join([*(finding.render() for finding in findings), "", last])
