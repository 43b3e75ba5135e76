"""The weight of a policy's entropy, learnt from how much entropy it should keep."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from alf_lite.config import configurable
from alf_lite.data_structures import Field
from alf_lite.distributions.action_vectors import BoxActions, Entropies
from alf_lite.distributions.mixed_actions import MixedActions
from alf_lite.utils.tensor_utils import total

# A number, or a function of the parts of the action.
TargetEntropy = float | Callable[[Any], float]


class Temperature(nn.Module):
    """α > 0, the price of entropy in units of reward.

    Args:
        initial_value: of α.
        target_entropy: H̄; α rises while the entropy is lower.
        is_learnt: False keeps α.
        max_log_alpha: a limit of log α, see :meth:`limit`; None: there is none.
    """

    def __init__(
        self,
        initial_value: float,
        target_entropy: float,
        *,
        is_learnt: bool = True,
        max_log_alpha: float | None = None,
    ) -> None:
        super().__init__()
        self._max_log_alpha = max_log_alpha
        if not initial_value > 0:
            raise ValueError(f"initial_alpha must be positive, got {initial_value}")
        self.target_entropy = target_entropy
        self._log_alpha = nn.Parameter(
            torch.tensor(math.log(initial_value)), requires_grad=is_learnt
        )

    @property
    def alpha(self) -> Tensor:
        """[], without gradient."""
        return self._log_alpha.detach().exp()

    @torch.no_grad()
    def limit(self) -> None:
        """After an update, moves log α back to its limit."""
        self._log_alpha.clamp_(max=self._max_log_alpha)

    def forward(self, entropy: Tensor, target_entropy: Tensor | None = None) -> Tensor:
        """The loss of α alone, log α · (H − H̄): [...] → [...].

        Haarnoja et al. 2018 (arXiv:1812.05905), eq. 18, with log α in place of α: its
        steps are as long when α is small.

        Args:
            entropy: [...], H.
            target_entropy: [...], of every state; None: the same H̄ for all.
        """
        target = self.target_entropy if target_entropy is None else target_entropy
        return self._log_alpha * (entropy.detach() - target)


class Temperatures(nn.ModuleDict):
    """One for each part of the action that there is.

    Args:
        actions: the parts.
        continuous: H̄ of the continuous part; None for the default of SacAlgorithm, or
            a function of ``actions`` such as :func:`concentrated_entropy`.
        discrete: as above.
        initial_value: see :class:`Temperature`.
        is_learnt: likewise.
        max_log_alpha: likewise.
    """

    def __init__(
        self,
        actions: BoxActions | MixedActions,
        continuous: TargetEntropy | None = None,
        discrete: float | None = None,
        *,
        initial_value: float = 1.0,
        is_learnt: bool = True,
        max_log_alpha: float | None = None,
    ) -> None:
        targets = _target_entropies(actions, continuous, discrete)
        super().__init__(
            {
                part: Temperature(
                    *(initial_value, target),
                    is_learnt=is_learnt,
                    max_log_alpha=max_log_alpha,
                )
                for part, target in targets.items()
            }
        )
        self._has_limit = max_log_alpha is not None

    def reset(self, initial_value: float) -> None:
        """Begins anew."""
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.fill_(math.log(initial_value))

    def limit(self) -> None:
        """After an update: keeps all within their limit, if there is one."""
        if self._has_limit:
            temperatures: Any = self.values()
            for temperature in temperatures:
                temperature.limit()

    @property
    def alpha(self) -> Entropies:
        """[] each, without gradient."""
        return Entropies(**{part: t.alpha for part, t in self.items()})

    def bonus(self, entropies: Entropies) -> Tensor:
        """Σ α H over the parts of the action."""
        return total(t.alpha * getattr(entropies, part) for part, t in self.items())

    def forward(self, entropies: Entropies, num_allowed: Field = ()) -> Tensor:
        """The sum of the losses of the temperatures alone.

        Args:
            entropies: [...] each.
            num_allowed: [...], how many joint values a mask leaves; (): the discrete
                target is the same for all states.
        """
        targets = {}
        if isinstance(num_allowed, Tensor):
            targets["discrete"] = entropies_of_mostly_one_value(num_allowed)
        return total(
            t(getattr(entropies, part), targets.get(part)) for part, t in self.items()
        )


def _target_entropies(
    actions: BoxActions | MixedActions,
    continuous: TargetEntropy | None,
    discrete: float | None,
) -> dict[str, float]:
    targets = {}
    if actions.vector_size:
        if continuous is None:
            continuous = actions.log_scale - actions.vector_size
        elif callable(continuous):
            continuous = continuous(actions)
        targets["continuous"] = continuous
    if actions.has_discrete:
        if discrete is None:
            discrete = entropy_of_mostly_one_value(actions.num_joint_values)
        targets["discrete"] = discrete
    return targets


@configurable
def concentrated_entropy(
    actions: BoxActions | MixedActions, *, share: float = 0.1
) -> float:
    """H̄ of a policy that spreads evenly over this share of the range of each element.

    It is ALF's default, −1.6 for an element in [-1, 1]: less random than −1.

    Args:
        actions: the parts.
        share: in (0, 1].
    """
    if not 0 < share <= 1:
        raise ValueError(f"concentrated_entropy: share must lie in (0, 1], got {share}")
    return actions.log_scale + actions.vector_size * math.log(2 * share)


def entropy_of_mostly_one_value(num_values: int, share: float = 0.9) -> float:
    """The entropy if one value has this share and the others the rest alike."""
    if num_values < 2:
        return 0.0
    rest = 1 - share
    return -share * math.log(share) - rest * math.log(rest / (num_values - 1))


def entropies_of_mostly_one_value(num_values: Tensor, share: float = 0.9) -> Tensor:
    """As above, for every number of values: [...] → [...]."""
    others = (num_values - 1).clamp(min=1)
    rest = 1 - share
    entropies = others.log() * rest + entropy_of_mostly_one_value(2, share)
    return torch.where(num_values > 1, entropies, 0.0)
