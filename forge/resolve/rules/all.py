"""All rules. A rule runs after the derivations, only when the keys it reads passed their bounds.
Rules of one component stand with the component; the rules here read several sections.
"""

import sys

from forge.config import schemas
from forge.config.rule import rules_of
from forge.resolve.rules import (
    adapter,
    added_tokens,
    base_run,
    borders,
    degrees,
    devices,
    environments,
    evaluation,
    fused,
    hugging_face,
    ia3,
    launch,
    mixture,
    model,
    optimizer,
    own,
    packing,
    peft,
    preference,
    qlora,
    quantization,
    recompute,
    run,
    run_directory,
    sft,
    streaming,
    training,
)
from forge.resolve.rules.steps import (
    branch,
    diloco,
    fault_tolerance,
    horizon,
    local_tier,
    remote,
    stages,
)

OF_COMPONENTS = [sys.modules[name] for name in schemas.schema_modules()]
OF_ALL = (
    model,
    added_tokens,
    optimizer,
    own,
    borders,
    packing,
    preference,
    streaming,
    horizon,
    stages,
    diloco,
    fault_tolerance,
    local_tier,
    remote,
    training,
    sft,
    recompute,
    fused,
    mixture,
    evaluation,
    environments,
    degrees,
    devices,
    quantization,
    adapter,
    qlora,
    ia3,
    peft,
    run,
    run_directory,
    base_run,
    branch,
    hugging_face,
    launch,
)
RULES = rules_of(*OF_COMPONENTS, *OF_ALL)
