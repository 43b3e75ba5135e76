"""Returns of several rewards, each with its own γ and its own end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from alf_lite.data_structures import StepType
from alf_lite.utils import value_ops
from alf_lite.utils.checks import check_unit_interval
from alf_lite.utils.progress import FollowsProgress
from alf_lite.utils.recurrences import reverse_linear_scan
from alf_lite.utils.schedulers import (
    Coefficient,
    Scheduled,
    as_scheduler,
    set_coefficients,
)


class ReturnStream(NamedTuple):
    """How one dimension of a reward is summed."""

    gamma: Scheduled | None = None  # None: that of the algorithm
    is_continuing: bool = False  # whether it is summed on when an episode has ended


class ReturnStreams(FollowsProgress):
    """Advantages of a reward of D dimensions, one :class:`ReturnStream` for each.

    What continues knows no end, terminal or not: a LAST step leads to the FIRST step of
    the next episode as every other step leads to the one after it, with γ and, at
    FIRST, a reward of 0. The value of a LAST step is never learned, so it is what
    follows from that of the next one,

        V(s_t) = γ V(s_{t+1}) where step t is LAST,

    and only at the end of a sequence what the network says. With an agent that waits
    for others, several of them follow each other.

    Args:
        streams: D of them.
        gamma: of those that have none of their own, a number or a schedule.

    Raises:
        ValueError: if a γ is not in [0, 1].
    """

    _gamma = Coefficient()

    def __init__(self, streams: Sequence[ReturnStream], gamma: Scheduled) -> None:
        set_coefficients(self, _gamma=gamma)
        for d, (own, _) in enumerate(streams):
            checked = gamma if own is None else own
            check_unit_interval(**{f"gamma of reward {d}": checked})
        self._streams = [
            (None if own is None else as_scheduler(own), is_continuing)
            for own, is_continuing in streams
        ]

    def advantages(
        self,
        rewards: Tensor,
        values: Tensor,
        step_types: Tensor,
        discounts: Tensor,
        td_lambda: float,
        time_major: bool = True,
    ) -> Tensor:
        """Generalized advantage estimates of the first T-1 steps.

        Args:
            rewards: [T, B, D]; [B, T, D] if not ``time_major``, as for the others.
            values: [T, B, D], V(s_t).
            step_types: [T, B].
            discounts: [T, B], of the environment, without γ.
            td_lambda: λ.
            time_major: see above.

        Returns:
            [T-1, B, D], without gradient. Those of LAST steps do not count.
        """
        advantages = []
        for d, (own, is_continuing) in enumerate(self._streams):
            gamma = self._gamma if own is None else own()
            value, step_type, discount = values[..., d], step_types, discounts
            if is_continuing:
                is_last = step_type == int(StepType.LAST)
                if not time_major:
                    value, is_last = value.mT, is_last.mT
                is_last[-1] = False
                known = torch.where(is_last, 0.0, value)
                value = reverse_linear_scan(known, gamma * is_last)
                value = value if time_major else value.mT
                step_type = torch.full_like(step_type, int(StepType.MID))
                discount = torch.ones_like(discount)
            advantages.append(
                value_ops.generalized_advantage_estimation(
                    rewards[..., d],
                    value,
                    step_type,
                    gamma * discount,
                    td_lambda,
                    time_major,
                )
            )
        return torch.stack(advantages, dim=-1)
