from __future__ import annotations

import pytest
import torch
from torch import nn

from alf_lite.algorithms.parts.critics import TargetUpdater, target_copy


def module(value: float) -> nn.Linear:
    linear = nn.Linear(1, 1)
    for parameter in linear.parameters():
        nn.init.constant_(parameter, value)
    return linear


def pair(**kwargs) -> tuple[nn.Linear, nn.Linear, TargetUpdater]:
    """Source 1, target 0."""
    source = module(0.0)
    target = target_copy(source)
    updater = TargetUpdater([source], [target], **kwargs)
    with torch.no_grad():
        source.weight.fill_(1.0)
        source.bias.fill_(1.0)
    return source, target, updater


def test_a_copy_in_every_third_update_comes_with_the_third_and_the_sixth():
    source, target, updater = pair(tau=1.0, period=3)
    seen = []
    for update in range(1, 8):
        with torch.no_grad():
            source.weight.fill_(update)
        due = updater.is_due
        updater()
        seen.append((target.weight.item(), due))
    assert seen == [
        (0.0, False),
        (0.0, False),
        (3.0, True),
        (3.0, False),
        (3.0, False),
        (6.0, True),
        (6.0, False),
    ]


def test_a_soft_update_moves_by_tau():
    _, target, updater = pair(tau=0.1)
    values = []
    for _ in range(3):
        updater()
        values.append(target.bias.item())
    assert values == pytest.approx([0.1, 0.19, 0.271])


def test_targets_start_as_copies():
    source, target = module(3.0), module(-1.0)
    TargetUpdater([source], [target], tau=0.1)
    assert target.weight.item() == 3.0


def test_buffers_are_copied_whole():
    source = nn.BatchNorm1d(1)
    target = target_copy(source)
    updater = TargetUpdater([source], [target], tau=0.1)
    source(torch.tensor([[1.0], [3.0]]))
    updater()
    assert source.running_mean.item() != 0.0
    assert target.running_mean == source.running_mean
    assert target.num_batches_tracked == 1


def test_several_modules_move_together():
    sources = [module(1.0), module(2.0)]
    targets = [target_copy(m) for m in sources]
    updater = TargetUpdater(sources, targets, tau=0.5)
    with torch.no_grad():
        for source in sources:
            source.weight.fill_(10.0)
    updater()
    assert [t.weight.item() for t in targets] == [5.5, 6.0]


def test_a_target_wants_no_gradient_and_the_source_keeps_its_own():
    source, target, updater = pair(tau=0.5)
    source(torch.ones(1, 1)).sum().backward()
    gradient = source.weight.grad.clone()
    updater()
    assert [p.requires_grad for p in target.parameters()] == [False, False]
    assert source.weight.grad == gradient
    assert target.weight.grad is None


def test_the_count_is_part_of_the_state_and_the_modules_are_not():
    _, _, updater = pair(period=3)
    updater()
    updater()
    state = updater.state_dict()
    assert list(state) == ["_counter._extra_state"]
    assert list(updater.parameters()) == []
    _, target, resumed = pair(period=3)
    resumed.load_state_dict(state)
    assert resumed.is_due
    resumed()
    assert target.weight.item() == 1.0


def test_moving_to_another_device_or_dtype_is_followed():
    source, target, updater = pair(tau=0.5)
    # In place of a device, which a test cannot count on: new tensors all the same.
    owner = nn.ModuleList([source, target, updater])
    source.register_buffer("steps", torch.tensor(4.0))
    target.register_buffer("steps", torch.tensor(0.0))
    owner.double()
    updater()
    assert target.weight.dtype == torch.float64
    assert target.weight.item() == 0.5
    assert target.steps.item() == 4.0


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match=r"tau must lie in \(0, 1\], got 0"):
        pair(tau=0.0)
    with pytest.raises(ValueError, match="tau must lie"):
        pair(tau=1.5)
    with pytest.raises(ValueError, match="period must be a positive integer, got 0"):
        pair(period=0)
    with pytest.raises(ValueError, match="must have the same parameters"):
        TargetUpdater([nn.Linear(1, 2)], [nn.Linear(1, 3)])
