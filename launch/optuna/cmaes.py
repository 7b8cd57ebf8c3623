"""CMA-ES by Optuna, which keeps its state as a pickle in the journal of a sweep, whoever wrote
that.
"""

from __future__ import annotations

import io
import pickle
from typing import TYPE_CHECKING, Any

from optuna.samplers import CmaEsSampler

from forge.config.problems import ConfigError, Problem
from forge.launch.optuna.setting import OTHER_NAME

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

STATE = {
    ("cmaes._cma", "CMA"),
    ("cmaes._sepcma", "SepCMA"),
    ("cmaes._cmawm", "CMAwM"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
}
STATE |= {
    (f"numpy.{core}.multiarray", name)
    for core in ("core", "_core")
    for name in ("_reconstruct", "scalar")
}
"""All that a state is made of; any other name in a pickle could be that of a command."""


class CmaEs(CmaEsSampler):
    """Optuna's sampler, whose state may name nothing but what a state is made of."""

    def _restore_optimizer(self, completed_trials: list[FrozenTrial]) -> Any:
        for trial in reversed(completed_trials):
            parts = {
                key: part
                for key, part in trial.system_attrs.items()
                if key.startswith(self._attr_key_optimizer)
            }
            if parts:
                return restored(self._concat_optimizer_attrs(parts))
        return None


class _State(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if (module_name, global_name) not in STATE:
            raise pickle.UnpicklingError(f"it names {module_name}.{global_name}")
        return super().find_class(module_name, global_name)


def restored(digits: str) -> Any:
    """What a pickle of a state holds, given in hexadecimal digits. Raises ConfigError for any
    other.
    """
    try:
        return _State(io.BytesIO(bytes.fromhex(digits))).load()
    except Exception as error:  # a damaged one raises whatever it comes to
        what = f"the state of cmaes in the journal of the sweep cannot be used: {error}."
        raise ConfigError(
            [Problem(key="sweeper.sampler=cmaes", what=what, fix=OTHER_NAME)]
        ) from None
