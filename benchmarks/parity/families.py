"""How far every family of Hugging Face is from transformers' own class, by what is checked.

    python benchmarks/parity/families.py > benchmarks/results/families.md

Exits with 1 when a check is outside of its bound, which the table then says. With the path of an
older table after it, cases that it has are taken from there, and not measured again.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.nn.functional as F
from tiny_families import CASES, INDEXING, SLACK, VOCAB, gradients_as_weights, peer
from torch import Tensor
from transformers import AutoModelForCausalLM

from forge.families import folder as folders
from forge.families.shards import stored_tensors
from forge.hf.read import load_folder
from forge.hf.write import write_weights
from forge.models.decoder import Decoder
from forge.models.sampling import generate

SEQ, PROMPT, NEW, BOUND = 48, 9, 64, 1e-5


class Pair:
    """A case's model of transformers, and ours with the weights of the folder that it wrote."""

    def __init__(self, case: str, place: Path) -> None:
        self.theirs, self.folder = peer(case), place / "theirs"
        self.theirs.save_pretrained(self.folder)
        self.ours = imported(self.folder).eval()
        self.place = place
        drawn = torch.Generator().manual_seed(1)
        self.tokens = torch.randint(VOCAB, (2, SEQ), generator=drawn)


def imported(folder: Path) -> Decoder:
    """The model of a folder, by the names of its family."""
    section = folders.read_folder(folder).section
    model = Decoder(section)
    load_folder(folder, section, model.state_dict())
    return model


def logits(pair: Pair) -> float:
    """The greatest difference of logits, of sequences longer than the window."""
    with torch.no_grad():
        expected, found = pair.theirs(pair.tokens).logits, pair.ours(pair.tokens)
    assert expected.std() > 0.3, "the logits say nothing"
    return float((found - expected).abs().max())


def gradients(pair: Pair) -> float:
    """The greatest relative difference of the gradient of a tensor."""
    loss(pair.theirs(pair.tokens).logits, pair.tokens).backward()
    loss(pair.ours(pair.tokens), pair.tokens).backward()
    gradients_as_weights(pair.theirs)
    pair.theirs.save_pretrained(pair.place / "gradients")
    expected = dict(imported(pair.place / "gradients").named_parameters())
    worst = 0.0
    for name, parameter in pair.ours.named_parameters():
        if INDEXING in name:  # it learns from a loss of its own
            assert parameter.grad is None
            continue
        assert parameter.grad is not None
        # A key bias shifts every score of a query alike: its gradient is zero but for rounding. Of
        # a decay the terms of all tokens nearly cancel, in a_log and dt_bias more than in wa, wdt.
        of = name.replace("wk", "wq") if name.endswith("wk.bias") else name
        for name_of_step in ("wa.weight", "wdt.weight"):
            decay = of.replace("a_log", name_of_step).replace("dt_bias", name_of_step)
            of = decay if decay in expected else of
        scale = float(expected[of].detach().norm())
        assert scale > 1e-5, name
        off = float((parameter.grad - expected[name].detach()).norm())
        worst = max(worst, off / scale)
    return worst


def greedy(pair: Pair) -> float:
    """Tokens that differ, of 64 that are likeliest, with a cache and without."""
    prompt = pair.tokens[:, :PROMPT]
    options: dict[str, Any] = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}
    mask = torch.ones_like(prompt)
    expected = pair.theirs.generate(prompt, attention_mask=mask, eos_token_id=None, **options)
    assert expected.shape == (2, PROMPT + NEW)
    found = [
        generate(pair.ours, prompt, NEW, temperature=0.0, use_cache=cached)
        for cached in (True, False)
    ]
    return float(sum(int((one != expected).sum()) for one in found))


def documents(pair: Pair) -> float:
    """The greatest difference of logits of two documents in a row from those of each alone."""
    cut = SEQ // 3
    numbers = torch.arange(SEQ).ge(cut).long().expand(2, SEQ)
    with torch.no_grad():
        together = pair.ours.logits(pair.ours.hidden(pair.tokens, documents=numbers))
        alone = [pair.theirs(part).logits for part in pair.tokens.split((cut, SEQ - cut), dim=1)]
    return float((together - torch.cat(alone, dim=1)).abs().max())


