"""All cross-section rules. They run after the derivations, each only when the keys it reads passed
their own bounds.
"""

from forge.config import (
    rules_context,
    rules_expert,
    rules_going_on,
    rules_launch,
    rules_layout,
    rules_model,
    rules_moe,
    rules_pipeline,
    rules_places,
    rules_run,
    rules_tensor,
    rules_training,
)
from forge.config.rule import Rule

RULES: tuple[Rule, ...] = tuple(
    value
    for module in (
        rules_model,
        rules_moe,
        rules_training,
        rules_layout,
        rules_tensor,
        rules_expert,
        rules_context,
        rules_pipeline,
        rules_run,
        rules_places,
        rules_launch,
        rules_going_on,
    )
    for value in vars(module).values()
    if isinstance(value, Rule)
)
