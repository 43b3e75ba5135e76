"""What conservative Q-learning adds to the loss of a critic, and its weight.

Kumar et al. 2020 (arXiv:2006.04779) make small log Σ_a exp Q(s, a), a maximum that is
smooth: it is at least the largest value, and its gradient goes to every action in
proportion to exp Q.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from alf_lite.distributions.torch_distributions import mask_logits
from alf_lite.optimizers.optimizers import Optimizer
from alf_lite.utils.checks import check_left_out, extremes
from alf_lite.utils.schedulers import (
    Coefficient,
    Scheduled,
    scheduled,
    set_coefficients,
)

# As far as a threshold that cannot be reached may drive it.
_MAX_ALPHA = 1e6


class ConservativeWeight(nn.Module):
    """α ≥ 0, by which the gap between the values of all and of stored actions counts.

    Args:
        initial_value: of α; without a threshold, it may be a schedule.
        threshold: τ; α rises while the gap is larger and falls while it is smaller, so
            that it is as large as the constraint "gap ≤ τ" needs it. None keeps α.
        optimizer: of α, which only one that is learnt has.

    Raises:
        ConfigError: for an optimizer of what is kept.
        ValueError: if the value or the threshold is out of range.
    """

    _alpha: Tensor
    _kept = Coefficient()

    def __init__(
        self,
        initial_value: Scheduled,
        threshold: float | None = None,
        optimizer: Optimizer | None = None,
    ) -> None:
        super().__init__()
        self._threshold = threshold
        if threshold is None:
            reason = "without a cql_threshold, cql_alpha is kept"
            check_left_out(reason, cql_alpha_optimizer=optimizer)
            if not all(0 <= alpha < math.inf for alpha in extremes(initial_value)):
                raise ValueError(
                    f"cql_alpha must be finite and not negative, got {initial_value}"
                )
            # What a conf says now holds, not what a checkpoint was trained with.
            set_coefficients(self, _kept=initial_value)
            alpha = torch.tensor(extremes(initial_value)[0], dtype=torch.float32)
            self.register_buffer("_alpha", alpha, persistent=False)
            return
        if (
            not isinstance(initial_value, int | float)
            or not 0 < initial_value < math.inf
            or not math.isfinite(threshold)
        ):
            raise ValueError(
                "with a cql_threshold, which must be finite, cql_alpha must be finite "
                f"and positive; got {threshold} and {initial_value}"
            )
        self._log_alpha = nn.Parameter(torch.tensor(math.log(initial_value)))

    @property
    def alpha(self) -> Tensor:
        """[], without gradient."""
        if self._threshold is None:
            if scheduled(self):
                alpha = torch.as_tensor(self._kept, device=self._alpha.device)
                return alpha.to(self._alpha.dtype)
            return self._alpha
        return self._log_alpha.detach().exp().clamp(max=_MAX_ALPHA)

    def forward(self, gap: Tensor) -> Tensor:
        """The loss of α alone, −log α · (gap − τ): [...] → [...].

        With log α in place of α in Kumar et al. 2020 (arXiv:2006.04779), eq. 30: its
        steps are as long when α is small. 0 if α is kept.
        """
        if self._threshold is None:
            return torch.zeros_like(gap)
        return -self._log_alpha * (gap.detach() - self._threshold)


def scaled_logsumexp(
    values: Tensor, temperature: float = 1.0, allowed: Tensor | None = None
) -> Tensor:
    """T log Σ_a exp(v_a / T).

    Args:
        values: [..., A].
        temperature: T > 0; the smaller, the closer to the maximum.
        allowed: bool that broadcasts to ``values``; the others are left out. None: all.

    Returns:
        [...].
    """
    logits = values / temperature
    if allowed is not None:
        logits = mask_logits(logits, allowed)
    return temperature * logits.logsumexp(-1)


def sampled_logsumexp(
    values: Tensor,
    log_densities: Tensor,
    temperature: float = 1.0,
    allowed: Tensor | None = None,
) -> Tensor:
    """T log Σ_a ∫ exp(v(u, a) / T) du, estimated from samples of u.

    The integral over u is the mean over the S samples of exp(v / T) / p, where p is the
    density that the sample was drawn with. Samples of several distributions may be
    mixed: the estimate of each is unbiased. But a narrow distribution seldom goes where
    most of the integral is, and what it gives then is too low nearly always: never use
    one without another that goes everywhere, such as the uniform one.

    Args:
        values: [S, B, n, A], A values for every sample of each of n critics.
        log_densities: [S, B], log p.
        temperature: T > 0.
        allowed: [B, A] bool; None: all values.

    Returns:
        [B, n].
    """
    logits = values / temperature - log_densities[..., None, None]
    if allowed is not None:
        logits = mask_logits(logits, allowed.unsqueeze(1))
    log_sum = logits.movedim(0, -2).flatten(-2).logsumexp(-1)
    return temperature * (log_sum - math.log(values.shape[0]))
