from __future__ import annotations

import torch
from torch import nn

from alf_lite.algorithms.acting_state import ActingState
from alf_lite.utils.progress import progress


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))


def copy(source: ActingState, target: ActingState) -> None:
    assert list(source.tensors) == list(target.tensors)
    with torch.no_grad():
        for name, tensor in source.tensors.items():
            target.tensors[name].copy_(tensor)


def test_parameters_buffers_and_numbers_travel():
    torch.manual_seed(0)
    trained, acting = build(), build()
    trained(torch.rand(5, 2))  # moves the statistics
    source, target = ActingState(trained), ActingState(acting)
    progress.percent = 0.3
    progress.iterations = 12
    progress.env_steps = 2**40 + 1  # more than float32 and int32 can hold
    progress.global_counter = 7
    trained.acts_randomly = True
    source.capture()
    copy(source, target)
    progress.reset()
    assert target.apply() is True
    assert progress.state_dict() == {
        "percent": 0.3,
        "iterations": 12,
        "env_steps": 2**40 + 1,
        "global_counter": 7,
    }
    assert isinstance(progress.env_steps, int)
    for name, value in trained.state_dict().items():
        assert torch.equal(acting.state_dict()[name], value), name


def test_all_counters_of_the_progress_travel():
    module = nn.Module()
    module.acts_randomly = False
    state = ActingState(module)
    expected = {}
    for i, name in enumerate(progress.state_dict()):
        expected[name] = i + 1
        setattr(progress, name, i + 1)
    state.capture()
    progress.reset()
    assert state.apply() is False
    assert progress.state_dict() == expected


def test_the_tensors_are_those_of_the_module_itself():
    module = build()
    state = ActingState(module)
    module.acts_randomly = False
    captured = state.capture()
    with torch.no_grad():
        module[0].weight.fill_(5)
    assert captured["0.weight"].data_ptr() == module[0].weight.data_ptr()
    assert (captured["0.weight"] == 5).all()
    assert captured["1.num_batches_tracked"].dtype == torch.int64


def test_before_anything_was_captured_training_has_not_begun():
    progress.iterations = 5
    assert ActingState(build()).apply() is False
    assert progress.iterations == 0
