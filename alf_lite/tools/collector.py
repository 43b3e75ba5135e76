"""Collects steps with a policy into a replay buffer: random, scripted or trained."""

from __future__ import annotations

import abc
import contextlib
import importlib
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.algorithms.acting import PredictActor
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.data_structures import Experience, StepType, TimeStep
from alf_lite.datasets.step_assembly import experience_spec
from alf_lite.distributions.action_masks import ActionMask, ActionMaskError
from alf_lite.environments.environment import Environment
from alf_lite.errors import ConfigError
from alf_lite.policies.evaluator import quotas
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
from alf_lite.tensor_specs import BoundedTensorSpec
from alf_lite.tools.env_report import MASK
from alf_lite.tools.stop_requests import StopRequests
from alf_lite.utils import random_state
from alf_lite.utils.tensor_utils import expand_dims_as

_logger = logging.getLogger(__name__)

Nest = Any
# Steps that are put together at once.
_CHUNK_LENGTH = 1000


class CollectionPolicy(abc.ABC):
    """Chooses the actions of a batch of environments, step after step."""

    @abc.abstractmethod
    def act(self, time_step: TimeStep) -> Nest:
        """The actions [B, ...] at the newest time steps [B, ...]."""


class RandomPolicy(CollectionPolicy):
    """Every action is as likely as any other that the spec and the mask allow.

    The mask is ``observation["action_mask"]``, if there is one.
    """

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._mask = _conventional_mask(env)

    def act(self, time_step: TimeStep) -> Nest:
        outer_dims = (self._env.batch_size,)
        action = nest.map_structure(
            lambda spec: spec.sample(outer_dims), self._env.action_spec
        )
        return self._mask.redraw(action, time_step.observation)


def _conventional_mask(env: Environment) -> ActionMask:
    observation_spec, action_spec = env.observation_spec, env.action_spec
    if isinstance(observation_spec, dict) and MASK in observation_spec:
        try:
            return ActionMask(
                observation_spec, action_spec, MASK, visible_to_networks=True
            )
        except ActionMaskError as error:
            _logger.warning(
                "Random actions do not heed observation[%r]: %s", MASK, error
            )
    return ActionMask(observation_spec, action_spec, None)


class ScriptedPolicy(CollectionPolicy):
    """A function from a time step [B, ...] to actions [B, ...].

    Args:
        function: gets a copy of what the environment returned, and returns tensors or
            arrays as the environment's action spec describes them.
        name: of the function, for messages.
        env: that it acts in.
    """

    def __init__(
        self, function: Callable[[TimeStep], Nest], name: str, env: Environment
    ) -> None:
        self._function = function
        self._name = name
        self._env = env
        self._has_warned = False

    def act(self, time_step: TimeStep) -> Nest:
        # It may change what it is given, which is still to be written.
        action = self._function(nest.map_structure(torch.clone, time_step))
        try:
            action = nest.map_structure(torch.as_tensor, action)
            nest.assert_same_structure(self._env.action_spec, action)
            return nest.map_structure(self._checked, self._env.action_spec, action)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"{self._name} returned no action of {self._env.name}: {error}"
            ) from error

    def _checked(self, spec: Any, leaf: Tensor) -> Tensor:
        shape = (self._env.batch_size, *spec.shape)
        if leaf.shape != shape:
            raise ValueError(
                f"expected shape {shape}, the batch of environments first, got "
                f"{tuple(leaf.shape)}"
            )
        if leaf.is_floating_point() and not spec.is_continuous:
            raise ValueError(f"expected integers ({spec.dtype}), got {leaf.dtype}")
        if isinstance(spec, BoundedTensorSpec):
            self._look_at_bounds(spec, leaf.cpu())
        return leaf.to(spec.dtype)

    def _look_at_bounds(self, spec: BoundedTensorSpec, leaf: Tensor) -> None:
        low, high = torch.tensor(spec.minimum), torch.tensor(spec.maximum)
        rounding = 1e-3 if spec.is_continuous else 0
        beyond = (leaf < low - rounding) | (leaf > high + rounding)
        if self._has_warned or not beyond.any():
            return
        text = f"between {low.min()} and {high.max()}, got {leaf[beyond][0]}"
        if not spec.is_continuous:
            raise ValueError(f"expected integers {text}")
        self._has_warned = True
        _logger.warning(
            "%s: expected actions %s: the bound is executed. They are as agents choose "
            "them, not in the units of the environment.",
            self._name,
            text,
        )


class AlgorithmPolicy(CollectionPolicy):
    """The ``predict_step`` of an algorithm, whose recurrent state it keeps.

    Args:
        algorithm: in evaluation mode from here on.
        batch_size: B.
    """

    def __init__(self, algorithm: RLAlgorithm, batch_size: int) -> None:
        algorithm.eval()
        self._actor = PredictActor(algorithm, batch_size)

    def act(self, time_step: TimeStep) -> Nest:
        return self._actor.act(time_step)


