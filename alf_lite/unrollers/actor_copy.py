"""The copy of an algorithm in an unroll worker: what it is told and how it is built."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from alf_lite.config import TrainerConfig, rules
from alf_lite.config import shipping as config_shipping
from alf_lite.data_structures import AlgStep, TimeStep
from alf_lite.environments.environment import Environment
from alf_lite.environments.specs_only_environment import RemoteEnvironment
from alf_lite.processes.ray_cluster import check_reachable
from alf_lite.unrollers.process_pool import warm_up
from alf_lite.unrollers.unroll_worker import WorkerParts
from alf_lite.utils.random_state import derive_seed
from alf_lite.utils.ranks import ranks

Nest = Any
RootAlgorithm = Any  # an RLAlgorithm, which is made of unrollers

_NUMBERS = "numbers"  # those below, float64
_COUNTERS = ("percent", "iterations", "env_steps", "global_counter")
# Fields of the recipe that a conf binds: references with a scope cannot be pickled.
_BOUND_FIELDS = {
    "algorithm_ctor": "TrainerConfig.algorithm_ctor",
    "data_transformer_ctor": "TrainerConfig.data_transformer_ctor",
}
# What every algorithm needs; imported once for all workers.
_PRELOADED = "alf_lite.algorithms.rl_algorithm"


class ActingState:
    """Parameters and buffers of an algorithm, and the progress that schedulers read.

    Args:
        algorithm: with its data transformer.
        left_out: parts of it that acting does not use.
    """

    def __init__(
        self, algorithm: RootAlgorithm, left_out: Collection[nn.Module] = ()
    ) -> None:
        self._algorithm = algorithm
        self._numbers = torch.zeros(len(_COUNTERS) + 1, dtype=torch.float64)
        self.tensors: dict[str, Tensor] = {
            _NUMBERS: self._numbers,
            **_without_duplicates(_named_tensors(algorithm, set(left_out))),
        }

    def capture(self) -> dict[str, Tensor]:
        """The tensors, with the numbers as they are now in this process."""
        progress = self._algorithm.progress
        counters = [getattr(progress, name) for name in _COUNTERS]
        self._numbers.numpy()[:] = (*counters, self._algorithm.acts_randomly)
        return self.tensors

    def apply(self) -> bool:
        """Takes over the numbers; returns whether actions shall be random."""
        *counters, acts_randomly = self._numbers.tolist()
        for name, value in zip(_COUNTERS, counters, strict=True):
            counter = value if name == "percent" else int(value)
            setattr(self._algorithm.progress, name, counter)
        return bool(acts_randomly)


class ActorCopy:
    """The algorithm of a worker, whose tensors are overwritten with the trained ones.

    Args:
        algorithm: acts; is never trained.
    """

    def __init__(self, algorithm: RootAlgorithm) -> None:
        algorithm.set_training(False)
        self.policy = algorithm
        self._state = algorithm.acting_state()
        self.tensors: dict[str, Tensor] = self._state.tensors
        self._acts_randomly = False

    def act(self, inputs: TimeStep, state: Nest) -> AlgStep:
        policy = self.policy
        if self._acts_randomly:
            return policy.random_step(inputs, state, policy.rollout_step)
        return policy.rollout_step(inputs, state)

    def after_refresh(self) -> None:
        self._acts_randomly = self._state.apply()


@dataclasses.dataclass(frozen=True)
class ActorRecipe:
    """Builds what a worker needs, in the process of the worker.

    Args:
        config: of the run, without the two constructors.
        algorithm_ctor: of the config.
        data_transformer_ctor: of the config.
        create_env: called with ``seed``.
    """

    config: TrainerConfig
    algorithm_ctor: Any
    data_transformer_ctor: Any
    create_env: Callable[..., Environment]

    def __call__(self, seed: int) -> WorkerParts:
        """The environment and the policy of one worker."""
        ranks.stay_alone()
        config = dataclasses.replace(
            self.config,
            algorithm_ctor=self.algorithm_ctor,
            data_transformer_ctor=self.data_transformer_ctor,
        )
        env = self.create_env(seed=derive_seed(seed, "environments"))
        remote = RemoteEnvironment(env, config.num_unroll_workers)
        algorithm = self.algorithm_ctor(env=remote, config=config)
        return WorkerParts(env, ActorCopy(algorithm))


def create_remote_environment(
    config: TrainerConfig, create_env: Callable[..., Environment], seed: int
) -> RemoteEnvironment:
    """The environments of all unroll workers, for the algorithm that is trained.

    One environment is built here, to know its specs and to find what is wrong with it
    before any process is started.

    Args:
        config: of the run.
        create_env: builds the environment of one worker; called with ``seed``.
        seed: of the environment that is described.

    Raises:
        ConfigError: if something cannot be sent to other processes.
    """
    recipe = ActorRecipe(
        config=config_in_worker(config),
        algorithm_ctor=config.algorithm_ctor,
        data_transformer_ctor=config.data_transformer_ctor,
        create_env=create_env,
    )
    dumped = config_shipping.dump_for(
        "TrainerConfig.async_unroll: what the workers build", recipe, _BOUND_FIELDS
    )
    if config.unroll_engine == "ray":
        check_reachable(config.ray_address)
    else:
        # While it imports the library, the algorithm is built here.
        warm_up(_PRELOADED)
    return RemoteEnvironment(
        create_env(seed=seed), config.num_unroll_workers, dumped, _PRELOADED
    )


def config_in_worker(config: TrainerConfig) -> TrainerConfig:
    """What a worker must know of the config: it acts on the CPU, and trains nothing."""
    return rules.switched(
        without_evaluation(config),
        algorithm_ctor=None,
        data_transformer_ctor=None,
        hook_ctors=(),
        random_seed=None,  # a worker is seeded before it builds anything
        num_threads=1,
        device="cpu",
        compile=False,
        offline_buffer_dir=None,
        metric_ctors=(),
    )


def without_evaluation(config: TrainerConfig) -> TrainerConfig:
    """The config of a process that leaves evaluations to another one."""
    return rules.switched(
        config,
        evaluate=False,
        async_eval=False,
        evaluation_buffer_dir=None,
        early_stop_patience=None,
    )


def _named_tensors(
    module: nn.Module, left_out: set[nn.Module], prefix: str = ""
) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers of what is reached without entering ``left_out``."""
    yield from itertools.chain(
        module.named_parameters(prefix, recurse=False),
        module.named_buffers(prefix, recurse=False),
    )
    for name, child in module.named_children():
        if child not in left_out:
            path = f"{prefix}.{name}" if prefix else name
            yield from _named_tensors(child, left_out, path)


def _without_duplicates(named: Iterator[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """Each tensor under the first of its names."""
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in named:
        if id(tensor) not in seen:
            seen.add(id(tensor))
            tensors[name] = tensor
    return tensors
