"""A schedule: a function of the step."""


def stairs(step: int, max_steps: int, halvings: int = 3) -> float:
    """The factor of the peak learning rate."""
    return 0.5 ** (step * (halvings + 1) // max_steps)
