"""Environments with the interface of rsl_rl, such as Isaac Lab's, as they are.

Their batches are tensors on a GPU, and an environment whose episode ends is reset in
the same step: what ``step`` returns is the first observation of the next episode. An
:class:`Environment` pauses for a step there. See :class:`RslRlEnvironment`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.config import configurable
from alf_lite.data_structures import TimeStep
from alf_lite.environments.environment import EnvironmentWithSpecs
from alf_lite.environments.rsl_rl_interface import (
    RslRlReader,
    RslRlStep,
    RslRlVecEnv,
)
from alf_lite.environments.single_env import vector_seed
from alf_lite.errors import ConfigError, EnvError
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec
from alf_lite.utils.tensor_utils import where_rows

Nest = Any
_logger = logging.getLogger(__name__)


@configurable
class RslRlEnvironment(EnvironmentWithSpecs):
    """Adapts an environment with the interface of rsl_rl.

    Nothing leaves the device, and nothing waits for it. Where an episode ends, three
    things are to be known:

    1. The step after a LAST must be the FIRST of the next episode, but these
       environments do not pause: they take a step. It is taken with an action of zeros,
       its reward is dropped, and FIRST is where it leads. So an episode begins one step
       late, and its return lacks the reward of that step.
    2. A LAST is terminal (discount 0) unless ``extras["time_outs"]`` says that it is a
       time limit (discount 1, bootstrapped).
    3. The observation of a LAST is that of ``extras["final_observation"]`` (or
       ``"terminal_observation"``, ``"final_obs"``), if it is there, [B, ...]. Otherwise
       it is lost, and the one before stands in for it: a time limit is bootstrapped
       with its value, as by rsl_rl itself. Where the discount is 0, it is not used.

    Observations are a tensor or a mapping of tensors, such as a TensorDict; agents see
    what ``observation_groups`` names. An older ``(tensor, extras)`` of
    ``get_observations`` is understood: the tensor is the group ``policy``, the others
    are in ``extras["observations"]``.

    Open episodes are not resumed: the environment has no state that could be saved.

    Args:
        env: owned from here on: ``close`` closes it, if it can be closed.
        observation_groups: what agents see of a mapping; None: all of it.
        action_bound: agents choose in [-1, 1], and the environment gets it times this;
            None: actions have no bounds, and the environment gets what was chosen.
        has_time_outs: False if no end is a time limit, and the extras say nothing of
            it, as in Isaac Lab's tasks with a finite horizon.
        env_info_keys: what becomes ``env_info``: entries of the extras, one number for
            each environment or one for all, such as ``"log/speed"``.
        seed: of the first reset, if that gets none.
        name: for messages.

    Raises:
        ConfigError: if ``env`` has another interface, or observes what is not [B, ...].
    """

    def __init__(
        self,
        env: RslRlVecEnv,
        *,
        observation_groups: Sequence[str] | None = None,
        action_bound: float | None = None,
        has_time_outs: bool = True,
        env_info_keys: Sequence[str] = (),
        seed: int | None = None,
        name: str | None = None,
    ) -> None:
        name = name or type(env).__name__
        reader = RslRlReader(env, observation_groups, name)
        shape = (env.num_actions,)
        action_spec = TensorSpec(shape)
        if action_bound is not None:
            if not action_bound > 0:
                raise ConfigError(
                    f"{name}: action_bound must be positive, got {action_bound}"
                )
            action_spec = BoundedTensorSpec(shape, torch.float32, -1.0, 1.0)
        super().__init__(
            reader.batch_size,
            reader.observation_spec,
            action_spec,
            reward_spec=TensorSpec(()),
            env_info_spec={key: TensorSpec(()) for key in env_info_keys} or (),
            name=name,
        )
        self.env = env
        self._reader = reader
        self._action_bound = action_bound
        self._has_time_outs = has_time_outs
        self._env_info_keys = tuple(env_info_keys)
        self._seed = seed
        device = reader.device
        self._env_id = torch.arange(self.batch_size, dtype=torch.int32, device=device)
        self._has_ended = torch.zeros_like(self._env_id, dtype=torch.bool)
        self._before: Nest = ()  # the newest observation
        self._closed = False

    def reset(self, seed: int | None = None) -> TimeStep:
        if seed is None and self._current is None:
            seed = self._seed
        env: Any = self.env
        if seed is not None:
            if callable(getattr(env, "seed", None)):
                env.seed(vector_seed(seed))
            else:
                _logger.warning(
                    "%s has no seed(): its random numbers are not those of a seed",
                    self.name,
                )
        if callable(getattr(env, "reset", None)):
            env.reset()
        elif self._current is not None:
            raise EnvError(
                f"{self.name} has no reset(), so that it can begin only once: give it "
                "that method, or evaluate in another one"
            )
        self._before = _copied(self._reader.observe())
        self._has_ended = torch.zeros_like(self._has_ended)
        ones = torch.ones(self.batch_size, device=self._env_id.device)
        self._current = TimeStep(
            step_type=torch.zeros_like(self._env_id),
            reward=torch.zeros_like(ones),
            discount=ones,
            observation=_copied(self._before),
            prev_action=ones.new_zeros(self._action_shape),
            env_id=self._env_id,
            env_info=self._infos({}),
        )
        return self._current

    def step(self, action: Nest) -> TimeStep:
        if self._current is None:
            raise RuntimeError(f"{self.name}: call reset() before step()")
        if not isinstance(action, Tensor) or action.shape != self._action_shape:
            came = tuple(action.shape) if isinstance(action, Tensor) else type(action)
            raise ValueError(
                f"action: expected a tensor of shape {self._action_shape}, got {came}"
            )
        first = self._has_ended
        action = action.detach().to(first.device, torch.float32)
        action = action.masked_fill(first[:, None], 0.0)
        # What the environment is given, which may change it
        given = action.clone()
        if self._action_bound is not None:
            given = action.clamp(-1.0, 1.0) * self._action_bound
        step = self._reader.step(given)
        last = step.done & ~first
        is_terminal = last & ~self._is_limit(step)
        final = self._before if step.final is None else step.final
        self._current = TimeStep(
            step_type=1 + last.int() - first.int(),
            reward=step.reward.masked_fill(first, 0.0),
            discount=1 - is_terminal.float(),
            observation=where_rows(last, final, step.observation),
            prev_action=action,
            env_id=self._env_id,
            env_info=self._infos(step.extras),
        )
        self._before, self._has_ended = _copied(step.observation), last
        return self._current

    def close(self) -> None:
        close = getattr(self.env, "close", None)
        if not self._closed and callable(close):
            close()
        self._closed = True

    @property
    def _action_shape(self) -> tuple[int, int]:
        return self.batch_size, self.env.num_actions

    def _is_limit(self, step: RslRlStep) -> Tensor:
        """[B] bool, of which only the ends mean anything."""
        if step.is_limit is not None:
            if self._has_time_outs:
                return step.is_limit
            raise EnvError(
                f"{self.name}: has_time_outs is False, but the extras have time_outs: "
                "leave has_time_outs out"
            )
        # Some tell it from their first end on; only those are waited for.
        if self._has_time_outs and bool(step.done.any()):
            raise EnvError(
                f"{self.name}: an episode has ended and the extras have no time_outs, "
                f"only {', '.join(map(str, step.extras)) or 'nothing'}. Send them, or "
                "set RslRlEnvironment.has_time_outs = False if no time limit ends it."
            )
        return torch.zeros_like(step.done)

    def _infos(self, extras: Mapping[str, Any]) -> Nest:
        infos = {key: self._reader.info(extras, key) for key in self._env_info_keys}
        return infos or ()


def _copied(observation: Nest) -> Nest:
    """In memory of its own: the environment may write to its tensors."""
    return nest.map_structure(torch.clone, observation)
