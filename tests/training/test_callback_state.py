"""The state of callbacks taken apart and put together: nothing is lost, and what cannot be kept is
named.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from typing import Any

import pytest
import torch

from forge.training.callback import Callback, CallbackError, join, load_states, split, states

STATE = {
    "mean": {
        "blocks.0/w~x": torch.arange(6.0).reshape(2, 3),
        "b": torch.tensor(1.5, dtype=torch.bfloat16),
    },
    "mean/blocks.0": torch.tensor([True]),
    "counts": [1, torch.zeros(0), {"deep": (2, "x", (None, torch.ones(1, dtype=torch.int64)))}],
    "plain": {"nan": float("inf"), "text": "ü", "no": False, "empty": {}, "list": []},
}


def same(a: Any, b: Any) -> bool:
    """Equal in types, structure and bits."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def test_a_state_comes_back_through_json_as_it_was() -> None:
    plain, tensors = split(STATE)
    assert same(join(json.loads(json.dumps(plain)), tensors), STATE)
    assert len(tensors) == 5
    assert set(tensors) >= {"mean/blocks.0~1w~0x", "mean~1blocks.0", "counts/2/deep/2/1"}


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (
            {"a": [1, {"b": {1, 2}}]},
            "its state at 'a/1/b' is a builtins.set; a checkpoint keeps tensors, texts, numbers",
        ),
        ({"a": object()}, "its state at 'a' is a builtins.object;"),
        (
            {"a": {1: 2}},
            "its state at 'a' has the key 1; keys are texts other than _tensor_ and _tuple_",
        ),
        ({"_tensor_": 3}, "its state has the key '_tensor_'; keys are texts"),
        ([1], "state_dict gives a dict, not list"),
    ],
)
def test_what_cannot_be_kept_is_named(state: Any, said: str) -> None:
    with pytest.raises(TypeError) as raised:
        split(state)
    assert said in str(raised.value)


class Holding(Callback):
    def __init__(self, state: Any, config_path: str = "") -> None:
        self.state, self.config_path = state, config_path

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


def test_each_callback_gets_its_own_back() -> None:
    held = [
        Holding({"n": 1}),
        Holding(STATE, "callbacks.a"),
        Holding({"w": torch.ones(2)}, "callbacks.a/b"),
        Holding({}, "callbacks.c"),
    ]
    plain, tensors = states(held, 7)
    assert set(plain) == {"Holding", "callbacks.a", "callbacks.a/b"}
    fresh = [
        Holding(None),
        Holding(None, "callbacks.a"),
        Holding(None, "callbacks.a/b"),
        Holding("kept", "callbacks.c"),
    ]
    load_states(fresh, json.loads(json.dumps(plain)), tensors, 7)
    assert all(same(new.state, old.state) for new, old in zip(fresh[:3], held[:3], strict=True))
    assert fresh[3].state == "kept"


def test_a_users_callback_with_an_object_in_its_state_is_named() -> None:
    with pytest.raises(
        CallbackError,
        match=(
            r"^callbacks\.a \(.*Holding\) failed in state_dict at step 7: "
            r"TypeError: its state at 'o' is"
        ),
    ):
        states([Holding({"o": OrderedDict}, "callbacks.a")], 7)
