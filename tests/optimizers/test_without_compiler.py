"""Torch's own step, without its compiler, is the step that torch makes."""

from __future__ import annotations

import pytest
import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from alf_lite.optimizers import without_compiler

CLASSES = [torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.SGD]


class Counting(torch.optim.SGD):
    num_steps = 0

    def step(self, closure=None):
        self.num_steps += 1
        return super().step(closure)


def made(kind):
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.grad = torch.tensor([1.0, -2.0, 3.0])
    return kind([parameter], lr=0.1), parameter


@pytest.mark.parametrize("kind", CLASSES)
def test_it_is_the_step_of_torch(kind):
    (torchs, expected), (own, found) = made(kind), made(kind)
    body = without_compiler._body_of_step(own)
    for _ in range(3):
        torchs.step()
        with torch.no_grad():
            body(own)
    assert torch.equal(found, expected)
    assert not found.equal(torch.ones(3))


def test_what_somebody_added_to_a_step_stays_part_of_it():
    def nothing(*_):
        pass

    assert without_compiler._body_of_step(made(Counting)[0]) is None
    optimizer, _ = made(torch.optim.SGD)
    for register in (
        register_optimizer_step_pre_hook,
        register_optimizer_step_post_hook,
        optimizer.register_step_pre_hook,
        optimizer.register_step_post_hook,
    ):
        assert without_compiler._body_of_step(optimizer) is not None
        handle = register(nothing)
        assert without_compiler._body_of_step(optimizer) is None
        handle.remove()
    optimizer.step = nothing
    assert without_compiler._body_of_step(optimizer) is None
