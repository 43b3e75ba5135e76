"""Training by graphs that are captured once, on a device that is none."""

from __future__ import annotations

import contextlib
import functools
import logging

import pytest
import torch

import alf_lite
from alf_lite import ActorCriticAlgorithm, DqnAlgorithm, PPOAlgorithm, SacAlgorithm
from alf_lite.algorithms.agent import Agent
from alf_lite.algorithms.muzero_algorithm import MuzeroAlgorithm
from alf_lite.algorithms.ppg_algorithm import PPGAlgorithm
from alf_lite.algorithms.r2d2_algorithm import R2d2Algorithm
from alf_lite.algorithms.rnd_reward import RndReward
from alf_lite.algorithms.td3_algorithm import Td3Algorithm
from alf_lite.errors import ConfigError
from alf_lite.optimizers.optimizers import Adam, RMSprop
from alf_lite.testing import stand_in_device
from alf_lite.utils import device_graphs
from alf_lite.utils.device_graphs import CapturedFunction
from alf_lite.utils.progress import Progress
from alf_lite.utils.schedulers import LinearScheduler, as_scheduler
from tests.algorithms.learning.device_runs import (
    CART_POLE,
    OFF_POLICY,
    ON_POLICY,
    make,
)

FALLING = ((0.0, 1e-2), (1.0, 0.0))


FALLING_RATE = {"optimizer": lambda: Adam(lr=FALLING, gradient_clipping=0.5)}
RATE = {"optimizer": lambda: Adam(lr=1e-3)}
RISING = ((0.0, 0.1), (1.0, 0.9))
LOSS = dict.fromkeys(
    [
        *("gamma", "td_lambda", "entropy_regularization", "value_loss_weight"),
        *("advantage_clip",),
    ],
    RISING,
)
CLIPS = dict.fromkeys(["clip_epsilon", "value_clip", "log_prob_clip"], RISING)
CASES = {
    "A2C, schedules": (
        *(CART_POLE, ActorCriticAlgorithm, {"unroll_length": 4}),
        {**RATE, **LOSS},
    ),
    "PPO, schedules": (CART_POLE, PPOAlgorithm, ON_POLICY, {**RATE, **LOSS, **CLIPS}),
    "SAC, schedules": (
        *(make, SacAlgorithm, OFF_POLICY),
        {
            **RATE,
            "target_entropy": ((0.0, -2.0), (1.0, -1.0)),
            "dqda_clipping": RISING,
            "target_update_tau": RISING,
        },
    ),
    "PPO, falling rate": (CART_POLE, PPOAlgorithm, ON_POLICY, FALLING_RATE),
    "PPO, both limits of KL": (
        make,
        PPOAlgorithm,
        ON_POLICY,
        {**RATE, "target_kl": 1e-4, "desired_kl": 0.01},
    ),
    "SAC": (make, SacAlgorithm, OFF_POLICY, RATE),
    "TD3": (make, Td3Algorithm, OFF_POLICY, RATE),
    "DQN": (
        CART_POLE,
        DqnAlgorithm,
        OFF_POLICY,
        {
            **RATE,
            "rollout_epsilon_greedy": lambda: as_scheduler(
                LinearScheduler([(0.0, 1.0), (1.0, 0.0)])
            ),
        },
    ),
}


def trained(name, device, num_iterations=6, **settings):
    build, algorithm, config, kwargs = CASES[name]
    kwargs = {k: v() if callable(v) else v for k, v in kwargs.items()}
    built = build(algorithm, device.name, {**config, **settings}, **kwargs)
    for _ in range(num_iterations):
        built.train_iter()
    return built


# Others have what these have: rates that change, limits that stop updates, two graphs.
QUICK = ["SAC, schedules", "PPO, both limits of KL", "TD3", "DQN"]


@pytest.mark.ci
@pytest.mark.parametrize(
    "name",
    [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in CASES],
)
def test_graphs_compute_the_same_numbers(name, device):
    plain = trained(name, device)
    captured = trained(name, device, cuda_graphs=True)
    assert captured.num_updates == plain.num_updates
    assert captured.training_run.updates.num_graphs == (2 if name == "TD3" else 1)
    assert plain.training_run.updates.num_graphs == 0
    expected = plain.state_dict()
    for key, value in captured.state_dict().items():
        if isinstance(value, torch.Tensor):
            # What changes is float32 there.
            changes = "schedules" in name or "falling" in name
            tolerance = 1e-4 if changes else 0.0
            torch.testing.assert_close(
                value.cpu(), expected[key].cpu(), rtol=tolerance, atol=0.1 * tolerance
            )


