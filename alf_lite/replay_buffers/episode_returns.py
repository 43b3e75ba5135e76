"""What followed the stored steps until their episodes ended: discounted returns."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from alf_lite.data_structures import StepType
from alf_lite.replay_buffers.stored_steps import StoredSteps


class EpisodeReturns:
    """The return of the rest of its episode for every stored step.

        R_t = Σ_{k≥1} (Π_{j=1..k-1} γ_{t+j}) r_{t+k},   γ_t = γ · discount_t

    up to the terminal step. It is known once the episode has terminated, and -inf until
    then. What would have followed a time limit is never known.

    Steps are looked at when they are first asked for, each once.

    Args:
        steps: of ``Experience``.
        gamma: γ.
        transform_rewards: the rewards [N] that the algorithm sees, of raw ones [N].
    """

    def __init__(
        self,
        steps: StoredSteps,
        gamma: float,
        transform_rewards: Callable[[Tensor], Tensor],
    ) -> None:
        self._steps = steps
        self._gamma = gamma
        self._transform_rewards = transform_rewards
        # As in the buffer, a ring of rows for each environment.
        shape = steps.num_environments, steps.max_length
        self._returns = np.full(shape, -math.inf, np.float32)
        self._seen_end = np.zeros(steps.num_environments, np.int64)

    def windows(self, env_ids: Tensor, positions: Tensor, length: int) -> Tensor:
        """R of the windows that begin at these steps: [B] and [B] → [B, length]."""
        self._look_at_new_steps()
        offsets = np.arange(length)
        ids, first = env_ids.numpy(force=True), positions.numpy(force=True)
        columns = (first[:, None] + offsets) % self._steps.max_length
        return torch.from_numpy(self._returns[ids[:, None], columns])

    def _look_at_new_steps(self) -> None:
        begins = self._steps.begin_positions.numpy()
        ends = self._steps.end_positions.numpy()
        firsts = np.maximum(self._seen_end, begins)
        for env_id in np.flatnonzero(ends > firsts).tolist():
            self._look_at(env_id, int(firsts[env_id]), int(ends[env_id]))
        self._seen_end = ends

    def _look_at(self, env_id: int, first: int, end: int) -> None:
        """At the new steps of an environment, and what their ends mean for others."""
        new = np.arange(first, end)
        self._returns[env_id, new % self._steps.max_length] = -math.inf
        step_type, discount = self._read(env_id, new, ("step_type", "discount"))
        is_end = (step_type == int(StepType.LAST)) & (discount == 0)
        for last in new[is_end].tolist():
            begin, _ = self._steps.get_episode_bounds(
                torch.tensor([env_id]), torch.tensor([last])
            )
            self._sum_up(env_id, np.arange(int(begin), last + 1))

    def _sum_up(self, env_id: int, positions: np.ndarray) -> None:
        """Sets R of the steps of an episode [N] that has terminated."""
        reward, discount = self._read(env_id, positions, ("reward", "discount"))
        rewards = self._transform_rewards(torch.from_numpy(reward)).tolist()
        discounts = (self._gamma * discount.astype(np.float64)).tolist()
        returns, total = [-math.inf], 0.0  # nothing follows the last one
        for t in range(len(positions) - 1, 0, -1):
            total = rewards[t] + discounts[t] * total
            returns.append(total)
        columns = positions % self._steps.max_length
        self._returns[env_id, columns] = returns[::-1]

    def _read(
        self, env_id: int, positions: np.ndarray, fields: tuple[str, ...]
    ) -> list[np.ndarray]:
        """Fields of the time step, [N] each."""
        found = self._steps.get_field(
            [f"time_step.{name}" for name in fields],
            torch.full((len(positions),), env_id),
            torch.from_numpy(positions),
        )
        return [field.cpu().numpy() for field in found]
