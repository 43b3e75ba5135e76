"""Replayed steps, and what off-policy algorithms make of them, for their tests."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from alf_lite import nest
from alf_lite.algorithms.learning.batch_loss import LossFunction
from alf_lite.algorithms.learning.training_batches import TrainingBatch, transpose
from alf_lite.algorithms.learning.updates import update_with_gradient
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import BatchInfo, LossInfo, StepType, TimeStep
from alf_lite.environments.creation import create_environment
from alf_lite.networks.critic_networks import CriticNetwork
from alf_lite.networks.encoding_networks import EncodingNetwork
from alf_lite.policies.evaluator import evaluate
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec

NO_SOURCE = BatchInfo()
FIRST, MID, LAST = StepType.FIRST, StepType.MID, StepType.LAST
OBSERVATION = TensorSpec((3,))
BOX = BoundedTensorSpec((2,), torch.float32, [-1.0, 0.0], [1.0, 10.0])
CHOICE = BoundedTensorSpec((), torch.int64, 0, 2)
MIXED = {"gear": CHOICE, "move": BOX}


def windows(
    action_spec: Any, length: int = 2, batch_size: int = 5, reward_dims: tuple = ()
) -> TimeStep:
    """[B, T] of random steps; row 1 terminates, row 2 hits a limit, row 3 begins LAST.

    As an environment says it, the action that an end ignored is zero.
    """
    torch.manual_seed(1)
    step_type = torch.full((batch_size, length), MID, dtype=torch.int32)
    step_type[1:3, 1] = LAST
    step_type[3, 0], step_type[3, 1] = LAST, FIRST
    discount = torch.ones(batch_size, length)
    discount[1, 1] = 0.0
    if length > 2:
        step_type[1:3, 2] = FIRST
    action = nest.map_structure(
        lambda spec: spec.sample((batch_size, length)), action_spec
    )
    is_first = step_type == FIRST
    nest.map_structure(lambda a: a.__setitem__(is_first, 0), action)
    return TimeStep(
        step_type=step_type,
        reward=torch.randn(batch_size, length, *reward_dims),
        discount=discount,
        observation=torch.randn(batch_size, length, 3),
        prev_action=action,
    )


def randomise(algorithm: RLAlgorithm, spread: float = 0.3) -> None:
    """Moves all parameters, so that no two networks agree."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in algorithm.parameters():
            parameter.add_(spread * torch.randn_like(parameter))


def observations(spec, shape):
    """Random ones, and masks of which one allows nothing."""

    def some(leaf):
        if leaf.dtype == torch.float32:
            return torch.randn(*shape, *leaf.shape)
        mask = torch.rand(*shape, *leaf.shape) < 0.6
        mask[0, 0] = False  # of a terminal state, nothing may be left
        return mask

    return nest.map_structure(some, spec)


def batch_of(
    algorithm: RLAlgorithm, steps: TimeStep, batch_info: BatchInfo = NO_SOURCE
) -> TrainingBatch:
    """The windows [B, T] as one mini-batch."""
    with torch.no_grad():
        inputs, info = algorithm.preprocess_experience(steps, (), batch_info)
    inputs, info, valid = transpose((inputs, info, steps.step_type != LAST))
    return TrainingBatch(inputs, info, (), valid)


def info_of(algorithm: RLAlgorithm, steps: TimeStep, seed: int = 2) -> Any:
    """What ``calc_loss`` gets, [T, B, ...]."""
    torch.manual_seed(seed)
    return LossFunction(algorithm).info(batch_of(algorithm, steps))[0]


def update(algorithm: RLAlgorithm, steps: TimeStep, num_updates: int = 1) -> LossInfo:
    """Updates on the windows; the loss of the last one."""
    batch = batch_of(algorithm, steps)
    for _ in range(num_updates):
        loss_info, info = LossFunction(algorithm)(batch)
        update_with_gradient(algorithm, loss_info)
        algorithm.after_update(batch.inputs, info)
    return loss_info


def trained_modules(algorithm: RLAlgorithm) -> set[str]:
    """Those whose parameters have a gradient."""
    return {
        name.split(".")[0]
        for name, p in algorithm.named_parameters()
        if p.grad is not None and p.grad.abs().sum() > 0
    }


