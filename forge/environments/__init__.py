"""Environments: they answer a model between the turns of a completion, and may reward it.

An environment has `reset(row)`, called once with the fields of the row, and `step(text) -> (reply,
done, reward)`, called with the text of each turn. The reply is put behind the turn, and never
learnt. reward: a number, or None for no reward. Torch-free.
"""

from forge.environments.environments import EnvironmentFault, Environments, Reply

__all__ = ["EnvironmentFault", "Environments", "Reply"]
