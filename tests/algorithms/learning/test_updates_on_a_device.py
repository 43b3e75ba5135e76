"""Training on a device that nobody waits for, with one that is none."""

from __future__ import annotations

import functools

import pytest
import torch

import alf_lite
from alf_lite import DqnAlgorithm, PPOAlgorithm, R2d2Algorithm, SacAlgorithm
from alf_lite.algorithms.learning.update_guard import UpdateGuard
from alf_lite.algorithms.td3_algorithm import Td3Algorithm
from alf_lite.config import files as config_files
from alf_lite.data_transformers import (
    FrameStacker,
    ObservationNormalizer,
    RewardNormalizer,
)
from alf_lite.errors import DivergedError
from alf_lite.networks import EncodingNetwork, QNetwork, ValueNetwork
from alf_lite.networks.transformer_networks import GTrXLEncodingNetwork
from alf_lite.optimizers.optimizers import SGD, Adam, AdamW, RMSprop
from alf_lite.testing.stand_in_device import Wait
from alf_lite.utils.devices import DeviceFlag
from tests.algorithms.learning.device_runs import (
    CART_POLE,
    OFF_POLICY,
    ON_POLICY,
    make,
)

ACTION = "environments/numpy_time_steps.py"
T = 4  # steps of an unroll
NORMALIZERS = {"data_transformer_ctor": (ObservationNormalizer, RewardNormalizer)}


def parameters(algorithm) -> list[torch.Tensor]:
    return [p.detach().cpu().clone() for p in algorithm.parameters()]


PRIORITIES = {**OFF_POLICY, "priority_replay": True}
SEQUENCES = {
    **PRIORITIES,
    "mini_batch_length": 6,
    "burn_in_length": 2,
    "use_rollout_state": True,
}
MEMORY = functools.partial(
    QNetwork,
    encoding_network_ctor=functools.partial(
        GTrXLEncodingNetwork, size=4, memory_size=2, num_layers=1, num_heads=1
    ),
)


def with_steps_there(algorithm, settings, device, on_device=None, **kwargs):
    """All that is stored is on the device."""
    config_files.reset()
    bindings = [
        f"StorageOptions.device = '{device}'",
        f"PriorityOptions.on_device = {on_device}",
    ]
    config_files.parse_config(None, bindings)
    return CART_POLE(algorithm, device, settings, **kwargs)


CASES = {
    "PPO": lambda d: CART_POLE(PPOAlgorithm, d, ON_POLICY),
    "PPO, desired_kl": lambda d: make(PPOAlgorithm, d, ON_POLICY, desired_kl=0.01),
    "PPO, normalizers": lambda d: make(PPOAlgorithm, d, ON_POLICY | NORMALIZERS),
    "A2C": lambda d: CART_POLE(
        alf_lite.ActorCriticAlgorithm, d, {"unroll_length": T}, optimizer=RMSprop()
    ),
    "SAC": lambda d: make(SacAlgorithm, d, OFF_POLICY),
    "TD3": lambda d: make(Td3Algorithm, d, OFF_POLICY),
    "DQN": lambda d: CART_POLE(DqnAlgorithm, d, OFF_POLICY),
    "DQN, priorities": functools.partial(with_steps_there, DqnAlgorithm, PRIORITIES),
    "DQN, priorities of 3 steps, first ones": functools.partial(
        with_steps_there,
        DqnAlgorithm,
        {**PRIORITIES, "mini_batch_length": 4},
        n_step=3,
        prioritize_new_steps=True,
    ),
    "DQN, priorities, frames": functools.partial(
        with_steps_there,
        DqnAlgorithm,
        {**PRIORITIES, "data_transformer_ctor": (FrameStacker,)},
    ),
    "R2D2": functools.partial(
        with_steps_there, R2d2Algorithm, SEQUENCES, n_step=2, q_network_ctor=MEMORY
    ),
}


