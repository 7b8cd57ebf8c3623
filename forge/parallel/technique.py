"""A parallel technique of a user's package."""

from __future__ import annotations

from torch import nn

from forge.config.root import Config
from forge.parallel.mesh import Mesh


class Technique:
    """Changes how a model runs, in place: an entry of `techniques`, built with its keywords.

    Results of layers and names of parameters must stay the same. `mix_in_each` of
    `forge.parallel.modules` puts a class before the class of each layer of a type.
    """

    def __call__(self, model: nn.Module, config: Config, mesh: Mesh | None) -> None:
        """model: on the meta device, or a stage, with tp, ep and cp applied; recomputation,
        compilation and FSDP follow. mesh: null on a single device.
        """
        raise NotImplementedError
