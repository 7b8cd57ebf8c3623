"""All cross-section rules. They run after the derivations, each only when the keys it reads passed
their own bounds.
"""

from forge.resolve.rule import Rule
from forge.resolve.rules import (
    context,
    expert,
    going_on,
    launch,
    layout,
    model,
    moe,
    pipeline,
    places,
    run,
    tensor,
    training,
)

RULES: tuple[Rule, ...] = tuple(
    value
    for module in (
        model,
        moe,
        training,
        layout,
        tensor,
        expert,
        context,
        pipeline,
        run,
        places,
        launch,
        going_on,
    )
    for value in vars(module).values()
    if isinstance(value, Rule)
)