@pytest.mark.ci
@pytest.mark.parametrize("name", CASES)
def test_nobody_waits_but_the_environment_for_its_actions(name, device):
    algorithm = CASES[name](device.name)
    for _ in range(3):  # optimizers and buffers are made by the first ones
        algorithm.train_iter()
    device.waits.clear()
    updates = algorithm.num_updates
    for _ in range(2):
        algorithm.train_iter()
    assert algorithm.num_updates > updates
    others = [wait for wait in device.waits if not wait.place.startswith(ACTION)]
    assert others == []
    assert len(device.waits) == 2 * T


def test_what_waits_is_counted(device):
    ones = torch.ones(3, device=device.name)
    bool(ones.sum() > 0)
    ones[ones > 0] = 2.0
    ones.masked_fill(ones > 0, 2.0)
    ones.masked_fill_(ones > 0, ones.sum())
    ones.cpu()
    ones.to("cpu", non_blocking=True)
    torch.zeros(3).to(device.name)
    torch.zeros(3).to(device.name, non_blocking=True)
    kinds = [wait.kind for wait in device.waits]
    assert kinds == ["read", "size", "read", "to host", "to device"]
    assert device.waits[0] == Wait("read", "aten::_local_scalar_dense", "elsewhere")
    with pytest.raises(RuntimeError, match="on one device"):
        ones + torch.ones(3)
    with pytest.raises(TypeError, match="numpy"):
        ones.numpy()


@pytest.mark.ci
@pytest.mark.parametrize("name", ["PPO", "PPO, normalizers", "TD3"])
def test_it_learns_the_same_as_on_the_cpu(name, device):
    results = []
    for where in (device.name, "cpu"):
        algorithm = CASES[name](where)
        for _ in range(3):
            algorithm.train_iter()
        results.append(parameters(algorithm))
    for there, here in zip(*results, strict=True):
        torch.testing.assert_close(there, here, rtol=1e-3, atol=1e-4)


