"""What a model is fitted to that is unrolled K steps from the steps of a window."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.data_structures import StepType
from alf_lite.utils import value_ops

Nest = Any
_LAST = int(StepType.LAST)


class WindowTargets(NamedTuple):
    """Targets of R roots and K steps from each, [B, R, K+1]; 0 where masked.

    Entry k belongs to the state that the model has after k actions. Nothing is said of
    reward and continuation at k = 0.
    """

    value: Tensor  # the n-step return
    reward: Tensor  # of arriving there
    continues: Tensor  # 0 where that is terminal or behind a terminal state, else 1
    has_value: Tensor  # bool
    has_policy: Tensor  # bool
    has_reward: Tensor  # bool, for ``continues``, too
    is_absorbed: Tensor  # bool, behind a terminal state: any action leads there


def window_targets(
    rewards: Tensor,
    values: Tensor,
    step_types: Tensor,
    discounts: Tensor,
    n: int,
    num_unroll_steps: int,
) -> WindowTargets:
    """Makes n-step targets for the K+1 states that follow each root.

        G_t = Σ_{j=1..m} Γ_{j-1} r_{t+j} + Γ_m V_{t+m},   m = min(n, steps to the LAST)

    Γ_j is the product of j discounts. One below 0, of a game of two who move in turn,
    changes the sign, so that every target is of the player who moves.

    A terminal state has value 0 and absorbs: behind it rewards, values and continuation
    are 0, and are fitted. A time limit says nothing about what would have followed:
    everything behind it is masked, and at the limit itself value and policy. No policy
    is known of a terminal state. What is masked may be NaN. A lost life, discount 0 at
    a step that is not LAST, is terminal for what led to it, and a root as any other.

    Args:
        rewards: [B, T], arrived with the step.
        values: [B, T], V of the step.
        step_types: [B, T].
        discounts: [B, T], γ included; 0 where terminal.
        n: rewards that are summed, at most.
        num_unroll_steps: K.

    Returns:
        Those of R = T - n - K roots.

    Raises:
        ValueError: if there is no root.
    """
    length, num_states = rewards.shape[1], num_unroll_steps + 1
    if length < num_states + n:
        raise ValueError(
            f"a window of {length} steps is too short for {num_unroll_steps} unrolled "
            f"steps and {n}-step returns, which take {num_states + n}"
        )
    is_terminal = discounts == 0
    values = torch.where(is_terminal, 0.0, values)
    inputs = rewards, values, step_types, discounts
    returns = value_ops.n_step_return(*inputs, n, time_major=False)

    def states(x: Tensor) -> Tensor:  # [B, T-...] → [B, R, K+1]
        return x[:, : length - n].unfold(1, num_states, 1)

    is_last = states(step_types == _LAST)
    follows_root = torch.arange(num_states, device=rewards.device) > 0
    is_terminal = states(is_terminal) & (is_last | follows_root)
    is_end = is_last | is_terminal
    is_beyond = _before(is_end)
    is_absorbed = _before(is_terminal & ~is_beyond)
    is_here = ~is_beyond

    def where(mask: Tensor, x: Tensor) -> Tensor:
        return torch.where(mask & is_here, states(x), 0.0)

    has_reward = is_here | is_absorbed
    has_value = is_absorbed | (is_here & (~is_last | is_terminal))
    return WindowTargets(
        value=where(has_value & ~is_terminal, returns),
        reward=where(has_reward, rewards),
        continues=(is_here & ~is_terminal).float(),
        has_value=has_value,
        has_policy=is_here & ~is_end,
        has_reward=has_reward,
        is_absorbed=is_absorbed,
    )


def steps_from(values: Nest, first: int, number: int, num_rows: int) -> Nest:
    """What follows each of the first R steps t of a window: t + first and so on.

    Args:
        values: [B, T, ...] in every leaf.
        first: of the steps, seen from t.
        number: of steps.
        num_rows: R.

    Returns:
        [B, R, number, ...] in every leaf.
    """

    def of(t: Tensor) -> Tensor:
        rows = t[:, first : first + num_rows + number - 1]
        return rows.unfold(1, number, 1).movedim(-1, 2)

    return nest.map_structure(of, values)


def _before(is_true: Tensor) -> Tensor:
    """Whether an earlier entry of the last dimension is true."""
    seen = is_true.cummax(-1).values
    return torch.cat([torch.zeros_like(seen[..., :1]), seen[..., :-1]], -1)