class EpsilonGreedyPolicy(CollectionPolicy):
    """Another policy, with a random action now and then.

    Args:
        policy: acts otherwise.
        epsilon: the probability of a random action, for each environment and step.
        env: that they act in.
    """

    def __init__(
        self, policy: CollectionPolicy, epsilon: float, env: Environment
    ) -> None:
        self._policy = policy
        self._epsilon = epsilon
        self._random = RandomPolicy(env)

    def act(self, time_step: TimeStep) -> Nest:
        action = self._policy.act(time_step)
        is_random = torch.rand(time_step.step_type.shape) < self._epsilon  # [B]

        def choose(chosen: Tensor, other: Tensor) -> Tensor:
            mask = expand_dims_as(is_random, chosen).to(chosen.device)
            return torch.where(mask, other.to(chosen.device), chosen)

        return nest.map_structure(choose, action, self._random.act(time_step))


def import_function(name: str) -> Callable[[TimeStep], Nest]:
    """What ``module:function`` names; classes are called once, without arguments.

    Raises:
        ConfigError: if there is no such module or function.
    """
    module_name, _, function_name = name.partition(":")
    if not module_name or not function_name:
        raise ConfigError(f"expected random or module:function as policy, got {name!r}")
    try:
        found: Any = importlib.import_module(module_name)
        for part in function_name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"the policy {name} cannot be imported: {error}") from error
    if isinstance(found, type):
        found = found()
    if not callable(found):
        raise ConfigError(f"the policy {name} is a {type(found).__name__}, no function")
    return found


class Amount(abc.ABC):
    """How much is collected: decides step by step which environments take part.

    Of every environment the first so many steps are kept, without those of an agent
    that waits for the others of its game.
    """

    def begin(self, batch_size: int) -> None:
        """Nothing has been collected yet, of ``batch_size`` environments."""
        self._is_open = np.ones(batch_size, np.bool_)

    @abc.abstractmethod
    def take(
        self, is_first: np.ndarray, is_last: np.ndarray, waits: np.ndarray
    ) -> np.ndarray:
        """[B], which of the new steps [B] are kept: none of an agent that waits."""

    @property
    def is_complete(self) -> bool:
        """Whether no more steps are wanted."""
        return not self._is_open.any()

    @property
    @abc.abstractmethod
    def progress(self) -> str:
        """How much there is of how much, in words."""


class NumSteps(Amount):
    """A number of environment steps, of all environments together.

    Args:
        num_env_steps: steps that are not FIRST.
        whole_episodes: every environment completes the episode that it is in when there
            are so many, which makes it more.
    """

    def __init__(self, num_env_steps: int, whole_episodes: bool = False) -> None:
        self._num_env_steps = num_env_steps
        self._whole_episodes = whole_episodes

    def begin(self, batch_size: int) -> None:
        super().begin(batch_size)
        self._remaining = self._num_env_steps

    def take(
        self, is_first: np.ndarray, is_last: np.ndarray, waits: np.ndarray
    ) -> np.ndarray:
        kept = self._is_open & ~waits
        counted = kept & ~is_first
        if not self._whole_episodes:
            # Of the last ones only so many, those of the first environments.
            kept &= ~counted | (counted.cumsum() <= self._remaining)
        self._remaining -= int(counted.sum())
        if self._remaining <= 0:
            self._is_open &= self._whole_episodes & ~is_first & ~is_last
        return kept

    @property
    def progress(self) -> str:
        num_steps = self._num_env_steps - max(0, self._remaining)
        return f"{num_steps} of {self._num_env_steps} steps"


class NumEpisodes(Amount):
    """A number of whole episodes.

    Every environment contributes a fixed number, its first ones: whichever episodes end
    first would be the short ones.
    """

    def __init__(self, num_episodes: int) -> None:
        self._num_episodes = num_episodes

    def begin(self, batch_size: int) -> None:
        self._remaining = quotas(batch_size, self._num_episodes)
        self._is_open = self._remaining > 0

    def take(
        self, is_first: np.ndarray, is_last: np.ndarray, waits: np.ndarray
    ) -> np.ndarray:
        kept = self._is_open & ~waits
        self._remaining = self._remaining - (kept & is_last)
        self._is_open = self._remaining > 0
        return kept

    @property
    def progress(self) -> str:
        num_complete = self._num_episodes - int(self._remaining.sum())
        return f"{num_complete} of {self._num_episodes} episodes"


def collect(
    env: Environment,
    policy: CollectionPolicy,
    amount: Amount,
    *,
    seed: int | None = None,
    overwrite_policy_output: bool = False,
) -> ReplayBuffer:
    """Steps the environments and keeps what they return, untransformed.

    Args:
        env: reset first.
        policy: acts.
        amount: how much is collected.
        seed: of the environments and of what is drawn here. None leaves the
            environments' streams as they are.
        overwrite_policy_output: keep the action that the environment reports as
            executed (``prev_action`` of the next step) instead of the policy's, as for
            an expert within the environment.

    Returns:
        ``Experience`` with ``time_step`` and ``action``, zeros at LAST steps and at the
        newest ones. A FIRST step that nothing follows is left out.
    """
    collection = Collection(
        env,
        policy,
        amount,
        seed=seed,
        overwrite_policy_output=overwrite_policy_output,
    )
    collection.run()
    return collection.to_buffer()


