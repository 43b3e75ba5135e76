"""An algorithm that writes down with which parameters and states its workers act."""

from __future__ import annotations

import functools
import multiprocessing
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from alf_lite.algorithms.learning.construction import create_algorithm
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import AlgStep, LossInfo, TimeStep
from alf_lite.environments.creation import create_environment
from alf_lite.optimizers.optimizers import SGD
from alf_lite.tensor_specs import TensorSpec
from alf_lite.testing.fault_environment import FaultEnv
from alf_lite.unrollers.actor_copy import create_remote_environment


class WitnessInfo(NamedTuple):
    """What ``rollout_step`` saw."""

    first_weight: Any = ()  # [B], the first element of the parameter
    last_weight: Any = ()  # [B], the last one
    count: Any = ()  # [B], steps since the episode began, from the recurrent state


class WitnessAlgorithm(RLAlgorithm):
    """All weights grow by 1 with every update; action 0 or 1 in turn."""

    def __init__(
        self, observation_spec, action_spec, *, on_policy=False, corrects=True, **kwargs
    ):
        super().__init__(
            observation_spec,
            action_spec,
            is_on_policy=on_policy,
            optimizer=SGD(lr=1.0),
            train_state_spec=TensorSpec(()),
            **kwargs,
        )
        self.weights = nn.Parameter(torch.zeros(1000))
        self._corrects = corrects

    @property
    def corrects_policy_lag(self) -> bool:
        return self._corrects

    def rollout_step(self, inputs: TimeStep, state: Tensor) -> AlgStep:
        weights = self.weights.detach()
        size = state.shape
        info = WitnessInfo(weights[0].expand(size), weights[-1].expand(size), state)
        return AlgStep((state % 2).long(), state + 1, info)

    def train_step(self, inputs: TimeStep, state: Tensor, rollout_info: Any) -> AlgStep:
        return AlgStep(state=state, info=rollout_info.count)

    def calc_loss(self, info: Any) -> LossInfo:
        return LossInfo(scalar_loss=-self.weights.sum())


class ImportingEnv(FaultEnv):
    """Needs a module that only the trainer's process has."""

    def __init__(self) -> None:
        if multiprocessing.parent_process() is not None:
            import surely_not_installed  # noqa: F401
        super().__init__()


def env_fn(mode: str = "", num_parallel_environments: int = 1, **kwargs: Any) -> Any:
    """What creates environments of FaultEnv; it can be pickled."""
    return functools.partial(
        create_environment,
        env_name="faulty",
        num_parallel_environments=num_parallel_environments,
        env_ctor=functools.partial(FaultEnv, mode=mode, **kwargs),
    )


def async_config(**fields: Any) -> TrainerConfig:
    """Of two workers that unroll two steps at a time, off-policy."""
    return TrainerConfig(
        **{
            "algorithm_ctor": WitnessAlgorithm,
            "async_unroll": True,
            "num_unroll_workers": 2,
            "unroll_length": 2,
            "mini_batch_length": 2,
            "mini_batch_size": 4,
            "num_iterations": 20,
            "num_checkpoints": 0,
            "random_seed": 1,
            "worker_timeout_seconds": 60.0,
            **fields,
        }
    )


def async_algorithm(create_env: Any, **fields: Any) -> RLAlgorithm:
    """Ready to train; ``finish_train`` ends its workers."""
    config = async_config(**fields)
    env = create_remote_environment(config, create_env, seed=0)
    algorithm = create_algorithm(config, env)
    env.release()
    algorithm.setup_training()
    algorithm.reset_environment(1)
    return algorithm
