"""A callback: a moving average of the weights, of which the distance to it is logged."""

import torch

from forge.api import Callback, copy_local


class Average(Callback):
    def __init__(self, decay: float = 0.99):
        self.decay, self.mean, self.loaded = decay, {}, {}

    def on_start(self, loop):
        for name, weight in loop.model.named_parameters():
            self.mean[name] = weight.detach().clone()
            if name in self.loaded:  # whole, of which this rank keeps what it has of the weight
                copy_local(self.mean[name], self.loaded[name])

    @torch.no_grad()
    def on_step_end(self, loop, output):
        for name, weight in loop.model.named_parameters():
            self.mean[name].lerp_(weight, 1 - self.decay)
        if loop.state.step % loop.config.metrics.log_interval == 0:
            pairs = ((weight, self.mean[name]) for name, weight in loop.model.named_parameters())
            norms = [torch.linalg.vector_norm(weight - mean) for weight, mean in pairs]
            loop.log({"average/distance": torch.stack(norms).norm()})

    def state_dict(self):
        return {"mean": self.mean}

    def load_state_dict(self, state):
        self.loaded = state["mean"]
