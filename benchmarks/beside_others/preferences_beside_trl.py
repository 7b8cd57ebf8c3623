"""Ten losses of ORPO, SimPO, KTO and QLoRA in forge and in TRL with PEFT, on the same rows.

    python benchmarks/beside_others/preferences_beside_trl.py [--steps 10] [--threads 1]

A Llama of four layers with random weights, rows of 40 to 57 tokens, four a step, AdamW at a rate of
1e-3, fp32 on the CPU. Both begin with the same weights; of QLoRA with the same adapters, beside a
base in nf4 without double quantisation, for which bitsandbytes takes the mean of all scales of a
matrix, and forge that of a row. Writes results/preferences_beside_trl.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import beside_trl

RATE, ROWS, LENGTH, RANK, ALPHA = 1e-3, 4, 96, 8, 16
NOTES = """\
Where TRL computes something else, a second line has TRL with that alone changed:

* ORPO: its cross-entropy is over prompts and responses, as a mean over the tokens of a micro-batch;
  forge's is over responses, as a mean over each, which no layout changes.
* KTO: its mismatched responses are those of the micro-batch, turned by one; forge's are those of
  the row before in all rows, so that no micro-batch changes them. Forge reads the first row last,
  whose mismatched response is that of the last one; TRL is given the rows in this order.
* QLoRA: TRL rounds adapters to bf16 and trains them so; forge keeps them in fp32.
"""
LAMBDA, BETA, GAMMA = 0.1, 2.0, 0.5
OF_KTO, WEIGHTS = 0.1, {"desirable_weight": 1.3, "undesirable_weight": 0.6}
SHAPE = {
    "vocab_size": 512,
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "initializer_range": 0.1,
}


class Method(NamedTuple):
    """overrides: what forge is told. peers: by their names what makes a trainer of TRL, of the
    folder and the arguments of its config.
    """

    overrides: str
    peers: dict[str, Callable[[Path, dict[str, Any]], Any]]


def common(folder: Path, rows: str) -> dict[str, Any]:
    """Arguments of every trainer."""
    from datasets import Dataset
    from transformers import AutoTokenizer

    return {
        "model": beside_trl.plain_model(folder / "model"),
        "train_dataset": Dataset.from_list(beside_trl.read_rows(folder / rows)),
        "processing_class": AutoTokenizer.from_pretrained(folder / "model"),
    }


def orpo(folder: Path, settings: dict[str, Any], *, of_responses: bool = False) -> Any:
    """TRL's ORPO. of_responses: with forge's cross-entropy."""
    from trl.experimental.orpo.orpo_config import ORPOConfig
    from trl.experimental.orpo.orpo_trainer import ORPOTrainer

    class InOrder(beside_trl.InOrder, ORPOTrainer):
        def concatenated_forward(self, *args: Any, **more: Any) -> Any:
            chosen, *others, nll = super().concatenated_forward(*args, **more)
            return (chosen, *others, -chosen.mean() if of_responses else nll)

    return InOrder(args=ORPOConfig(beta=LAMBDA, **settings), **common(folder, "pairs.jsonl"))


def simpo(folder: Path, settings: dict[str, Any]) -> Any:
    """TRL's SimPO."""
    from trl.experimental.cpo.cpo_config import CPOConfig
    from trl.experimental.cpo.cpo_trainer import CPOTrainer

    class InOrder(beside_trl.InOrder, CPOTrainer):
        pass

    own: dict[str, Any] = {"loss_type": "simpo", "simpo_gamma": GAMMA, "cpo_alpha": 0.0}
    return InOrder(args=CPOConfig(beta=BETA, **own, **settings), **common(folder, "pairs.jsonl"))


def kto(folder: Path, settings: dict[str, Any], *, of_all_rows: bool = False) -> Any:
    """TRL's KTO. of_all_rows: with forge's mismatched responses."""
    from trl.trainer.kto_config import KTOConfig
    from trl.trainer.kto_trainer import KTOTrainer

    class InOrder(beside_trl.InOrder, KTOTrainer):
        def _prepare_dataset(self, dataset: Any, *args: Any, **more: Any) -> Any:
            made: Any = super()._prepare_dataset(dataset, *args, **more)
            if of_all_rows:
                *others, last = list(made["completion_ids"])
                made = made.remove_columns("KL_completion_ids")
                made = made.add_column("KL_completion_ids", [last, *others])
            return made

    given = common(folder, "labelled.jsonl")
    first, *others = given["train_dataset"].to_list()
    given["train_dataset"] = given["train_dataset"].from_list([*others, first])
    return InOrder(
        args=KTOConfig(beta=OF_KTO, **WEIGHTS, **settings),
        ref_model=beside_trl.plain_model(folder / "model"),
        **given,
    )


def qlora(folder: Path, settings: dict[str, Any], *, in_fp32: bool = False) -> Any:
    """TRL's SFT with PEFT's adapters beside bitsandbytes' base. in_fp32: adapters stay in fp32."""
    import torch
    from peft import PeftModel, load_peft_weights, set_peft_model_state_dict
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer

    class InOrder(beside_trl.InOrder, SFTTrainer):
        pass

    how = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32
    )
    base = AutoModelForCausalLM.from_pretrained(
        folder / "model", dtype=torch.float32, quantization_config=how, device_map="cpu"
    )
    model = PeftModel.from_pretrained(base, str(folder / "adapter"), is_trainable=True)
    given: dict[str, Any] = common(folder, "answered.jsonl")
    given["model"] = model
    trainer = InOrder(args=SFTConfig(packing=False, **settings), **given)
    if in_fp32:
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.float()
        set_peft_model_state_dict(model, load_peft_weights(str(folder / "adapter")))
    return trainer