@pytest.mark.ci
@pytest.mark.parametrize(
    "name", ["DQN, priorities", pytest.param("R2D2", marks=pytest.mark.slow)]
)
def test_it_learns_the_same_as_by_priorities_on_the_host(name, device):
    results = []
    for on_device in (None, False):
        algorithm = CASES[name](device.name, on_device=on_device)
        device.waits.clear()
        for _ in range(5):
            algorithm.train_iter()
        results.append((parameters(algorithm), len(device.waits)))
    (there, waits_there), (here, waits_here) = results
    assert waits_there < waits_here
    for a, b in zip(there, here, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.ci
def test_stopped_updates_change_nothing_at_all(device):
    encoder = functools.partial(EncodingNetwork, batch_norm=True)
    results = []
    for where in (device.name, "cpu"):
        algorithm = make(
            PPOAlgorithm,
            where,
            {**ON_POLICY, "epochs": 6},
            target_kl=1e-3,
            desired_kl=1e-4,
            value_network_ctor=functools.partial(
                ValueNetwork, encoding_network_ctor=encoder
            ),
        )
        device.waits.clear()
        algorithm.train_iter()  # of the next one, the random numbers differ
        results.append((algorithm.state_dict(), algorithm.num_updates))
        if where != "cpu":  # the host asks after each update
            asked = [w for w in device.waits if "learning/updates.py" in w.place]
            assert len(asked) == algorithm.num_updates
    (there, num_there), (here, num_here) = results
    assert num_there == num_here < 12
    for key, value in here.items():
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(there[key].cpu(), value, rtol=1e-3, atol=1e-5)


def poison(algorithm, iteration_loss):
    """Makes the losses of some updates NaN, by their number."""
    plain, count = algorithm.calc_loss, iter(range(1000))

    def calc_loss(info):
        loss_info = plain(info)
        return loss_info._replace(loss=loss_info.loss * iteration_loss(next(count)))

    algorithm.calc_loss = calc_loss


def test_an_update_that_is_not_finite_changes_nothing_and_is_told_later(device):
    settings = {**OFF_POLICY, "check_finite_interval": 3}
    algorithm = make(Td3Algorithm, device.name, settings)
    poison(algorithm, lambda i: float("nan") if i == 4 else 1.0)
    while algorithm.num_updates < 4:
        algorithm.train_iter()
    assert algorithm.num_updates == 4
    before = parameters(algorithm)
    with pytest.raises(DivergedError, match=r"one of the last 6 updates.*interval = 1"):
        for _ in range(5):
            algorithm.train_iter()
    assert algorithm.num_updates < 12
    # Nor have the finite ones after it. Targets go on following, nobody trains them.
    optimized = {id(p) for _, o in algorithm.optimizers() for p in o.parameters}
    for p, old in zip(algorithm.parameters(), before, strict=True):
        if id(p) in optimized:
            assert torch.equal(p.detach().cpu(), old)


def test_looking_at_every_update_says_what_was_not_finite(device):
    settings = {**ON_POLICY, "check_finite_interval": 1}
    algorithm = CART_POLE(PPOAlgorithm, device.name, settings)
    poison(algorithm, lambda i: float("inf"))
    before = parameters(algorithm)
    with pytest.raises(DivergedError, match="non-finite loss parts"):
        algorithm.train_iter()
    assert all(map(torch.equal, parameters(algorithm), before))


def test_a_checkpoint_waits_for_errors(device):
    algorithm = CART_POLE(PPOAlgorithm, device.name, ON_POLICY)
    poison(algorithm, lambda i: float("nan"))
    algorithm.train_iter()
    with pytest.raises(DivergedError, match="not finite"):
        algorithm.raise_late_errors()


def test_a_priority_that_is_not_finite_is_told_later(device):
    algorithm = CASES["DQN, priorities"](device.name)
    plain = algorithm.calc_loss

    def calc_loss(info):
        loss_info = plain(info)
        return loss_info._replace(priority=loss_info.priority * float("nan"))

    algorithm.calc_loss = calc_loss
    with pytest.raises(ValueError, match="priorities must be finite"):
        for _ in range(6):
            algorithm.train_iter()
    assert algorithm.num_updates > 0


def test_of_a_loss_that_diverged_with_its_priorities_the_loss_is_told(device):
    algorithm = CASES["DQN, priorities"](device.name)
    poison(algorithm, lambda i: float("nan"))
    scaled = algorithm.calc_loss

    def calc_loss(info):
        loss_info = scaled(info)
        return loss_info._replace(priority=loss_info.priority * float("nan"))

    algorithm.calc_loss = calc_loss
    with pytest.raises(DivergedError, match="the loss or a gradient was not finite"):
        for _ in range(6):
            algorithm.train_iter()


@pytest.mark.parametrize("kind", [Adam, AdamW, SGD, RMSprop])
@pytest.mark.parametrize("first", [True, False])
def test_a_skipped_step_leaves_optimizer_and_parameters_alone(kind, first):
    def trained(skips):
        torch.manual_seed(0)
        layer = torch.nn.Linear(3, 2)
        optimizer = kind(**({"momentum": 0.9} if kind in (SGD, RMSprop) else {}))
        optimizer.setup(list(layer.named_parameters()))
        for skip in skips:
            optimizer.zero_grad()
            (layer(torch.ones(1, 3)).square().sum() * (2.0 + skip)).backward()
            optimizer.apply_gradients(None if skip is None else torch.tensor(skip))
        return [p.detach() for p in layer.parameters()]

    skips = [1.0, 0.0, 0.0] if first else [0.0, 1.0, 0.0]
    for a, b in zip(trained(skips), trained([0.0, 0.0]), strict=True):
        torch.testing.assert_close(a, b)


def test_a_flag_is_seen_late_and_stays(device):
    flag = DeviceFlag(device.device)
    there = torch.tensor([False, True]).to(device.device)
    flag.add(there[0])
    assert not flag.glance()
    flag.add(there[1])
    flag.add(there[0])
    assert not flag.glance()  # what was sent before
    assert flag.glance()
    device.waits.clear()
    assert flag.look()
    assert [wait.kind for wait in device.waits] == ["read"]
    flag.clear()
    assert not flag.glance()
    assert not flag.look()


def test_without_the_check_nothing_is_guarded(device):
    guard = UpdateGuard(device.device, checks_finite=False, interval=1)
    nan = torch.full((), float("nan"), device=device.name)
    assert guard.skip(nan, [], []) is None
    guard.look("x")
