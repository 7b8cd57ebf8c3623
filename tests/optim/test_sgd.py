"""SGD against torch's, whose weight decay is coupled to the gradient, and so made by hand here."""

from __future__ import annotations

import pytest
import torch
from updates import DECAYS, RATES, assert_close, groups_of, parameters_of, set_gradients, updates

from forge.config.optimizers.sgd import SGD as Section
from forge.optim.sgd import SGD


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
def test_updates_are_those_of_torch_with_decoupled_decay(momentum, nesterov):
    options = {"momentum": momentum, "nesterov": nesterov}
    ours, theirs = groups_of(), groups_of()
    for group in theirs:
        group["weight_decay"] = 0.0
    optimizer = SGD(ours, Section(lr=1.0, weight_decay=0.0, **options))
    found = updates(optimizer, parameters_of(ours))
    reference = torch.optim.SGD(theirs, lr=1.0, **options)
    for step, rate in enumerate(RATES):
        set_gradients(parameters_of(theirs), step)
        for group in reference.param_groups:
            group["lr"] = rate
            for parameter in group["params"]:
                parameter.data.mul_(1 - rate * DECAYS[group["name"]])
        reference.step()
    assert_close(found, [parameter.detach() for parameter in parameters_of(theirs)])
    assert all(bool(state) is bool(momentum) for state in optimizer.state.values())
