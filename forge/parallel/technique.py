"""A parallel technique of a user's package."""

from __future__ import annotations

from torch import nn

from forge.config.root import Config
from forge.parallel.mesh import Mesh


class Technique:
    """Changes how a model runs, in place: an entry of `techniques`, built with its keywords.

    What layers compute must stay the same, and so must the names of parameters. `mix_in_each` of
    `forge.parallel.modules` puts a class before that of each layer of a type.
    """

    def __call__(self, model: nn.Module, config: Config, mesh: Mesh | None) -> None:
        """model: on the meta device, or a stage of it, with tp, ep and cp applied; recomputation,
        compilation and FSDP follow. mesh: null on a single device.
        """
        raise NotImplementedError
