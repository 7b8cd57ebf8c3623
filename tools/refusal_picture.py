"""docs/refusal.svg: a refusal as a terminal shows it.

python tools/refusal_picture.py
"""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

FILE = Path(__file__).resolve().parents[1] / "docs" / "refusal.svg"
WORDS = "model=lama7b optimizer.lrr=1 train.seq_len=4096 train.max_steps=abc"


def main() -> None:
    command = [sys.executable, "-m", "forge.train", *WORDS.split()]
    said = subprocess.run(command, capture_output=True, text=True).stderr.rstrip()
    console = Console(record=True, width=88, file=io.StringIO())
    console.print(Text(f"$ python -m forge.train {WORDS}", style="bold"))
    for line in said.splitlines():
        style = "green" if line.lstrip().startswith("->") else "red" if "problems;" in line else ""
        console.print(Text(line, style=style))
    FILE.write_text(console.export_svg(title="forge"), encoding="utf-8")


if __name__ == "__main__":
    main()
