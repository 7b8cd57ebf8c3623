"""All rules. They run after the derivations, each only when the keys it reads passed their own
bounds.
"""

from forge.resolve.rule import rules_of
from forge.resolve.rules import (
    degrees,
    devices,
    launch,
    model,
    run,
    run_directory,
    training,
)

RULES = rules_of(model, training, degrees, devices, run, run_directory, launch)
