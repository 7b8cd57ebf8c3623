"""Pictures of the documentation: docs/refusal.svg and docs/start.svg, terminals with a refusal and
a run that starts; docs/report.png, the page of a sweep.

python tools/pictures.py [refusal] [start] [report]

The second moves: it shows each line when it came, with pauses of a second at most.
Where a reader asks for less motion, or the picture is printed, all lines stand there at once.
The third is of benchmarks/results/optimizers.html, and needs Chromium.
"""

from __future__ import annotations

import io
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from rich.console import Console
from rich.text import Text

DOCS = Path(__file__).resolve().parents[1] / "docs"
REFUSED = "model=lama7b optimizer.lrr=1 train.seq_len=4096 train.max_steps=abc"
STARTED = "run.dir=runs/first"
STEPS = 4  # lines of steps that are shown of a start
PAGE = DOCS.parent / "benchmarks" / "results" / "optimizers.html"  # of a sweep that was run
SIZE = (1280, 1500)  # pixels of the picture of a page
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
PAUSE = 1.0
MOTION = """
@media screen and (prefers-reduced-motion: no-preference) {{
  {rules}
}}
@keyframes come {{ from {{ opacity: 0 }} to {{ opacity: 1 }} }}
"""


def main() -> None:
    """Draw the pictures that are named, or all."""
    for name in sys.argv[1:] or ("refusal", "start"):
        PICTURES[name]()


def refusal() -> None:
    command = [sys.executable, "-m", "forge.train", *REFUSED.split()]
    said = subprocess.run(command, capture_output=True, text=True).stderr.rstrip().splitlines()
    draw("refusal", [f"$ python -m forge.train {REFUSED}", *said])


def start() -> None:
    """Record the default run until it has said how a few steps went."""
    command = [sys.executable, "-u", "-m", "forge.train", STARTED]
    lines, times = [f"$ python -m forge.train {STARTED}"], [0.0]
    with tempfile.TemporaryDirectory() as folder:
        begun = time.monotonic()
        run = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert run.stdout
        for line in run.stdout:
            lines.append(line.rstrip())
            times.append(time.monotonic() - begun)
            steps = sum(each.startswith("step ") for each in lines)
            if steps >= STEPS and any(each.startswith("resume with") for each in lines):
                break
        run.send_signal(signal.SIGINT)
        run.communicate()
    draw("start", lines, times)


def report() -> None:
    """Draw the upper part of the page of a sweep."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit(f"no browser to draw a page: one of {', '.join(BROWSERS)}")
    size, picture = f"--window-size={SIZE[0]},{SIZE[1]}", f"--screenshot={DOCS / 'report.png'}"
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", size, picture]
    subprocess.run([browser, *options, PAGE.as_uri()], check=True, capture_output=True)


def draw(name: str, lines: list[str], times: list[float] | None = None) -> None:
    """Write docs/NAME.svg. times: seconds at which the lines came; None = it does not move."""
    console = Console(record=True, width=100 if times else 88, file=io.StringIO())
    for line in lines:
        console.print(Text(line, style=style(line)), soft_wrap=bool(times))
    svg = console.export_svg(title="forge", unique_id=name)
    # A font from elsewhere would be fetched by whoever opens the picture.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    if times:
        svg = svg.replace("</style>", motion(name, times) + "</style>", 1)
    (DOCS / f"{name}.svg").write_text(svg, encoding="utf-8")


def style(line: str) -> str:
    """Its colour."""
    if line.startswith("$"):
        return "bold"
    if line.lstrip().startswith("->"):
        return "green"
    if line.startswith("step "):
        return "cyan"
    return "red" if "problems;" in line else ""


def motion(name: str, times: list[float]) -> str:
    """Rules by which each line of a picture appears."""
    rules, shown = [], 0.0
    for number, (before, now) in enumerate(pairwise(times), 1):
        shown += min(now - before, PAUSE)
        line = f'[clip-path="url(#{name}-line-{number})"]'
        rules.append(f"{line} {{ animation: come .1s {shown:.2f}s backwards }}")
    return MOTION.format(rules="\n  ".join(rules))


PICTURES = {"refusal": refusal, "start": start, "report": report}

if __name__ == "__main__":
    main()
