from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

from alf_lite.algorithms.parts.critics import (
    Critics,
    TargetUpdater,
    UpdateCounter,
    make_critic_network,
    target_copy,
)
from alf_lite.distributions.action_masks import ActionMask
from alf_lite.errors import ConfigError
from alf_lite.networks.critic_networks import CriticNetwork
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec
from alf_lite.utils.progress import Progress, follow_progress
from alf_lite.utils.schedulers import LinearScheduler

STATE = TensorSpec((2,))
CHOICE = BoundedTensorSpec((), torch.int64, 0, 2)
OBSERVATION = {"mask": BoundedTensorSpec((3,), torch.int8, 0, 1), "state": STATE}
NO_MASK = ActionMask(STATE, CHOICE, None)


def critics(weigh=lambda values: values, critic_options=None, **kwargs) -> Critics:
    options = {"joint_fc_layer_params": (8,), **(critic_options or {})}
    ctor = functools.partial(CriticNetwork, **options)
    network = make_critic_network(ctor, NO_MASK, 1, 2)
    return Critics(network, weigh, **{"tau": 0.5, "period": 1, **kwargs})


@pytest.mark.parametrize("options", [{}, {"layer_norm": True}])
def test_the_first_critic_alone_gives_what_it_gives_among_others(options):
    ours = critics(critic_options=options)
    parameters = list(ours.online.parameters())
    with torch.no_grad():
        for parameter in parameters:
            parameter += 0.1 * torch.randn_like(parameter)
    features = torch.randn(4, 2)
    vector = torch.randn(4, 1, requires_grad=True)
    alone = ours.evaluate_frozen(features, vector, only_first=True)
    among_others = ours.evaluate_frozen(features, vector)
    assert alone.shape == (4, 1)
    torch.testing.assert_close(alone[:, 0], among_others[:, 0])
    gradients = [
        torch.autograd.grad(q[:, 0].sum(), vector) for q in (alone, among_others)
    ]
    torch.testing.assert_close(*gradients)
    assert among_others.shape == (4, 2)
    assert ours.target.evaluate(features, vector).shape == (4, 2)


def test_parameters_are_left_as_they_were_even_after_an_error():
    ours = critics()
    first, *others = ours.online.parameters()
    first.requires_grad_(False)
    with pytest.raises(RuntimeError):
        ours.evaluate_frozen(torch.zeros(1, 2), torch.zeros(1, 5))
    assert not first.requires_grad
    assert all(p.requires_grad for p in others)


def test_critics_see_a_mask_that_is_visible():
    mask = ActionMask(OBSERVATION, CHOICE, "mask", visible_to_networks=True)
    network = make_critic_network(CriticNetwork, mask, 0, 2, (3,))
    values = torch.randint(0, 2, (5, 3), dtype=torch.int8)
    observation = {"mask": values, "state": torch.randn(5, 2)}
    other = {**observation, "mask": 1 - values}
    first, second = network((observation, None))[0], network((other, None))[0]
    assert not torch.allclose(first, second)


def test_what_is_no_critic_network_is_named():
    with pytest.raises(ConfigError, match="value_network_ctor must build a CriticNet"):
        make_critic_network(
            lambda *args: torch.nn.Linear(2, 1),
            NO_MASK,
            0,
            1,
            what="value_network_ctor",
        )


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
    with pytest.raises(ValueError, match="target_update_tau must lie"):
        pair(tau=((0.0, 0.5), (1.0, 3.0)))
    with pytest.raises(ValueError, match="period must be a positive integer"):
        pair(period=((0.0, 2.0), (1.0, 0.0)))
    with pytest.raises(ValueError, match="period must be a positive integer, got 0"):
        pair(period=0)
    with pytest.raises(ValueError, match="must have the same parameters"):
        TargetUpdater([nn.Linear(1, 2)], [nn.Linear(1, 3)])


@pytest.mark.parametrize("period", [1, 2, 3])
def test_an_update_counter_is_due_once_per_period(period):
    counter = UpdateCounter(period)
    announced = []
    due = []
    for _ in range(6):
        announced.append(counter.is_due)
        due.append(counter.advance())
    assert due == announced == [n % period == 0 for n in range(1, 7)]
    assert counter.count == 6


def test_an_update_counter_continues_from_its_state():
    counter = UpdateCounter(4)
    for _ in range(6):
        counter.advance()
    resumed = UpdateCounter(4)
    resumed.load_state_dict(counter.state_dict())
    assert [resumed.advance() for _ in range(3)] == [False, True, False]


def counter_at(percent: float) -> tuple[UpdateCounter, Progress]:
    """With a period from 1 at the begin of a run to 5 at its end."""
    counter = UpdateCounter(LinearScheduler(((0.0, 1.0), (1.0, 5.0)), "percent"))
    progress = Progress()
    follow_progress([counter._schedule], progress)
    progress.percent = percent
    return counter, progress


@pytest.mark.parametrize("num_updates", [3, 4, 5, 6])
def test_what_a_schedule_told_is_not_asked_anew(num_updates):
    counter, progress = counter_at(0.25)
    for _ in range(num_updates):
        counter.advance()
    resumed, later = counter_at(0.0)  # progress is restored after the algorithm
    resumed.load_state_dict(counter.state_dict())
    for percent in (0.3, 0.5, 0.7):
        progress.percent = later.percent = percent
        assert resumed.is_due == counter.is_due
        assert resumed.advance() == counter.advance()
    assert resumed.count == counter.count == num_updates + 3


def test_a_counter_with_a_schedule_takes_the_state_of_version_0_1():
    counter, _ = counter_at(0.5)
    counter.set_extra_state(torch.tensor(5))  # the count alone
    assert counter.count == 5
    assert [counter.advance() for _ in range(3)] == [True, False, False]


@pytest.mark.parametrize("period", [0, -1, 1.5, True, "2"])
def test_a_period_is_a_positive_integer(period):
    with pytest.raises(ValueError, match="period must be a positive integer"):
        UpdateCounter(period)