BEGINNING_ANEW = {
    "TD3": (Td3Algorithm, {"parameter_reset_period": 10}),
    "SAC, part of an agent": (
        Agent,
        {
            "rl_algorithm_ctor": functools.partial(
                SacAlgorithm, parameter_reset_period=10
            ),
            "intrinsic_rewards": {"rnd": RndReward},
        },
    ),
}


@pytest.mark.ci
@pytest.mark.parametrize(
    "name",
    ["TD3", pytest.param("SAC, part of an agent", marks=pytest.mark.slow)],
)
def test_graphs_follow_networks_that_begin_anew(name, device):
    algorithm, kwargs = BEGINNING_ANEW[name]
    parameters = []
    for cuda_graphs in (False, True):
        settings = {**OFF_POLICY, "cuda_graphs": cuda_graphs}
        optimizer = Adam(lr=1e-3)
        built = make(algorithm, device.name, settings, optimizer=optimizer, **kwargs)
        num_graphs = []
        for _ in range(11):
            built.train_iter()
            num_graphs.append(built.training_run.updates.num_graphs)
        parameters.append([p.detach().cpu() for p in built.parameters()])
    assert built.num_updates >= 2 * 10
    assert max(num_graphs[6:]) > 0
    for captured, plain in zip(*parameters, strict=True):
        assert torch.equal(captured, plain)


def freeze_policy(algorithm):
    algorithm._policy.requires_grad_(False)


def slow_down(algorithm):
    for _, optimizer in algorithm.optimizers():
        optimizer.scale_learning_rate(0.1)


def let_weights_decay(algorithm):
    for _, optimizer in algorithm.optimizers():
        (group,) = optimizer._torch_optimizer.param_groups
        group["weight_decay"] = 0.5


@pytest.mark.ci
@pytest.mark.parametrize(
    "change",
    [
        freeze_policy,
        pytest.param(slow_down, marks=pytest.mark.slow),
        pytest.param(let_weights_decay, marks=pytest.mark.slow),
    ],
)
def test_graphs_follow_what_optimizers_are_told_later(change, device):
    parameters = []
    for cuda_graphs in (False, True):
        algorithm = trained("PPO, falling rate", device, cuda_graphs=cuda_graphs)
        change(algorithm)
        for _ in range(6):
            algorithm.train_iter()
        parameters.append([p.detach().cpu() for p in algorithm.parameters()])
    assert algorithm.training_run.updates.num_graphs == 2
    for plain, captured in zip(*parameters, strict=True):
        torch.testing.assert_close(captured, plain, rtol=1e-4, atol=1e-5)


def test_a_graph_repeats_operations_and_not_python(device):
    calls = []
    schedule = as_scheduler(LinearScheduler([(0.0, 1.0), (1.0, 0.0)]))
    progress = Progress()
    schedule.follow(progress)
    total = torch.zeros(2, device=device.name)

    def function(x):
        calls.append(None)
        total.add_(x)
        return total * schedule() + len(calls)

    captured = CapturedFunction(function, "it", schedules=lambda: [schedule])
    results = []
    for i in range(6):
        progress.percent = 0.1 * i
        x = torch.full((2,), float(i)).to(device.name, non_blocking=True)
        results.append(captured(x)[0].item())
    assert len(calls) == 4  # three to warm up and the capture
    sums = [0, 1, 3, 6, 10, 15]
    expected = [s * (1 - 0.1 * i) + min(i + 1, 4) for i, s in enumerate(sums)]
    assert results == pytest.approx(expected)
    assert captured.num_graphs == 1
    # Another shape is another graph.
    captured(torch.ones(1, device=device.name))
    assert len(calls) == 5