class Collection:
    """Steps that are collected, which may be broken off.

    Args:
        env: see :func:`collect`, as for the others.

    Attributes:
        num_env_steps: those that were kept and are not FIRST.
    """

    def __init__(
        self,
        env: Environment,
        policy: CollectionPolicy,
        amount: Amount,
        *,
        seed: int | None = None,
        overwrite_policy_output: bool = False,
    ) -> None:
        self._env = env
        self._policy = policy
        self._amount = amount
        self._seed = seed
        self._overwrite_policy_output = overwrite_policy_output
        amount.begin(env.batch_size)
        self.num_env_steps = 0
        self._spec = experience_spec(env)
        self._kept: list[np.ndarray] = []  # [B] each
        self._ends_with_first = np.zeros(env.batch_size, np.bool_)
        self._chunks: list[Experience] = []  # [T, B, ...] each, on the CPU
        self._time_steps: list[TimeStep] = []  # [B, ...] each
        self._actions: list[Nest] = []  # of all of these but the newest

    def run(self, requests: StopRequests | None = None) -> None:
        """Collects all that is wanted, or until it is asked to stop.

        Whatever is raised, what there was before the step is kept.

        Args:
            requests: for an early end, which breaks off the step that is being taken.

        Raises:
            StopRequestedError: if there was one.
        """
        env = self._env
        waiting = contextlib.nullcontext if requests is None else requests.raised
        with random_state.preserved(), torch.inference_mode():
            if self._seed is not None:
                random_state.seed_everything(self._seed)
            with waiting():
                time_step = env.reset(self._seed)
            self._add(time_step)
            while not self._amount.is_complete:
                with waiting():
                    action = self._policy.act(time_step)
                    time_step = env.step(action)
                if self._overwrite_policy_output:
                    action = time_step.prev_action
                self._add(time_step, action)

    @property
    def progress(self) -> str:
        """How much there is of how much, in words."""
        return self._amount.progress

    def _add(self, time_step: TimeStep, action: Nest = None) -> None:
        """Takes in a step and, unless it is the first, the action that led to it."""
        step_type = time_step.step_type.numpy(force=True)
        is_first, is_last = step_type == StepType.FIRST, step_type == StepType.LAST
        waits = np.zeros_like(is_last)
        if self._time_steps:
            self._actions.append(action)
            before = self._time_steps[-1].step_type
            was_last = before.numpy(force=True) == StepType.LAST
            is_cut, waits = is_first & ~was_last, is_last & was_last
            if is_cut.any():  # the environment has failed
                before[torch.from_numpy(is_cut).to(before.device)] = int(StepType.LAST)
        if len(self._actions) == _CHUNK_LENGTH:
            self._stack()
        self._time_steps.append(time_step)
        kept = self._amount.take(is_first, is_last, waits)
        self._kept.append(kept)
        self.num_env_steps += int((kept & ~is_first).sum())
        self._ends_with_first[kept] = is_first[kept]

    def to_buffer(self) -> ReplayBuffer:
        """What was collected, see :func:`collect`; it is gone here then."""
        # Nothing was done at the newest steps.
        newest = self._time_steps[-1]
        self._actions.append(nest.map_structure(torch.zeros_like, newest.prev_action))
        self._stack()
        kept = np.stack(self._kept)  # [T, B]
        newest = len(kept) - 1 - kept[::-1].argmax(0)  # [B]
        kept[newest, range(len(newest))] &= ~self._ends_with_first
        lengths = kept.sum(0)
        buffer = ReplayBuffer(self._spec, len(lengths), max(1, int(lengths.max())))
        first = 0
        while self._chunks:
            chunk = self._chunks.pop(0)
            chunk = _without_unused_actions(chunk, newest - first)
            size = len(chunk.time_step.step_type)
            for env_id, is_kept in enumerate(kept[first : first + size].T):
                if is_kept.any():
                    rows = torch.from_numpy(is_kept), slice(env_id, env_id + 1)
                    column = nest.map_structure(lambda t, rows=rows: t[rows], chunk)
                    buffer.add_batch(column, torch.tensor([env_id]), time_major=True)
            first += size
        return buffer

    def _stack(self) -> None:
        steps = [
            Experience(time_step, action)
            for time_step, action in zip(self._time_steps, self._actions, strict=True)
        ]
        self._chunks.append(nest.map_structure(Tensor.cpu, nest.stack(steps)))
        self._time_steps.clear()
        self._actions.clear()


def _without_unused_actions(chunk: Experience, newest: np.ndarray) -> Experience:
    """Zeroes what was ignored.

    Args:
        chunk: [T, B, ...].
        newest: [B], the row of the newest step, maybe of another chunk.
    """
    unused = chunk.time_step.step_type == StepType.LAST  # [T, B]
    unused = unused | (torch.arange(len(unused))[:, None] == torch.from_numpy(newest))
    action = nest.map_structure(
        lambda action: action.masked_fill(expand_dims_as(unused, action), 0),
        chunk.action,
    )
    return chunk._replace(action=action)