def round_trip(pair: Pair) -> float:
    """Bits of weights, and logits of transformers, that differ when ours writes the folder again:
    the number of tensors.
    """
    folder, out = folders.read_folder(pair.folder), pair.place / "again"
    chosen = folder.family  # another may say the same model by other tensors
    assert not chosen.unsaid(folder.section), chosen.unsaid(folder.section)
    out.mkdir()
    rows, own = chosen.rows(folder.section), pair.ours.state_dict()
    write_weights(out, rows, own.__getitem__, dtype=torch.float32, shard_bytes=100_000)
    content = chosen.content(folder.section) | {"model_type": chosen.model_type}
    (out / "config.json").write_text(json.dumps(content))
    theirs = AutoModelForCausalLM.from_pretrained(out, attn_implementation="eager")
    before, after = pair.theirs.state_dict(), theirs.state_dict()
    assert before.keys() == after.keys()
    different = sum(not torch.equal(before[name], after[name]) for name in before)
    with torch.no_grad():
        logits = [one.eval()(pair.tokens).logits for one in (pair.theirs, theirs)]
    names = [set(stored_tensors(place)) for place in (pair.folder, out)]
    return float(different + (not torch.equal(*logits)) + len(names[0] ^ names[1]))


def loss(found: Tensor, tokens: Tensor) -> Tensor:
    return F.cross_entropy(found[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


CHECKS: dict[str, tuple[Callable[[Pair], float], float]] = {
    "logits": (logits, BOUND),
    "greedy tokens": (greedy, 0.0),
    "two documents": (documents, BOUND),
    "round trip": (round_trip, 0.0),
    "gradients": (gradients, BOUND),  # last: it puts them in the place of the weights
}
"""By what is said of it: the check, and the most that it may give."""


def outside(case: str, found: dict[str, float]) -> dict[str, float]:
    """What is beyond its bound."""
    slack = SLACK.get(case, 1.0)
    return {name: value for name, value in found.items() if not value <= slack * CHECKS[name][1]}


def measured(case: str) -> dict[str, float]:
    """What each check gives for a case."""
    with tempfile.TemporaryDirectory() as place:
        pair = Pair(case, Path(place))
        return {name: check(pair) for name, (check, _) in CHECKS.items()}


def main() -> int:
    """Print the table."""
    import transformers

    print("# Families against transformers\n\n`python benchmarks/parity/families.py`:", end=" ")
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, fp32 on a CPU.")
    print("A tiny random model of transformers' own class is saved by it and read by forge.\n")
    print("* logits, two documents: the greatest difference; of sequences longer than windows and")
    print("  chunks, and of two documents in a row from each alone.")
    print(f"* greedy tokens: those that differ of 2 * {NEW}, with a cache and without.")
    print(
        "* round trip: tensors that differ in a bit when forge writes the folder again, and 1 more"
    )
    print("  where transformers' logits of it do.")
    print("* gradients: the greatest relative difference of a tensor's.\n")
    print("Bounds are 1e-5 and 0; 4e-5 for delta nets and Gemma 4, where fp32 is 2.6e-5 and 1.9e-5")
    print("from fp64: Gemma 4 does not divide scores by the root of the width of heads.\n")
    older = [line for path in sys.argv[1:] for line in Path(path).read_text().splitlines()]
    if older:
        print("Rows of an older table are as they were measured then, by transformers 5.23.0 on.\n")
    print("| case | model_type | " + " | ".join(CHECKS) + " |\n|---|---|" + "---|" * len(CHECKS))
    wrong = 0
    for case in CASES:
        begin = f"| {case} | `{CASES[case]().model_type}` | "
        if lines := [line for line in older if line.startswith(begin)]:
            print(lines[0], flush=True)
            continue
        found = measured(case)
        wrong += len(outside(case, found))
        cells = [f"{v:.0e}" if CHECKS[name][1] else f"{int(v)}" for name, v in found.items()]
        print(f"{begin}{' | '.join(cells)} |", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
