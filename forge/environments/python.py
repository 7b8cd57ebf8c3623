"""Python in the sandbox as a tool."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from forge.environments.tool import MARKS, Tool
from forge.sandbox import SandboxLimits, run_python

MIB = 2**20


class Python(Tool):
    """Runs the program of a call, and answers with the text it prints; each call is on its own.

    A program that fails answers with its last line of stderr. seconds, memory (MiB): limits of a
    program. characters: of an answer.
    """

    def __init__(
        self,
        marks: Sequence[str] = MARKS,
        seconds: float = 5.0,
        memory: int = 512,
        characters: int = 2000,
    ) -> None:
        super().__init__(list(marks))
        self.seconds, self.memory, self.characters = seconds, memory, characters

    def faults(self) -> Iterator[tuple[str, str]]:
        yield from super().faults()
        if self.seconds <= 0 or self.memory <= 0 or self.characters <= 0:
            yield "seconds, memory and characters are above 0.", "seconds=5"

    def answer(self, call: str) -> str | None:
        limits = SandboxLimits(seconds=self.seconds, memory=self.memory * MIB)
        ran = run_python(call, limits=limits)
        answer = ran.stdout
        if not ran.passed:
            lines = ran.stderr.strip().splitlines()
            answer += lines[-1] if lines and ran.status == "failed" else ran.status
        return answer.rstrip("\n")[: self.characters]
