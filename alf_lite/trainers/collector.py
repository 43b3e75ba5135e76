"""Lets a policy act and keeps every step, to be trained on later."""

from __future__ import annotations

import abc
from typing import Any

import numpy as np
import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.data_structures import Experience, StepType, TimeStep
from alf_lite.datasets.field_matching import experience_spec
from alf_lite.environments.environment import Environment
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
from alf_lite.trainers.collection_policies import CollectionPolicy
from alf_lite.trainers.evaluator import quotas
from alf_lite.utils import random_state

Nest = Any

# Steps that are put together at once.
_CHUNK_LENGTH = 1000


class Amount(abc.ABC):
    """How much is collected: decides step by step which environments take part.

    Of every environment the first so many steps are kept.
    """

    def begin(self, batch_size: int) -> None:
        """Nothing has been collected yet, of ``batch_size`` environments."""
        self._is_open = np.ones(batch_size, np.bool_)

    @abc.abstractmethod
    def take(self, is_first: np.ndarray, is_last: np.ndarray) -> np.ndarray:
        """[B], which of the new steps [B] are kept."""

    @property
    def is_complete(self) -> bool:
        """Whether no more steps are wanted."""
        return not self._is_open.any()


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

    def take(self, is_first: np.ndarray, is_last: np.ndarray) -> np.ndarray:
        kept = self._is_open.copy()
        counted = kept & ~is_first
        if not self._whole_episodes:
            # Of the last ones only so many, those of the first environments.
            kept &= ~counted | (counted.cumsum() <= self._remaining)
        self._remaining -= int(counted.sum())
        if self._remaining <= 0:
            self._is_open &= self._whole_episodes & ~is_first & ~is_last
        return kept


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

    def take(self, is_first: np.ndarray, is_last: np.ndarray) -> np.ndarray:
        kept = self._is_open
        self._remaining = self._remaining - (kept & is_last)
        self._is_open = self._remaining > 0
        return kept


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
    steps = _Steps(env, amount)
    with random_state.preserved(), torch.inference_mode():
        if seed is not None:
            random_state.seed_everything(seed)
        time_step = env.reset(seed)
        steps.add(time_step)
        while not amount.is_complete:
            action = policy.act(time_step)
            time_step = env.step(action)
            if overwrite_policy_output:
                action = time_step.prev_action
            steps.add(time_step, action)
    return steps.to_buffer()


class _Steps:
    """The steps that were kept so far."""

    def __init__(self, env: Environment, amount: Amount) -> None:
        amount.begin(env.batch_size)
        self._amount = amount
        self._spec = experience_spec(env)
        self._lengths = np.zeros(env.batch_size, np.int64)
        self._ends_with_first = np.zeros(env.batch_size, np.bool_)
        self._chunks: list[Experience] = []  # [T, B, ...] each, on the CPU
        self._time_steps: list[TimeStep] = []  # [B, ...] each
        self._actions: list[Nest] = []  # of all of these but the newest

    def add(self, time_step: TimeStep, action: Nest = None) -> None:
        """Takes in a step and, unless it is the first, the action that led to it."""
        if self._time_steps:
            self._actions.append(action)
        if len(self._actions) == _CHUNK_LENGTH:
            self._stack()
        self._time_steps.append(time_step)
        step_type = time_step.step_type.numpy(force=True)
        is_first = step_type == StepType.FIRST
        kept = self._amount.take(is_first, step_type == StepType.LAST)
        self._lengths += kept
        self._ends_with_first[kept] = is_first[kept]

    def to_buffer(self) -> ReplayBuffer:
        """All of it; what is kept here is gone then."""
        # Nothing was done at the newest steps.
        newest = self._time_steps[-1]
        self._actions.append(nest.map_structure(torch.zeros_like, newest.prev_action))
        self._stack()
        lengths = self._lengths - self._ends_with_first
        buffer = ReplayBuffer(self._spec, len(lengths), max(1, int(lengths.max())))
        first = 0
        while self._chunks:
            chunk = self._chunks.pop(0)
            chunk = _without_unused_actions(chunk, lengths - 1 - first)
            size = len(chunk.time_step.step_type)
            for env_id, length in enumerate(np.clip(lengths - first, 0, size)):
                if length:
                    rows = slice(0, int(length)), slice(env_id, env_id + 1)
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

    def clear(action: Tensor) -> Tensor:
        mask = unused.view(*unused.shape, *(1,) * (action.ndim - 2))
        return action.masked_fill(mask, 0)

    return chunk._replace(action=nest.map_structure(clear, chunk.action))