def test_what_reads_a_number_cannot_be_captured(device):
    captured = CapturedFunction(lambda x: x * x.sum().item(), "a square")
    x = torch.ones(2, device=device.name)
    for _ in range(3):
        captured(x)
    with pytest.raises(ConfigError, match=r"a square cannot be captured.*waits"):
        captured(x)
    assert device.recording is None


def test_what_went_wrong_first_is_said(device, monkeypatch):
    @contextlib.contextmanager
    def graph(_):
        try:
            yield
        except RuntimeError:
            raise RuntimeError("failed due to a previous error\nmore of it")  # noqa: B904

    captured = CapturedFunction(_refuses_in_capture, "it")
    x = torch.ones(2, device=device.name)
    for _ in range(3):
        captured(x)
    monkeypatch.setattr(stand_in_device._module, "graph", graph)
    with pytest.raises(ConfigError, match=r"it cannot be captured: not now\. It must"):
        captured(x)
    assert not device_graphs.is_traced()


def _refuses_in_capture(x):
    if device_graphs.is_traced():
        raise RuntimeError("not now")
    return x


def test_parameters_without_a_gradient_so_far_can_be_captured(device, monkeypatch):
    def step(*_):
        raise AssertionError("torch's own step is none for a graph")

    monkeypatch.setattr(torch.optim.Adam, "step", step)
    settings = {**ON_POLICY, "cuda_graphs": True}
    algorithm = CART_POLE(PPGAlgorithm, device.name, settings)
    for _ in range(6):
        algorithm.train_iter()
    assert algorithm.training_run.updates.num_graphs == 1


def test_too_many_graphs_are_said_once(device, monkeypatch, caplog):
    monkeypatch.setattr(device_graphs, "_MAX_GRAPHS", 1)
    captured = CapturedFunction(lambda x: x + 1, "more")
    with caplog.at_level(logging.WARNING):
        for size in (1, 2):
            for _ in range(6):
                x = torch.ones(size, device=device.name)
                assert captured(x).tolist() == [2.0] * size
    assert captured.num_graphs == 1
    assert len(caplog.records) == 1


def test_a_cpu_has_no_graphs():
    with pytest.raises(ConfigError, match=r"cuda_graphs.*device is 'cpu'"):
        make(PPOAlgorithm, "cpu", {**ON_POLICY, "cuda_graphs": True}).setup_training()


def test_what_cannot_be_captured_is_said_before_training(device):
    def build(algorithm, settings, **kwargs):
        settings = {**settings, "cuda_graphs": True}
        CART_POLE(algorithm, device.name, settings, **kwargs).setup_training()

    with pytest.raises(ConfigError, match=r"RMSprop.*cannot be captured"):
        algorithm = CART_POLE(
            PPOAlgorithm,
            device.name,
            {**ON_POLICY, "cuda_graphs": True},
            optimizer=RMSprop(),
        )
        algorithm.train_iter()
    options = Adam(parameter_options={"*bias": {"lr_factor": 0.5}})
    with pytest.raises(ConfigError, match="without parameter_options"):
        CART_POLE(
            PPOAlgorithm,
            device.name,
            {**ON_POLICY, "cuda_graphs": True},
            optimizer=options,
        ).train_iter()
    with pytest.raises(ConfigError, match="gradient_accumulation"):
        build(PPOAlgorithm, {**ON_POLICY, "gradient_accumulation": 2})
    with pytest.raises(ConfigError, match="rollout_step"):
        graph = {"trains_on_rollout_info": True}
        build(type("OnGraph", (alf_lite.ActorCriticAlgorithm,), graph), {})
    recurrent = functools.partial(
        alf_lite.networks.QNetwork,
        encoding_network_ctor=alf_lite.networks.LSTMEncodingNetwork,
    )
    with pytest.raises(ConfigError, match="a coefficient is a function"):
        build(DqnAlgorithm, OFF_POLICY, gamma=lambda: 0.9)
    with pytest.raises(ConfigError, match="its search draws random numbers"):
        build(MuzeroAlgorithm, OFF_POLICY)
    build(DqnAlgorithm, OFF_POLICY, target_update_tau=lambda: 0.9)  # asked after it
    with pytest.raises(ConfigError, match="network with memory"):
        build(R2d2Algorithm, {}, q_network_ctor=recurrent)
