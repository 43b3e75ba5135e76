"""What compiled functions return."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from alf_lite.utils import device_graphs
from alf_lite.utils.compiling import compiled
from alf_lite.utils.device_graphs import is_traced


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


def test_nothing_is_compiled_anew_in_a_capture(monkeypatch):
    function = compiled(lambda x: x + 1 if is_traced() else x, backend="eager")
    assert function(torch.zeros(1)).item() == 1.0
    monkeypatch.setattr(device_graphs, "_captures", ["it"])
    with torch.compiler.set_stance("fail_on_recompile"):
        assert function(torch.zeros(1)).item() == 1.0