def q_of(critic: CriticNetwork, observation: Tensor, action: Any) -> Tensor:
    """Q_k(s, a) [n] or [n, D] of one observation [3] and one action of the specs."""
    vector, joint = None, 0
    if isinstance(action, dict):
        joint, action = int(action["gear"]), action["move"]
    if action.is_floating_point():
        vector = torch.stack([action[0], action[1] / 5 - 1]).clamp(-1, 1)[None]
    else:
        joint = int(action)
    features, _ = critic.encode(observation[None])
    return critic.evaluate(features, vector)[0, :, joint]


class CountingEncoder(EncodingNetwork):
    """Has a state that does not matter: every path must give the same result."""

    def __init__(self, input_spec: Any, **kwargs: Any) -> None:
        super().__init__(input_spec, **kwargs)
        self._state_spec = TensorSpec(())

    def forward(self, inputs: Any, state: Any = ()) -> tuple[Tensor, Any]:
        return super().forward(inputs)[0], state + 1


class TwoStepsEnv(gymnasium.Env):
    """Go right twice for a reward of 1; left ends at once with 0.3.

    Random actions return 0.4 on average. What is best to do first is known only if the
    value of the second step is carried back. "Right" is 1, or more than 0.
    """

    def __init__(self, is_continuous: bool = False) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        if is_continuous:
            self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._place = 0
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        if float(np.reshape(action, -1)[0]) <= 0:
            return self._observe(), 0.3 * (self._place == 0), True, False, {}
        self._place += 1
        done = self._place == 2
        return self._observe(), float(done), done, False, {}

    def _observe(self) -> np.ndarray:
        observation = np.zeros(2, np.float32)
        observation[min(self._place, 1)] = 1.0
        return observation


def trained_on_random_steps(
    make: Any,
    env_ctor: Any,
    num_updates: int,
    num_steps: int = 1024,
    *,
    at_least: float | None = None,
    **settings: Any,
) -> RLAlgorithm:
    """An algorithm that has seen nothing but the steps of a random policy.

    Args:
        make: called with the environment and the configuration.
        env_ctor: of a single environment.
        num_updates: on the steps collected.
        num_steps: to collect.
        at_least: the greedy return that must be reached. It is looked at now and then,
            and training ends early where it is seen twice in a row.
        settings: of ``TrainerConfig``.
    """
    share = num_updates if at_least is None else max(1, num_updates // 10)
    torch.manual_seed(0)
    config = TrainerConfig(
        **{
            "num_iterations": 1,
            "unroll_length": num_steps // 8,
            "initial_collect_steps": num_steps,
            "initial_random_policy": True,
            "replay_buffer_length": num_steps,
            "num_updates_per_train_iter": share,
            "mini_batch_size": 64,
            "mini_batch_length": 2,
            **settings,
        }
    )
    env = create_environment(env_ctor=env_ctor, num_parallel_environments=8, seed=0)
    algorithm = make(env, config)
    algorithm.train_iter()
    if at_least is not None:
        train = algorithm.train_from_replay_buffer
        train_until(algorithm, env_ctor, at_least, train, num_done=1)
    return algorithm


def trained_until(
    algorithm: RLAlgorithm, env_ctor: Any, at_least: float, num_iterations: int
) -> None:
    """Trains on until the greedy return is seen twice in a row, or to the end."""

    def train() -> None:
        for _ in range(num_iterations // 10):
            algorithm.train_iter()

    train_until(algorithm, env_ctor, at_least, train)


def train_until(
    algorithm: RLAlgorithm,
    env_ctor: Any,
    at_least: float,
    train: Any,
    num_done: int = 0,
) -> None:
    """Trains for the tenths that are not done; looks from the third one on.

    Args:
        algorithm: that is trained.
        env_ctor: of the environment that it is evaluated in.
        at_least: the greedy return that ends it if it is seen twice in a row.
        train: trains for a tenth.
        num_done: tenths that it has been trained for.
    """
    mean, is_reached = -math.inf, False
    for tenth in range(num_done + 1, 11):
        train()
        if tenth >= 3:
            was_reached, mean = is_reached, greedy_return(algorithm, env_ctor)
            is_reached = mean >= at_least
            if was_reached and is_reached:
                return
    assert mean >= at_least, (mean, at_least)


def each_action_equally_often(self: Any, inputs: TimeStep) -> Tensor:
    """A ``random_action`` for two actions and an even number of environments."""
    return torch.arange(len(inputs.reward)) % 2


def greedy_return(algorithm: RLAlgorithm, env_ctor: Any) -> float:
    """The mean of 64 episodes."""
    with create_environment(
        env_ctor=env_ctor, num_parallel_environments=8, seed=0
    ) as env:
        return evaluate(algorithm, env, num_episodes=64, seed=1).mean
