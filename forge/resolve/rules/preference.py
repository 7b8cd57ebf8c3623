"""Rules on preference objectives: their data, packing and reference."""

from __future__ import annotations

from forge.config.adapters.adapter import Adapter
from forge.config.data.text import Data
from forge.config.objectives.base import Objective
from forge.config.objectives.preference import EXAMPLES, Referenced
from forge.config.parallel import Parallel
from forge.config.root import Config
from forge.config.rule import Findings, rule
from forge.resolve.derivations import why_no_reference
from forge.resolve.rules.borders import all_read

FOR = {
    "": "objective=pretrain",
    "pairs": "objective=dpo, or orpo, simpo, cpo",
    "labels": "objective=kto",
    "prompts": "objective=grpo, or dapo, rloo, reinforce",
}
KIND = {"": "text", "pairs": "preference", "labels": "labelled", "prompts": "prompts"}


@rule("objective.examples", "data._target_", "data.sources", "data.validation", "eval.sets")
def examples(config: Config, objective: Objective) -> Findings:
    """An objective reads data of its kind: running text, pairs of responses, or
    responses with a label."""
    for key, section in all_read(config):
        if section.examples in objective.compares:
            continue
        name = objective.schema_name or objective._target_
        expected = " or ".join(EXAMPLES[kind] for kind in objective.compares)
        message = f"objective={name} reads {expected}, and this is {EXAMPLES[section.examples]}."
        kinds = " or ".join(KIND[kind] for kind in objective.compares)
        if key == "data":
            hint = f"{FOR[section.examples]}; or data={kinds} data.path=my.jsonl"
            key = "data._target_"
        else:
            hint = f"name other text there: {kinds} data"
        yield key, message, hint


@rule(
    "objective.pack_sequences", "data.pack_sequences", "data.packing", "data.max_segments_per_seq"
)
def pairs_stay_apart(data: Data, objective: Objective) -> Findings:
    """Responses are compared row by row, so that none is packed with another."""
    if "" in objective.compares or not data.examples:  # another rule reports text
        return
    if data.pack_sequences:
        yield "data.pack_sequences", "data.pack_sequences=false"
    if data.packing != "concat_then_split":
        yield "data.packing", "data.packing=concat_then_split"
    if data.max_segments_per_seq > 0:
        yield "data.max_segments_per_seq", "data.max_segments_per_seq=0"


@rule("objective.cp", "parallel.cp", "parallel.pp")
def cp(objective: Objective, parallel: Parallel) -> Findings:
    """Preferences sum responses over the ranks of parallel.cp, outside of a pipeline; other
    objectives on responses need parallel.cp=1.
    """
    if parallel.cp == 1 or "" in objective.compares:
        return
    summed = set(objective.compares) <= {"pairs", "labels"}
    if not summed or parallel.pp > 1:
        yield "parallel.cp", "parallel.cp=1"


@rule(
    "objective.reference",
    "objective.reference",
    "objective.reference_free",
    "adapter.bias",
    "adapter.modules_to_save",
    "parallel.pp",
)
def reference_of_adapter(objective: Referenced, adapter: Adapter, parallel: Parallel) -> Findings:
    """objective.reference=adapter needs an adapter, a base that stays as it is, and no pipeline."""
    if objective.reference_free or objective.reference != "adapter":
        return
    if why := why_no_reference(adapter, parallel):
        alternative = "" if adapter.active else ", or adapter=lora"
        yield "objective.reference", f"{why}.", f"objective.reference=cached{alternative}"


@rule("objective.reference_model", "objective.reference_model", "objective.reference")
def reference_model(objective: Referenced) -> Findings:
    """The reference is objective.reference_model, or with reference=adapter the base: not both."""
    if objective.reference == "adapter" and objective.reference_model:
        yield "objective.reference_model", "objective.reference=cached"
