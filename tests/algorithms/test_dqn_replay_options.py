"""Bounds of targets, and priorities of steps that are new."""

from __future__ import annotations

import functools
import math
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from alf_lite.algorithms.agent import Agent
from alf_lite.algorithms.dqn_algorithm import DqnAlgorithm
from alf_lite.algorithms.munchausen_dqn_algorithm import MunchausenDqnAlgorithm
from alf_lite.algorithms.parts.return_heads import QuantileHead
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import BatchInfo
from alf_lite.data_transformers.normalizing_transformers import RewardNormalizer
from alf_lite.data_transformers.single_step_transformers import RewardClipping
from alf_lite.environments.creation import create_environment
from alf_lite.errors import ConfigError
from alf_lite.networks.value_networks import QNetwork
from alf_lite.optimizers.optimizers import Adam
from alf_lite.tensor_specs import TensorSpec
from tests.replayed_steps import CHOICE, OBSERVATION, info_of, randomise, windows

GAMMA = 0.9
Linear = functools.partial(QNetwork, fc_layer_params=())


class Recurrent(QNetwork):
    """Has a memory, and makes nothing of it."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._state_spec = TensorSpec(())

    def forward(self, inputs, state=()):
        return super().forward(inputs)[0], state


class Corridor(gymnasium.Env):
    """Action 1 goes on, action 0 waits; reward 1 at the end."""

    length = 12

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (self.length,), np.float32)
        self.action_space = spaces.Discrete(2)

    def _observe(self) -> np.ndarray:
        return np.eye(self.length + 1, self.length, dtype=np.float32)[self._place]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._place = 0
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        self._place += int(action)
        is_end = self._place == self.length
        return self._observe(), float(is_end), is_end, False, {}


def built(env_ctor=Corridor, kind=DqnAlgorithm, transformers=(), **kwargs):
    torch.manual_seed(0)
    names = TrainerConfig.__dataclass_fields__
    settings = {name: kwargs.pop(name) for name in list(kwargs) if name in names}
    env = create_environment(env_ctor=env_ctor, num_parallel_environments=4, seed=0)
    config = TrainerConfig(
        algorithm_ctor=kind,
        data_transformer_ctor=list(transformers) or None,
        num_iterations=100,
        **{
            "unroll_length": 8,
            "num_updates_per_train_iter": 8,
            "mini_batch_size": 32,
            "mini_batch_length": 2,
            "initial_collect_steps": 0,
            "replay_buffer_length": 500,
            **settings,
        },
    )
    options = {
        "q_network_ctor": Linear,
        "gamma": GAMMA,
        "rollout_epsilon_greedy": 0.15,
        "optimizer": Adam(lr=0.02),
        **kwargs,
    }
    return kind(
        env.observation_spec, env.action_spec, env=env, config=config, **options
    )


# Bounds of targets


@pytest.mark.parametrize("n", [1, 2])
def test_no_target_is_below_what_is_known_to_have_followed(n):
    algorithm = DqnAlgorithm(
        OBSERVATION, CHOICE, gamma=GAMMA, n_step=n, optimizer=Adam(), double=False
    )
    randomise(algorithm)
    steps = windows(CHOICE, length=n + 2)
    plain = algorithm.calc_loss(info_of(algorithm, steps))
    bound = torch.tensor([-math.inf, 7.0, -50.0, 7.0, 2.5])
    algorithm.uses_episode_returns = True
    info = info_of(algorithm, steps)
    assert info.episode_return == ()  # nobody knows them
    rows = bound.expand(2, 5)
    loss = algorithm.calc_loss(info._replace(episode_return=rows))
    q = info.outputs[0, :, 0, 0]
    target = info.reward[0] + info.discount[0] * info.next_outputs[0, :, 0, 0]
    expected = (torch.maximum(target, bound) - q).abs()
    torch.testing.assert_close(loss.extra.td_error[0], expected)
    huber = torch.nn.functional.huber_loss(expected, 0 * expected, reduction="none")
    torch.testing.assert_close(loss.loss[0], huber)
    assert torch.equal(loss.loss[0, [0, 2]], plain.loss[0, [0, 2]])
    returns = BatchInfo(episode_returns=torch.arange(5.0 * (n + 2)).view(5, n + 2))
    with torch.no_grad():
        _, transition = algorithm.preprocess_experience(steps, (), returns)
    assert torch.equal(transition.episode_return, returns.episode_returns[:, :2])


@pytest.mark.ci
def test_a_reward_far_away_is_learnt_from_the_first_episode_that_finds_it():
    first_values = []
    for bounds in (False, True):
        algorithm = built(
            lower_bound_targets=bounds,
            target_update_tau=1.0,
            target_update_period=40,  # values move on by one place in so many updates
            rollout_epsilon_greedy=1.0,
            transformers=[functools.partial(RewardClipping, minimum=0.0, maximum=0.5)],
        )
        for network in (algorithm._q_network, algorithm._target_q_network):
            for parameter in network.parameters():
                torch.nn.init.zeros_(parameter)
        algorithm.setup_training()
        algorithm.unroll(200)
        for _ in range(20):
            algorithm.train_from_replay_buffer()
        q, _ = algorithm._q_network(torch.eye(Corridor.length))
        first_values.append(q[0, 0, 1, 0].item())
        algorithm.finish_train()
    without, with_bounds = first_values
    assert without == pytest.approx(0.0, abs=0.02)
    # Some 23 steps of a random policy; 11 of the best one would make it 0.36.
    assert 0.5 * GAMMA**25 < with_bounds < 0.5 * GAMMA**11 + 0.02


# Priorities of new steps


@pytest.mark.parametrize(
    ("kind", "burn_in", "network"),
    [(DqnAlgorithm, 1, Recurrent), (MunchausenDqnAlgorithm, 0, QNetwork)],
)
def test_windows_that_become_complete_get_the_error_of_the_values_that_acted(
    kind, burn_in, network
):
    n, num_unrolls = 2, 3
    algorithm = built(
        kind=kind,
        n_step=n,
        mini_batch_length=burn_in + 3,
        burn_in_length=burn_in,
        q_network_ctor=functools.partial(network, fc_layer_params=()),
        priority_replay=True,
        initial_collect_steps=1000,  # nothing is trained
        initial_random_policy=True,
        prioritize_new_steps=True,
    )
    randomise(algorithm, 1.0)
    for _ in range(num_unrolls):
        algorithm.train_iter()
    buffer = algorithm.replay_buffer
    assert buffer is not None
    length = 8 * num_unrolls
    env_ids = torch.arange(4)
    steps = buffer.get_windows(env_ids, torch.zeros(4, dtype=torch.int64), length)
    time_step = steps.time_step
    q, _ = algorithm._q_network(time_step.observation.flatten(0, 1))
    q = q[:, 0, :, 0].unflatten(0, (4, length)).detach()
    torch.testing.assert_close(steps.rollout_info.q[:, :, 0], q)
    arrays = buffer.sampling_state()["arrays"]
    weights = arrays["weights"].view(4, -1)
    is_last = time_step.step_type == 2
    for b in range(4):
        for start in range(length - burn_in - 2):
            t = start + burn_in  # one step is trained
            error = 0.0
            if not is_last[b, t]:
                reward, discount, m = 0.0, 1.0, 0
                while m < n and not is_last[b, t + m]:
                    m += 1
                    reward += discount * time_step.reward[b, t + m].item()
                    discount *= GAMMA * time_step.discount[b, t + m].item()
                target = reward + discount * q[b, t + m].max().item()
                error = abs(target - q[b, t, time_step.prev_action[b, t + 1]].item())
            expected = (error + 1e-6) ** 0.6
            assert weights[b, start].item() == pytest.approx(expected, rel=1e-3)
    algorithm.finish_train()


def test_what_contradicts_itself_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"lower_bound_targets .*QuantileHead"):
        built(lower_bound_targets=True, return_model=QuantileHead())
    with pytest.raises(ConfigError, match=r"lower_bound_targets .*one dimension"):
        DqnAlgorithm(
            OBSERVATION, CHOICE, lower_bound_targets=True, reward_spec=TensorSpec((2,))
        )
    with pytest.raises(ConfigError, match=r"without TrainerConfig.priority_replay"):
        built(prioritize_new_steps=True)
    with pytest.raises(ConfigError, match=r"which the steps of .*offline_buffer_dir"):
        built(prioritize_new_steps=True, priority_replay=True, offline_buffer_dir="x")
    part = functools.partial(DqnAlgorithm, lower_bound_targets=True)
    assert Agent(OBSERVATION, CHOICE, rl_algorithm_ctor=part).uses_episode_returns
    with pytest.raises(ConfigError, match="other parts may change"):
        Agent(OBSERVATION, CHOICE, rl_algorithm_ctor=part, extrinsic_reward_weight=0.5)
    algorithm = built(lower_bound_targets=True, transformers=[RewardNormalizer])
    with pytest.raises(ConfigError, match="RewardNormalizer may change rewards"):
        algorithm.setup_training()
    algorithm.finish_train()
