"""What forge's loop adds to a bare PyTorch loop: same model, batch size, clipping and fused AdamW,
blocks of steps in turn.

    python benchmarks/loop_overhead.py > benchmarks/results/loop_overhead.md

The bare loop reads one batch made beforehand and logs nothing. forge's loads its data, follows its
schedule and logs at the default interval; its steps are timed from the end of one to the end of the
next.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import forge
from forge.models.decoder import Decoder
from forge.rundir import directory
from forge.training.assemble import assemble
from forge.training.callback import Callback
from forge.training.loop import Loop
from forge.training.step import StepOutput

SMALL = (
    "model.vocab_size=512 tokenizer.vocab_size=512 model.dim=64 model.n_layers=4 model.n_heads=2"
    " train.batch_size=1 train.seq_len=64"
)
LARGE = "model.dim=384 model.n_layers=7 model.n_heads=6 train.batch_size=8 train.seq_len=256"
COMMON = "eval=off checkpoint.interval=1000000 metrics.enable_console=false"
BLOCK = 25


class Bare:
    """The shortest loop that does the same arithmetic."""

    def __init__(self, model: Decoder, batch: int, seq: int, clip: float) -> None:
        self.model, self.clip = model, clip
        self.tokens = torch.randint(model.section.vocab_size, (batch, seq + 1))
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=1e-4, betas=(0.9, 0.95), fused=True
        )

    def steps(self, count: int) -> list[float]:
        """Seconds of each of `count` steps."""
        taken = []
        for _ in range(count):
            begin = time.perf_counter()
            logits = self.model(self.tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), self.tokens[:, 1:].flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            taken.append(time.perf_counter() - begin)
        return taken


class Interleave(Callback):
    """After every block of forge's steps, one block of the bare loop; times both."""

    def __init__(self, bare: Bare) -> None:
        self.bare = bare
        self.ours: list[float] = []
        self.theirs: list[float] = []
        self.mark: float | None = None

    def on_step_end(self, loop: Loop, output: StepOutput) -> None:
        now = time.perf_counter()
        if self.mark is not None:
            self.ours.append(now - self.mark)
        if loop.state.step % BLOCK == 0:
            with loop.paused():
                self.theirs += self.bare.steps(BLOCK)[1:]
            self.mark = None
        else:
            self.mark = time.perf_counter()


def measure(overrides: str, steps: int) -> tuple[int, list[float], list[float]]:
    """(parameters, seconds of forge's steps, seconds of bare steps), the first two blocks of each
    left out.
    """
    with tempfile.TemporaryDirectory() as folder:
        config = forge.compose(
            [
                *COMMON.split(),
                *overrides.split(),
                f"train.max_steps={steps}",
                f"run.dir={folder}/run",
            ]
        )
        run_dir, resolved = directory.create(config.validate(), overrides=())
        parts = assemble(Path(run_dir))
        copy = Decoder(resolved.model)  # type: ignore[arg-type]
        copy.load_state_dict(parts.model.state_dict())
        timer = Interleave(
            Bare(
                copy,
                resolved.train.batch_size,
                resolved.train.seq_len,
                resolved.train.grad_clip_norm,
            )
        )
        parts.loop.callbacks = [*parts.loop.callbacks, timer]
        parts.loop.run()
    size = sum(p.numel() for p in copy.parameters())
    skip = 2 * (BLOCK - 1)
    return size, timer.ours[skip:], timer.theirs[skip:]


def main() -> None:
    print(
        f"`python {' '.join(sys.argv)}`, torch {torch.__version__}, {torch.get_num_threads()}"
        " threads.\n"
    )
    names = [
        "model",
        "batch",
        "steps each",
        "bare fastest",
        "forge fastest",
        "bare median",
        "forge median",
    ]
    names += ["added, fastest", "added, median", "ratio of medians"]
    print(f"| {' | '.join(names)} |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    spreads = []
    for overrides, steps, batch in ((SMALL, 3000, "1 x 64"), (LARGE, 150, "8 x 256")):
        size, ours, bare = measure(overrides, steps)
        low, middle = (min(ours), min(bare)), (statistics.median(ours), statistics.median(bare))
        row = [
            f"{size / 1e6:.2f}M",
            batch,
            str(len(ours)),
            *(f"{s * 1e3:.3f} ms" for s in (low[1], low[0], middle[1], middle[0])),
        ]
        row += [
            f"{(low[0] - low[1]) * 1e3:+.3f} ms",
            f"{(middle[0] - middle[1]) * 1e3:+.3f} ms",
            f"{middle[0] / middle[1]:.4f}",
        ]
        print(f"| {' | '.join(row)} |", flush=True)
        cuts = statistics.quantiles(bare, n=20)
        low_high = f"{cuts[0] / middle[1]:.3f} to {cuts[-1] / middle[1]:.3f}"
        spreads.append(
            f"{size / 1e6:.2f}M: bare steps, 5th to 95th percentile: {low_high} of the median"
        )
    print("\n" + "\n\n".join(spreads))


if __name__ == "__main__":
    main()
