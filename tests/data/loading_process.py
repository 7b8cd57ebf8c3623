"""A process with two loader processes, that is killed once it has a batch, or ends with its input:
python -m loading_process FOLDER, where FOLDER is a token store.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from forge.config.objectives.base import Pretrain as PretrainConfig
from forge.data.batches.loader import TrainLoader
from forge.data.tokens.shards import IndexedStore
from forge.objectives.pretrain import Pretrain

if __name__ == "__main__":
    store = IndexedStore(Path(sys.argv[1]))
    text = Pretrain(PretrainConfig())
    loader = TrainLoader(store, text, seq_len=16, seed=0, batch_size=1, num_workers=2)
    for _ in range(4):
        next(loader)  # two batches of each of them
    if "RANK" in os.environ:
        os.kill(os.getpid(), signal.SIGKILL)
    print("loaded", flush=True)
    sys.stdin.read()
