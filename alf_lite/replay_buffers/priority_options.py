"""How priorities become probabilities, and what corrects the loss for them."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Callable
from typing import Literal, TypeVar

import numpy as np
from torch import Tensor

from alf_lite.config import configurable
from alf_lite.replay_buffers.window_sampler import SamplingOptions
from alf_lite.utils.checks import check_choice, check_not_negative, check_positive
from alf_lite.utils.progress import FollowsProgress
from alf_lite.utils.ranks import ranks
from alf_lite.utils.schedulers import Scheduler, as_scheduler, extreme_values

Schedule = float | Callable[[], float]
Normalization = Literal["batch", "buffer", "none"]
_Array = TypeVar("_Array", np.ndarray, Tensor)
_Number = float | Tensor


# As unsigned numbers, the bits of all that is finite and not negative are below these.
_BITS_OF_INFINITY = np.array(np.inf).view(np.uint64)


@configurable
@dataclasses.dataclass(frozen=True, kw_only=True)
class PriorityOptions(FollowsProgress):
    """How priorities become probabilities, and how the loss is corrected for them.

    Proportional prioritised replay, Schaul et al. 2016 (arXiv:1511.05952).

    With priority p_i, weight w_i = (p_i + eps)^alpha and n steps that can be drawn:

        P(i) = w_i / Σ_j w_j          importance weight_i = (n · P(i))^−beta / scale

    Args:
        alpha: 0 draws uniformly, 1 in proportion to the priorities.
        beta: 0 corrects nothing, 1 removes the bias. A number or a schedule.
        eps: lets steps of priority 0 be drawn again.
        initial_priority: of a step that was never trained on. None means the largest
            one that can be drawn when the step comes, and at least 1.
        normalization: the scale. "batch": the largest importance weight in the batch,
            as in the paper; "buffer": the largest one of any step, so that the same
            step has the same weight in every batch, but one step of a tiny priority
            makes all weights tiny; "none": 1.
        on_device: keep the priorities on the device of the replay buffer and draw
            there, so that the host never waits for it. None: where that is a GPU and
            nothing is dropped by max_use or max_staleness.
    """

    alpha: Schedule = 0.6
    beta: Schedule = 0.4
    eps: float = 1e-6
    initial_priority: float | None = None
    normalization: Normalization = "batch"
    on_device: bool | None = None

    def __post_init__(self) -> None:
        check_choice(Normalization, normalization=self.normalization)
        check_not_negative(eps=self.eps)
        check_positive(initial_priority=self.initial_priority)
        for name in ("alpha", "beta"):
            value = getattr(self, name)
            try:
                schedule = as_scheduler(value)
            except (TypeError, ValueError) as error:
                raise ValueError(f"{name}: {error}") from error
            if not isinstance(value, numbers.Real):
                object.__setattr__(self, name, schedule)  # it is frozen
            # A function that is no scheduler is asked when its value is wanted.
            tells = isinstance(value, Scheduler) or not callable(value)
            if tells and not all(extreme >= 0 for extreme in extreme_values(schedule)):
                raise ValueError(f"{name} must not be negative, got {value}")

    def weights(self, priorities: np.ndarray) -> np.ndarray:
        """w_i = (p_i + eps)^alpha.

        Raises:
            ValueError: if a priority is negative, infinite or NaN; says which.
        """
        if np.count_nonzero(priorities.view(np.uint64) >= _BITS_OF_INFINITY):
            # Or else it is -0.0.
            wrong = np.flatnonzero(~((priorities >= 0) & (priorities < np.inf)))
            if len(wrong):
                raise ValueError(
                    f"priorities must be finite and not negative: {len(wrong)} of "
                    f"{len(priorities)} are not, such as {priorities[wrong[0]]} at "
                    f"index {wrong[0]}. Use |δ|, and look for a loss that diverges."
                )
        return self.powers(priorities)

    def powers(self, priorities: _Array) -> _Array:
        """As :meth:`weights`, of priorities that nobody has looked at."""
        return (priorities + self.eps) ** _now(self.alpha)

    def initial_weight(self) -> float | None:
        """That of ``initial_priority``."""
        if self.initial_priority is None:
            return None
        return (self.initial_priority + self.eps) ** _now(self.alpha)

    def importance_weights(
        self, weights: _Array, mean_weight: _Number, least_weight: _Number
    ) -> _Array:
        """(n · P(i))^−beta, normalised; [B] float32.

        With several ranks, each draws an equal share of a batch from steps of its own,
        so that w_i counts relative to the mean of these; the scale is that of all.

        Args:
            weights: [B], w_i of the steps drawn.
            mean_weight: Σ_j w_j / n of all that could be drawn.
            least_weight: the smallest w_j of all of them, for "buffer". All three are
                on the host, or all are tensors on a device, which is not waited for.
        """
        scale: _Number
        if ranks.size > 1:
            weights, least_weight = weights / mean_weight, least_weight / mean_weight
            mean_weight = 1.0
        if self.normalization == "none":
            scale = mean_weight
        elif self.normalization == "batch":
            is_array = isinstance(weights, np.ndarray)
            scale = np.minimum.reduce(weights) if is_array else weights.min()
        else:
            # The largest importance weight is that of the least weight.
            scale = least_weight
        if ranks.size > 1 and self.normalization != "none":
            scale = ranks.least(scale)
        corrections = (weights / scale) ** -_now(self.beta)
        if isinstance(corrections, Tensor):
            return corrections.float()
        return corrections.astype(np.float32)


def check_options(options: SamplingOptions, priority: PriorityOptions | None) -> None:
    """Raises ValueError if the options contradict each other."""
    if priority is not None and not options.with_replacement:
        raise ValueError(
            "prioritized sampling needs SamplingOptions.with_replacement=True"
        )
    if priority is not None and priority.on_device and options.has_limits:
        raise ValueError(
            "PriorityOptions.on_device=True cannot be combined with "
            "SamplingOptions.max_use or max_staleness, which the host keeps account "
            "of: leave one of them out"
        )


def _now(value: Schedule) -> float:
    return value() if callable(value) else value
