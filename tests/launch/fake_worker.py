"""An interpreter in place of Python: a rank that takes milliseconds, and does what the seed of its
run says.
"""

from __future__ import annotations

import stat
import sys
from pathlib import Path

FAILS, HANGS, BREAKS, DIES, STARTS, ENDS = 13, 99, 66, 77, 55, 44
CODE = """
import fcntl, json, os, re, signal, sys, time
RUN_DIR = sys.argv[-1]
rank, config = int(os.environ["RANK"]), open(os.path.join(RUN_DIR, "config.yaml")).read()
seed = int(re.search(r"^seed: (\\d+)", config, re.M)[1])
def path(name): return os.path.join(RUN_DIR, name)
def put(name, content, how="w"):
    with open(path(name), how) as file: file.write(json.dumps(content) + "\\n")
def leave(status, code, step):
    if rank == 0:
        ended = {"status": status, "reason": "SIGTERM" if code > 128 else "end", "step": step}
        put("attempts.jsonl", {"event": "end", **ended}, "a")
        reached = {"metrics": {"train/loss": 1 / seed}, "config": "config.yaml"}
        objective = {"name": "train/loss", "value": 1 / seed}
        put("result.json", {**ended, "reason": "end", **reached, "objective": objective})
    os._exit(code)
if seed == 55 and not os.path.exists(path("go")):  # as Python before it runs any code of ours
    put("ready", os.getpid())
    while signal.SIGINT not in signal.sigpending(): time.sleep(0.01)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
if rank == 0:
    lock = os.open(path("run.lock"), os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    who = {"host": os.uname().nodename, "pid": os.getpid(), "since": "now"}
    os.pwrite(lock, (json.dumps(who) + "\\n").encode(), 0)
    start = {"event": "start", "step": 0, "from": "nothing", "config": "config.yaml"}
    put("attempts.jsonl", start, "a")
    given = [os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")]
    put("started", [given[0], time.time(), given[1]], "a")
    print("rank 0 says hello", flush=True)
for step in (1, 2, 3):
    if rank == 0:
        put("metrics.jsonl", {"step": step, "train/loss": 1 / seed + step, "lr": 0.1}, "a")
        put("performance.jsonl", {"step": step, "time": time.time() + step}, "a")
if seed == 13:
    said = "RuntimeError: it cannot continue\\n(the traceback is somewhere)"
    error = {"rank": rank, "type": "RuntimeError", "message": "it cannot continue", "traceback": ""}
    put("error.json", {**error, "said": said, "code": 1})
    os._exit(1)
if seed == 66:
    print("one\\ntwo\\nthree", file=sys.stderr, flush=True)
    os._exit(3)
if seed == 77:
    os.kill(os.getpid(), signal.SIGKILL)
if seed in (44, 99) and not os.path.exists(path("go")):
    signal.signal(signal.SIGTERM, lambda *_: leave("stopped" if seed == 99 else "finished", 143, 3))
    signal.signal(signal.SIGINT, lambda *_: leave("stopped", 130, 3))
    from ctypes import CDLL
    CDLL(None).prctl(1, signal.SIGTERM)
    put("ready", os.getpid())
    time.sleep(60)
time.sleep(float(os.environ.get("FAKE_SECONDS", "0")))
if rank == 0: put("ended", time.time(), "a")
leave("finished", 0, 3)
"""


def interpreter(folder: Path) -> str:
    """The path of one that runs this code, whatever it is asked to run; the run directory is its
    last argument.
    """
    script = folder / "python"
    script.write_text(f"#!{sys.executable} -S\n{CODE}")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return str(script)
