"""The weight of a policy's entropy, learnt from how much entropy it should keep."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from alf_lite.config import configurable
from alf_lite.data_structures import Field
from alf_lite.distributions import functions as distributions
from alf_lite.distributions.action_vectors import BoxActions, Entropies
from alf_lite.distributions.continuous import ActionBounds
from alf_lite.distributions.mixed_actions import MixedActions
from alf_lite.distributions.one_hot import OneHotCategorical
from alf_lite.errors import ConfigError
from alf_lite.tensor_specs import (
    BoundedTensorSpec,
    TensorSpec,
    is_binary,
    num_categories,
)
from alf_lite.utils.checks import check_left_out, check_positive, extremes
from alf_lite.utils.schedulers import (
    Coefficient,
    Scheduled,
    Scheduler,
    set_coefficients,
)
from alf_lite.utils.tensor_utils import total

# A number, a function of the parts of the action, or a schedule.
TargetEntropy = Scheduled | Callable[[Any], float]


class BoxSamples(NamedTuple):
    """What is known of the numbers within bounds that a policy draws."""

    max_entropy: float = math.inf  # of all of them; only a uniform policy reaches it
    has_choices: bool = False  # some are a choice of one of them, OneHotCategorical


class Temperature(nn.Module):
    """α > 0, the price of entropy in units of reward.

    Args:
        initial_value: of α.
        target_entropy: H̄, a number or a schedule; α rises while the entropy is lower.
        is_learnt: False keeps α.
    """

    target_entropy = Coefficient()

    def __init__(
        self,
        initial_value: float,
        target_entropy: Scheduled,
        *,
        is_learnt: bool = True,
    ) -> None:
        super().__init__()
        check_positive(initial_alpha=initial_value)
        set_coefficients(self, target_entropy=target_entropy)
        self._log_alpha = nn.Parameter(
            torch.tensor(math.log(initial_value)), requires_grad=is_learnt
        )

    @property
    def alpha(self) -> Tensor:
        """[], without gradient."""
        return self._log_alpha.detach().exp()

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
        boxes: what the policy does in the continuous part.
        discrete_name: of ``discrete`` in messages.
        initial_value: see :class:`Temperature`.
        is_learnt: likewise.
        max_log_alpha: a limit of log α, see :meth:`limit`; None: there is none.

    Raises:
        ConfigError: naming a target that no policy reaches, that has no effect, or that
            is missing.
    """

    def __init__(
        self,
        actions: BoxActions | MixedActions,
        continuous: TargetEntropy | None = None,
        discrete: Scheduled | None = None,
        *,
        boxes: BoxSamples,
        discrete_name: str = "discrete_target_entropy",
        initial_value: float = 1.0,
        is_learnt: bool = True,
        max_log_alpha: float | None = None,
    ) -> None:
        given: dict[str, Any] = {"target_entropy": continuous, discrete_name: discrete}
        if not is_learnt:
            given["max_log_alpha"] = max_log_alpha
            check_left_out("learn_alpha = False keeps the temperatures", **given)
        if boxes.has_choices and continuous is None and is_learnt:
            raise ConfigError(
                "target_entropy of a one-hot choice is from 0 to log(n) of n elements, "
                "and the default that of a density. Set target_entropy, such as 0.3, "
                "or one_hot = False"
            )
        targets = _target_entropies(actions, continuous, discrete)
        if continuous is not None:
            check_reachable("target_entropy", targets["continuous"], boxes.max_entropy)
        if discrete is not None:
            largest = math.log(actions.num_joint_values)
            check_reachable(discrete_name, targets["discrete"], largest)
        super().__init__(
            {
                part: Temperature(initial_value, target, is_learnt=is_learnt)
                for part, target in targets.items()
            }
        )
        self._initial_value = initial_value
        self._max_log_alpha = max_log_alpha
        # The discrete target is that of how many values there are to choose from.
        self.follow_masks = discrete is None

    def reset(self) -> None:
        """Begins anew."""
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.fill_(math.log(self._initial_value))

    def limit(self) -> None:
        """After an update: moves each log α back to its limit, if there is one."""
        if self._max_log_alpha is None:  # as in most updates
            return
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.clamp_(max=self._max_log_alpha)

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


def largest_entropy(spec: TensorSpec, distribution: Distribution | None) -> float:
    """That of a uniform policy; ∞ where nothing keeps actions within bounds.

    Args:
        spec: of one part of an action.
        distribution: of this part; None if it is not known.
    """
    if isinstance(distribution, OneHotCategorical):
        return math.log(spec.numel)
    if is_binary(spec):
        return spec.numel * math.log(2)
    if not isinstance(spec, BoundedTensorSpec):
        return math.inf
    if spec.is_discrete:
        return float(np.log(num_categories(spec).astype(float)).sum())
    is_box = distribution is not None and not distributions.is_unbounded(distribution)
    return ActionBounds(spec).log_volume if is_box and spec.is_bounded else math.inf


def check_reachable(name: str, target_entropy: Any, largest: float) -> None:
    """Refuses what would let the temperature grow without end.

    Args:
        name: of the target in messages.
        target_entropy: H̄.
        largest: the entropy of a uniform policy, which no other has.

    Raises:
        ConfigError: if ``target_entropy`` is no number below it.
    """
    if not all(-math.inf < h < largest for h in extremes(target_entropy)):
        raise ConfigError(
            f"{name} must be a number below {largest:.4g}, the entropy of a uniform "
            f"policy, got {target_entropy}: no other policy has as much"
        )


def _target_entropies(
    actions: BoxActions | MixedActions,
    continuous: Any,  # TargetEntropy | None
    discrete: Scheduled | None,
) -> dict[str, Scheduled]:
    targets: dict[str, Scheduled] = {}
    part = "the action has no {} part"
    if not actions.vector_size:
        check_left_out(part.format("continuous"), target_entropy=continuous)
    if not actions.has_discrete:
        check_left_out(part.format("discrete"), discrete_target_entropy=discrete)
    if actions.vector_size:
        if continuous is None:
            continuous = actions.log_scale - actions.vector_size
        elif callable(continuous) and not isinstance(continuous, Scheduler):
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
