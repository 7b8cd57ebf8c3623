"""`python -m forge.plan MODEL [overrides]`: days to train it on a cluster that is not here, memory
and time by part, and the ten best layouts with why others lose.

Examples:
    python -m forge.plan llama3_1_405b --tokens 15e12 --device h100 --nodes 2048
    python -m forge.plan llama3_8b --device h200 --gpus 1 train.seq_len=4096
    python -m forge.plan model=llama3_70b plan.device=h100 plan.world_size=64 parallel.tp=8
"""

from __future__ import annotations

import sys

from forge.planner import main

if __name__ == "__main__":
    sys.exit(main())
