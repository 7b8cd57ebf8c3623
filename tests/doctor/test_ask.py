"""Asking a program with a time limit: what it said comes back, also when it hangs, dies or is not
there.
"""

from __future__ import annotations

import sys
import time

from forge.doctor.ask import Answer, ask


def python(code: str, seconds: float = 20) -> Answer | None:
    return ask([sys.executable, "-c", code], seconds=seconds)


def test_what_it_says():
    answer = python("import sys; print('out'); print('one\\ntwo', file=sys.stderr); sys.exit(3)")
    assert answer == Answer(code=3, out="out\n", err="one\ntwo\n")
    assert answer.last_words == "two"


def test_more_than_a_pipe_holds():
    answer = python("import sys; sys.stderr.write('e' * 300_000); print('o' * 300_000)")
    assert answer is not None
    assert (answer.code, len(answer.out), len(answer.err)) == (0, 300_001, 300_000)


def test_one_that_hangs_keeps_what_it_said_before():
    start = time.monotonic()
    answer = python("import time; print('before', flush=True); time.sleep(60)", seconds=1)
    assert answer == Answer(code=None, out="before\n", err="")
    assert time.monotonic() - start < 10


def test_one_that_closes_its_output_and_hangs():
    start = time.monotonic()
    answer = python("import os, time; os.close(1); os.close(2); time.sleep(60)", seconds=1)
    assert answer == Answer(code=None, out="", err="")
    assert time.monotonic() - start < 10


def test_what_it_started_is_ended_too():
    answer = python(
        "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])",
        seconds=1,
    )
    assert answer is not None
    assert answer.code is None


def test_one_that_crashes():
    answer = python("import os; os.kill(os.getpid(), 11)")
    assert answer is not None
    assert answer.code == -11


def test_one_that_is_not_there():
    assert ask(["/no/such/program"], seconds=1) is None