METHODS = {
    "ORPO": Method(
        f"data=preference objective=orpo objective.lambda_weight={LAMBDA}",
        {
            "TRL": orpo,
            "TRL, forge's cross-entropy": lambda *given: orpo(*given, of_responses=True),
        },
    ),
    "SimPO": Method(
        f"data=preference objective=simpo objective.beta={BETA} objective.gamma={GAMMA}",
        {"TRL": simpo},
    ),
    "KTO": Method(
        f"data=labelled objective=kto objective.beta={OF_KTO} "
        + " ".join(f"objective.{name}={value}" for name, value in WEIGHTS.items()),
        {"TRL": kto, "TRL, forge's mismatched rows": lambda *given: kto(*given, of_all_rows=True)},
    ),
    "QLoRA": Method(
        "data=pairs objective=sft data.response_field=completion data.packing=none adapter=qlora "
        f"adapter.rank={RANK} adapter.alpha={ALPHA} adapter.dropout=0 adapter.init_from=adapter "
        "adapter.double_quantization=false",
        {"TRL": qlora, "TRL, adapters in fp32": lambda *given: qlora(*given, in_fp32=True)},
    ),
}
ROWS_OF = {"ORPO": "pairs", "SimPO": "pairs", "KTO": "labelled", "QLoRA": "answered"}


def main() -> None:
    """Run all, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--trl", nargs=3, metavar=("FOLDER", "METHOD", "PEER"), help="TRL alone")
    options = parser.parse_args()
    both = Namespace(rate=RATE, batch=ROWS, length=LENGTH, **vars(options))
    if options.trl:
        folder, method, peer = options.trl
        print(json.dumps(losses_of_trl(Path(folder), method, peer, both)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        losses = compare(Path(temporary), both)
    beside_trl.RESULTS.mkdir(exist_ok=True)
    page = beside_trl.RESULTS / "preferences_beside_trl.md"
    page.write_text(table(losses, options), encoding="utf-8")


def compare(folder: Path, both: Namespace) -> dict[str, dict[str, list[float]]]:
    """Losses by method, then by side; of forge first."""
    write_inputs(folder, both.steps * ROWS)
    losses = {}
    for name, method in METHODS.items():
        losses[name] = {"forge": losses_of_forge(folder, name, both)}
        for peer in method.peers:
            more = ["--steps", str(both.steps), "--threads", str(both.threads)]
            words = ["--trl", str(folder), name, peer, *more]
            losses[name][peer] = beside_trl.in_a_process(__file__, *words)
    return losses


def write_inputs(folder: Path, count: int) -> None:
    """The model's folder, rows of each kind, and adapters of which B is not zero."""
    import torch
    from peft import LoraConfig, get_peft_model

    beside_trl.write_model(folder / "model", **SHAPE)
    draw = random.Random(0)
    pairs: list[dict[str, Any]] = [beside_trl.pair(draw) for _ in range(count)]
    beside_trl.write_rows(folder / "pairs.jsonl", pairs)
    answered = [{"prompt": row["prompt"], "completion": row["chosen"]} for row in pairs]
    beside_trl.write_rows(folder / "answered.jsonl", answered)
    labelled = [row | {"label": draw.random() < 0.5} for row in answered]
    beside_trl.write_rows(folder / "labelled.jsonl", labelled)
    how = LoraConfig(
        r=RANK,
        lora_alpha=ALPHA,
        lora_dropout=0.0,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    adapted = get_peft_model(beside_trl.plain_model(folder / "model"), how)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.02)
    adapted.save_pretrained(str(folder / "adapter"))


def losses_of_forge(folder: Path, name: str, both: Namespace) -> list[float]:
    """Losses of `forge.train`."""
    run, rows = folder / f"forge-{name}", folder / f"{ROWS_OF[name]}.jsonl"
    words = METHODS[name].overrides.split()
    words += beside_trl.forge_words(run, folder / "model", rows, both)
    command = [sys.executable, "-m", "forge.train", *words]
    subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, check=True)
    return beside_trl.forge_losses(run)


def losses_of_trl(folder: Path, name: str, peer: str, both: Namespace) -> list[float]:
    """Losses of one of TRL's trainers, in this process."""
    import torch

    torch.set_num_threads(both.threads)
    settings = beside_trl.trl_settings(folder / "trl", both)
    return beside_trl.train_by_trl(METHODS[name].peers[peer](folder, settings))["losses"]


def table(losses: dict[str, dict[str, list[float]]], options: Any) -> str:
    """The page of results."""
    script = "benchmarks/beside_others/preferences_beside_trl.py"
    command = " ".join(["python", script, *sys.argv[1:]])
    used = beside_trl.versions("peft", "bitsandbytes")
    lines = ["# ORPO, SimPO, KTO and QLoRA beside TRL and PEFT\n"]
    lines += [f"`{command}`, {used}, {options.threads} thread.\n"]
    lines += [(__doc__ or "").partition("\n\n    ")[0] + "\n"]
    lines += [(__doc__ or "").split("\n\n")[2].partition(" Writes")[0] + "\n", NOTES]
    lines += ["| method | | losses | largest relative difference |", "|---|---|---|---:|"]
    for name, by_side in losses.items():
        ours = by_side["forge"]
        for side, theirs in by_side.items():
            shown = " ".join(f"{loss:.5f}" for loss in theirs)
            largest = difference(ours, theirs)
            last = "" if side == "forge" else f"{largest:.1e}"
            lines.append(f"| {name} | {side} | {shown} | {last} |")
    return "\n".join(lines) + "\n"


def difference(ours: list[float], theirs: list[float]) -> float:
    """The largest relative difference of losses of a step."""
    each = zip(ours, theirs, strict=True)
    return max(abs(one - other) / abs(other) for one, other in each)


if __name__ == "__main__":
    main()
