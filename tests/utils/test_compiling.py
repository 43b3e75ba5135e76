"""What compiled functions return."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from alf_lite.utils.compiling import compiled


class State(NamedTuple):
    actor: Any = ()
    noise: Any = ()


def step(x, state):
    return {"x": x + 1, "state": state._replace(noise=x * 2)}


def test_named_tuples_come_whole():
    function = compiled(step, backend="eager")
    state = State()
    for _ in range(2):
        result = function(torch.ones(2), state)
        state = result["state"]
        assert type(state) is State
        assert state.actor == ()
        assert state.noise.tolist() == [2.0, 2.0]
    assert result["x"].tolist() == [2.0, 2.0]
