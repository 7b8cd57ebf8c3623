"""Rules by role for models wider and deeper than the one whose rates were tuned: muP and CompleteP.

muP is arXiv:2203.03466 in the form of its tables for Adam with a factor of the logits; CompleteP is
arXiv:2505.01618, table 1 with alpha = 1.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

from forge.config.field import opt, section
from forge.config.model.tensors import EXPERT, MATRIX, ROUTER
from forge.config.optimizers import param_groups
from forge.config.optimizers.base import Optimizer
from forge.config.optimizers.lion import Lion
from forge.config.optimizers.muon import Muon
from forge.config.scaling.base import Row, Scaling, Settings

HIDDEN = (MATRIX, EXPERT, ROUTER)
"""Roles of the matrices with inputs and outputs as wide as the model."""
GROUP = "hidden"
"""Name of the group of parameters that is added for them."""


@section
class Widths(Scaling):
    """Rates of a model base_dim wide, for another width."""

    in_depth: ClassVar[bool] = False
    base_dim: int = opt(256, "width of the model whose rates were tuned", gt=0)
    base_head_dim: int | None = opt(
        None, "width of its heads; null = the same: a wider model has more of them", gt=0
    )
    init_std: float = opt(0.02, "standard deviation of its initial weights", gt=0)

    def depth_factor(self, config: Any) -> float:
        """How many times deeper the model is than that of the base, where depth counts."""
        return 1.0

    def rates(self, settings: Settings) -> None:
        if settings.lacks_decoder():
            return
        model = settings.config.model
        if getattr(model, "initial_law", "normal") != "normal":
            message = f"model.initial_law={model.initial_law} has initial weights of its own."
            settings.refuse("model.initial_law", message, "model.initial_law=normal")
            return
        power = lr_power(settings.config.optimizer)
        if power is None:
            name = settings.config.optimizer.schema_name or settings.config.optimizer._target_
            message = f"its rules are of Adam, Lion and Muon, and none is of {name}."
            settings.refuse("optimizer", message, "optimizer=adamw")
            return
        self._initial(settings, model.dim / self.base_dim)
        self._forward(settings, model.dim / self.base_dim)
        self._optimizer(settings, model.dim / self.base_dim, power)

    def _initial(self, settings: Settings, width: float) -> None:
        """Set standard deviations of the initial weights."""
        std = self.init_std
        why = f"{std:g} / sqrt({width:g}), model.dim / scaling.base_dim"
        settings.set("model.init_std", std / math.sqrt(width), why)
        settings.set("model.init_std_tables", std, "scaling.init_std, at every width")

    def _forward(self, settings: Settings, width: float) -> None:
        """Set factors of the forward pass."""
        model = settings.config.model
        logits, head_dim = model.logits_multiplier, model.computed_head_dim
        why = f"{logits:g} / {width:g}, model.dim / scaling.base_dim"
        settings.set("model.logits_multiplier", logits / width, why)
        if self.base_head_dim is not None:
            why = f"sqrt({self.base_head_dim}) / {head_dim}, the width of a head"
            settings.set("model.query_scale", math.sqrt(self.base_head_dim) / head_dim, why)

    def _optimizer(self, settings: Settings, width: float, power: float) -> None:
        """Give the matrices of the blocks rates of their own, in a group."""
        config = settings.config
        eps = getattr(config.optimizer, "eps", None)
        if not power and eps is None:
            settings.note("optimizer.lr", "an update of Muon is as large at every width")
            return
        options: dict[str, Any] = {"lr_base_dim": self.base_dim, "lr_dim_power": power}
        if decay := config.optimizer.weight_decay:
            options["weight_decay"] = decay * width**-power
        if eps is not None:
            depth = self.depth_factor(config)
            options["eps"] = eps / (width * depth)
            settings.set("optimizer.eps", eps / width, f"{eps:g} / {width:g}")
        words = f"lr * {width:g}^{power:g}, weight decay * {width:g}^{-power:g}"
        for name, tensors in param_groups.tensors_in(config).items():
            roles = {tensor.role for tensor in tensors} if name is not None else set()
            hidden = sorted(roles & set(HIDDEN))
            if name == param_groups.OWN and hidden:
                takes = config.optimizer.takes or HIDDEN
                entry = {"roles": [role for role in HIDDEN if role in takes], **options}
                settings.set(f"optimizer.groups.{GROUP}", entry, words)
            elif name and (MATRIX in roles or EXPERT in roles):
                if roles - set(HIDDEN):
                    message = f"the group {name} has matrices of blocks beside {', '.join(roles)}."
                    hint = "a group of the matrices alone: their rates follow the width"
                    settings.refuse(f"optimizer.groups.{name}", message, hint)
                    return
                entry = {**config.optimizer.groups[name], **options}
                settings.set(f"optimizer.groups.{name}", entry, words)

    def facts(self, config: Any) -> list[Row]:
        width = config.model.dim / self.base_dim
        return [("width", f"{width:g} times the {self.base_dim} of the base")]


@section
class MuP(Widths):
    """muP: rates found at one width hold at every width (arXiv:2203.03466)."""

    schema_name = "mup"


@section
class CompleteP(Widths):
    """CompleteP: rates found at one width and depth hold at every width and depth."""

    schema_name = "completep"
    base_layers: int = opt(2, "blocks of the model whose rates were tuned", gt=0)

    def depth_factor(self, config: Any) -> float:
        return config.model.n_layers / self.base_layers

    def _forward(self, settings: Settings, width: float) -> None:
        super()._forward(settings, width)
        depth, factor = (
            self.depth_factor(settings.config),
            settings.get("model.residual_multiplier"),
        )
        why = f"{factor:g} / {depth:g}, model.n_layers / scaling.base_layers"
        settings.set("model.residual_multiplier", factor / depth, why)
        settings.set("model.init_scale_residual", False, "model.residual_multiplier does it")

    def facts(self, config: Any) -> list[Row]:
        depth = self.depth_factor(config)
        return [
            *super().facts(config),
            ("depth", f"{depth:g} times the {self.base_layers} blocks of the base"),
        ]


def lr_power(optimizer: Optimizer) -> float | None:
    """Power of the width that the learning rate of matrices grows with; None = no rule is known.

    -1 where the values of an update are of one size: a sign, or divided by the root of a second
    moment, with an eps. An update of Muon has singular values of max(1, rows / columns)^0.5: 0;
    with consistent_rms its values are of one size, and the singular values grow with the root of
    the width: -0.5.
    """
    if isinstance(optimizer, Lion) or hasattr(optimizer, "eps"):
        return -1.0
    if isinstance(optimizer, Muon):
        return 0.0 if optimizer.consistent_rms is None else -0.5
    return None
