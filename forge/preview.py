"""`python -m forge.preview [overrides]`: examples as a run reads them, and what of them is learnt.

Examples:
    python -m forge.preview data=chat_demo
    python -m forge.preview experiment=grpo_demo --group --rows 1
    python -m forge.preview data=chat data.path=my.jsonl data.chat_template=chatml --rows 1 --tokens
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING, Any, cast

from forge import cli
from forge.compose.trust import in_project
from forge.config.problems import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from forge.config.root import Config
    from forge.data.batches.loader import TrainLoader
    from forge.data.tokenizers.tokenizer import Tokenizer

DESCRIPTION = "The first rows that a run reads, with what of them is learnt; nothing is trained."
LEARNT, END = "\x1b[1;32m", "\x1b[0m"  # on a terminal; elsewhere these signs:
OPEN, CLOSE = "⟦", "⟧"


def main(argv: Sequence[str] | None = None) -> int:
    """Print rows of the first batches; 2 for unreadable data."""
    arguments = cli.parser("forge.preview", DESCRIPTION)
    add = arguments.add_argument
    add("--rows", type=int, default=4, metavar="N", help="rows that are shown (default 4)")
    add("--tokens", action="store_true", help="put | between tokens")
    add("--group", action="store_true", help="completions of the model, with their rewards")
    add("--json", action="store_true", help="a line a row: ids, and 1 for each that is learnt")
    options = cli.parse(arguments, argv)
    if options.help:
        return cli.help("forge.preview", arguments, options)
    return cli.refuse(lambda: _verb(options))


def _verb(options: argparse.Namespace) -> int:
    config = cli.resolved(in_project(options.overrides), options.config_dir)[1].config
    try:
        _preview(config, options)
    except ConfigError:  # printed by cli.refuse
        raise
    except ValueError as error:
        print(cli.printable(str(error)), file=sys.stderr)
        return 2
    return 0


def _preview(config: Config, options: argparse.Namespace) -> None:
    import torch

    from forge.build import build
    from forge.data.batches.targets import check_targets
    from forge.data.text.bad_rows import left_out
    from forge.parallel.ranks import Ranks
    from forge.training import data

    if options.group and not config.rollout.active:
        raise ValueError("--group: this run writes no completions; objective=grpo, or its kin")
    announce = cache(lambda stage: print(f"data: {stage}", file=sys.stderr))
    prepared = data.prepared_text(config, announce)
    data.check_vocabulary(config, prepared)
    if config.rollout.active:
        (_print_groups if options.group else _print_prompts)(config, prepared, options)
        return
    text = data.plan_documents(config, prepared.train, prepared.tokenizer, announce)
    tokenizer, trust = prepared.tokenizer, config.run.trust
    arguments: Any = {"path": "objective", "trust": trust, "tokenizer": tokenizer, "models": {}}
    objective = build(config.objective, **arguments)
    for line in left_out(prepared.manifest):
        print(line, file=sys.stderr)
    empty = check_targets(text, config.data.too_long, config.train.seq_len)
    for line in data.how_packed(config, text):
        print(line, file=sys.stderr)
    for source in empty:
        print(f"data: {source.said()}", file=sys.stderr)
    loader = data.train_loader(config, text, objective, Ranks(), torch.device("cpu"))
    _print_rows(loader, tokenizer, options)
    loader.close()


def _print_groups(config: Config, prepared: Any, options: argparse.Namespace) -> None:
    """Write and print the first groups of the first rollout, with the rewards."""
    from dataclasses import asdict

    import torch

    from forge.parallel.ranks import Ranks
    from forge.rundir.rollouts import table_rows
    from forge.training.models import build_objective, frozen_model
    from forge.training.process import set_up
    from forge.training.step_source import step_source

    device, ranks, tokenizer = set_up(config), Ranks(), prepared.tokenizer
    model = frozen_model(config, None, device, ranks, tokenizer, torch.float32)
    objective = build_objective(config, device, ranks, tokenizer=tokenizer)
    given: Any = {"tokenizer": tokenizer, "run_dir": None}
    source = step_source(config, prepared.train, model, objective, ranks, device, **given)
    try:
        completions = cast(Any, source).preview(options.rows)
    finally:
        source.close()
    for prompt, group in groupby(completions, key=lambda row: row.prompt):
        rows = table_rows(asdict(row) for row in group)
        if options.json:
            for row in rows:
                print(json.dumps(row))
            continue
        print(f"prompt {prompt + 1}:\n{cli.printable(rows[0]['prompt'])}\n")
        for row in rows:
            numbers = {name: row[name] for name in list(row)[2:] if name != "advantage"}
            said = "   ".join(f"{name} {_short(value)}" for name, value in numbers.items())
            print(f"{said}\n{cli.printable(row['completion'])}\n")


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _print_prompts(config: Config, prepared: Any, options: argparse.Namespace) -> None:
    """Print the first prompts in the order of the run, and the columns for rewards."""
    from forge.data.batches.mixture import Mixture
    from forge.rollouts.source import order_of, short_enough

    (store,) = Mixture.of(prepared.train).stores.values()
    rows, left_out = short_enough(config, cast(Any, store).rows)
    order = order_of(config, len(rows))
    for number in range(min(options.rows, len(rows))):
        row = rows[order.window(number)]
        if options.json:
            print(json.dumps({"tokens": row.ids, "prompt": row.prompt, **row.columns}))
        else:
            print(f"prompt {number + 1}: {len(row.ids):,} tokens   {json.dumps(dict(row.columns))}")
            print(row.prompt if isinstance(row.prompt, str) else json.dumps(row.prompt), end="\n\n")
    if not options.json:
        print(f"{len(rows):,} prompts; {left_out:,} are too long, and left out")


def _print_rows(loader: TrainLoader, tokenizer: Tokenizer, options: argparse.Namespace) -> None:
    """Print the first rows, and how many of their tokens are learnt."""
    shown = learnt = positions = 0
    while shown < options.rows:
        for row in _rows(next(loader).batches):
            if shown == options.rows:
                break
            shown, learnt, positions = (
                shown + 1,
                learnt + sum(row["learnt"]),
                positions + len(row["tokens"]),
            )
            if options.json:
                print(json.dumps(row))
            else:
                print(f"row {shown}: {_said(row)}")
                print(_spelled(row, tokenizer, between="|" if options.tokens else ""), end="\n\n")
    if not options.json:
        print(f"of {positions:,} tokens {learnt:,} are learnt, {learnt / max(positions, 1):.0%}")


def _rows(batches: list[dict[str, Tensor]]) -> Iterator[dict[str, Any]]:
    """The ids of each row, 1 for each learnt id, and each id's document number, without padding."""
    from forge.data import IGNORE_INDEX

    for batch in batches:
        if "targets" not in batch:
            raise ValueError("objective: its batches have no targets that could be shown.")
        documents = batch.get("documents")
        for number, (tokens, targets) in enumerate(
            zip(batch["tokens"].tolist(), batch["targets"].tolist(), strict=True)
        ):
            flags = [0, *(int(target != IGNORE_INDEX) for target in targets)]
            held = [0] * len(tokens) if documents is None else documents[number].tolist()
            # The last token of a row is a target alone.
            triples = zip([*tokens, 0], [0, *targets], flags, strict=True)
            ids = [target if learnt else token for token, target, learnt in triples]
            held = [*held, held[-1]]
            end = max((n for n, token_id in enumerate(ids) if token_id or flags[n]), default=-1) + 1
            yield {"tokens": ids[:end], "learnt": flags[:end], "documents": held[:end]}


def _said(row: dict[str, Any]) -> str:
    documents = len(set(row["documents"]))
    several = f" of {documents} documents" if documents > 1 else ""
    return f"{len(row['tokens']):,} tokens{several}, {sum(row['learnt']):,} of them learnt"


def _spelled(row: dict[str, Any], tokenizer: Any, *, between: str) -> str:
    """The text of a row, with learnt tokens in colour, or between signs."""
    begin, end = (LEARNT, END) if sys.stdout.isatty() else (OPEN, CLOSE)
    parts = []
    ids = zip(row["tokens"], row["learnt"], strict=True)
    for is_learnt, run in groupby(ids, key=lambda pair: pair[1]):
        held = [token for token, _ in run]
        pieces = [[token] for token in held] if between else [held]
        text = cli.printable(between.join(tokenizer.decode(token) for token in pieces))
        parts.append(f"{begin}{text}{end}" if is_learnt else text)
    return between.join(parts)


if __name__ == "__main__":
    sys.exit(main())
