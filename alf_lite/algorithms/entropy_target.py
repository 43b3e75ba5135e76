"""How much entropy a policy keeps: the weight of the entropy follows a target.

Parts of an :class:`Agent` that give the loss −Σ_i α_i H(π_i(·|s)), one α for each part
i of the action, and move every α so that the mean entropy comes to its target H̄_i:

* :class:`EntropyTarget` by rules, as ALF does: α stays as it is until the entropy has
  fallen to the target, and is then raised and lowered in steps that get shorter.
* :class:`SGDEntropyTarget` by gradient, as soft actor-critic: Haarnoja et al. 2018
  (arXiv:1812.05905), eq. 18.

They serve every algorithm whose ``train_step`` returns the policy as
``action_distribution``: A2C, PPO, PPG, IMPALA. The ``entropy_regularization`` of these
is added to it; usually it is 0 then.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from alf_lite import nest
from alf_lite.algorithms.algorithm import Algorithm, valid_steps
from alf_lite.algorithms.parts.temperature import (
    check_reachable,
    entropy_of_mostly_one_value,
    largest_entropy,
)
from alf_lite.config import configurable
from alf_lite.data_structures import AlgStep, LossInfo, TimeStep
from alf_lite.distributions import functions as distributions
from alf_lite.distributions.continuous import ActionBounds
from alf_lite.errors import ConfigError
from alf_lite.nest import leaf_name
from alf_lite.optimizers.optimizers import Adam, Optimizer
from alf_lite.tensor_specs import (
    BoundedTensorSpec,
    NestedTensorSpec,
    TensorSpec,
    is_binary,
    num_categories,
)
from alf_lite.utils import losses
from alf_lite.utils.checks import check_positive, check_unused, extremes
from alf_lite.utils.diagnostics import diagnostic
from alf_lite.utils.schedulers import (
    Scheduled,
    Scheduler,
    as_scheduler,
    set_coefficients,
)

Nest = Any


class EntropyInfo(NamedTuple):
    """From ``train_step`` to ``calc_loss``."""

    entropy: Tensor  # [T, B, N] of every part of the action, with gradient
    valid: Tensor  # [T, B] bool, steps with a transition


class EntropyLossInfo(NamedTuple):
    """What the loss tells, by the parts of the action."""

    entropy: dict[str, Tensor]  # [T, B]
    alpha: dict[str, Tensor]  # []


class _EntropyWeights(Algorithm):
    """What both have in common: targets and loss. N is the number of parts."""

    _target: Tensor  # [N]

    def __init__(
        self,
        action_spec: NestedTensorSpec,
        target_entropy: Nest,
        initial_alpha: float,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_positive(initial_alpha=initial_alpha)
        targets = _targets(self.name, action_spec, target_entropy)
        paths = [path for path, _ in nest.flatten_with_path(action_spec)]
        self._specs = nest.flatten(action_spec)
        self._names = [leaf_name("action", path) for path in paths]
        # Of numbers within bounds, the policy tells what it can reach.
        self._is_checked = target_entropy is None
        self._targets = targets
        if target_entropy is not None:
            self._check_targets(targets, [None] * len(targets))
            self._is_checked = all(spec.is_discrete for spec in self._specs)
        starts = [extremes(target)[0] for target in targets]
        self.register_buffer("_target", torch.tensor(starts), persistent=False)
        self._schedules: list[Any] = []  # of all parts, if one of them changes
        if not all(isinstance(target, float) for target in targets):
            self._schedules = [as_scheduler(target) for target in targets]

    @property
    def alpha(self) -> Tensor:
        """[N], without gradient."""
        raise NotImplementedError

    @property
    def target(self) -> Tensor:
        """[N], H̄ now."""
        if not self._schedules:
            return self._target
        values = [torch.as_tensor(schedule()) for schedule in self._schedules]
        return torch.stack(values).to(self._target)

    def train_step(self, inputs: TimeStep, state: Nest, rollout_info: Nest) -> AlgStep:
        """Takes the entropies [..., N] from the info of the RL algorithm."""
        parts = distributions.parts(rollout_info.action_distribution)
        if not self._is_checked and not torch.compiler.is_compiling():
            self._check_targets(self._targets, parts)
            self._is_checked = True
        entropies = [distributions.entropy(part) for part in parts]
        entropy = torch.stack(entropies, dim=-1)
        return AlgStep(info=EntropyInfo(entropy, valid_steps(inputs.step_type)))

    def calc_loss(self, info: EntropyInfo) -> LossInfo:
        """−Σ_i α_i H_i, [T, B]."""
        alpha = self.alpha
        loss = -(info.entropy * alpha).sum(-1)
        extra = diagnostic(
            lambda: EntropyLossInfo(self._by_part(info.entropy), self._by_part(alpha))
        )
        return LossInfo(loss=loss, extra=extra)

    def _check_targets(
        self, targets: Sequence[Scheduled], parts: Sequence[Distribution | None]
    ) -> None:
        rows = zip(self._names, targets, self._specs, parts, strict=True)
        for name, target, spec, part in rows:
            what = f"{self.name}: target_entropy of {name}"
            check_reachable(what, target, largest_entropy(spec, part))

    def _by_part(self, values: Tensor) -> dict[str, Tensor]:
        """[..., N] → [...] each."""
        return dict(zip(self._names, values.unbind(-1), strict=True))


@configurable
class SGDEntropyTarget(_EntropyWeights):
    """Learns log α by gradient: α rises while the entropy is below its target."""

    def __init__(
        self,
        action_spec: NestedTensorSpec,
        *,
        target_entropy: Nest = None,
        initial_alpha: float = 0.1,
        optimizer: Optimizer | None = None,
        name: str | None = None,
    ) -> None:
        """Begins with the same α for all parts of the action.

        Args:
            action_spec: of one action.
            target_entropy: H̄ of every part, a number, a schedule (``LinearScheduler``),
                or a nest of them like the action; None: of a discrete one as much as if
                one of its values had 90 %, of a continuous one −1 for each element of a
                box [-1, 1]. It is smaller than the entropy of a uniform policy; one
                that leaves the bounds has no limit.
            initial_alpha: α at the start.
            optimizer: of log α; Adam with a learning rate of 0.01 by default.
            name: in summaries and messages.

        Raises:
            ConfigError: naming a part that has no default, or if the targets do not fit
                the action.
        """
        super().__init__(
            action_spec,
            target_entropy,
            initial_alpha,
            optimizer=optimizer or Adam(lr=0.01),
            name=name,
        )
        self._log_alpha = nn.Parameter(
            torch.full_like(self._target, math.log(initial_alpha))
        )
        for target in self._targets:  # in the loss, as coefficients are
            if not isinstance(target, float):
                set_coefficients(self, target_entropy=target)

    @property
    def alpha(self) -> Tensor:
        return self._log_alpha.detach().exp()

    def calc_loss(self, info: EntropyInfo) -> LossInfo:
        """−Σ_i α_i H_i + Σ_i log α_i (H_i − H̄_i), the latter for α alone, [T, B]."""
        loss_info = super().calc_loss(info)
        excess = info.entropy.detach() - self.target
        return loss_info._replace(
            loss=loss_info.loss + (self._log_alpha * excess).sum(-1)
        )


@configurable
class EntropyTarget(_EntropyWeights):
    """Moves α by rules, in three stages, each part of the action for itself.

    With H the mean entropy of the last two updates:

    1. Only with ``max_entropy``: while H is above it, log α falls slowly.
    2. α stays as it is until H is below its target.
    3. log α rises by the rate if H falls, and falls by it if H rises; by half of it
       where H goes towards the target. A crossing of the target makes the rate a tenth
       smaller, down to ``slow_rate``; if H is much too low, it is ``fast_rate`` again.
    """

    _log_alpha: Tensor  # [N]; these are checkpointed
    _rate: Tensor  # [N]
    _stage: Tensor  # [N] int64, as above
    _history: Tensor  # [3, N], means of the last updates, NaN before there was one

    def __init__(
        self,
        action_spec: NestedTensorSpec,
        *,
        target_entropy: Nest = None,
        max_entropy: float | None = None,
        initial_alpha: float = 0.1,
        min_alpha: float = 1e-4,
        fast_rate: float = 0.7,
        slow_rate: float = 0.01,
        first_rate: float = 0.001,
        name: str | None = None,
    ) -> None:
        """Begins with the same α for all parts of the action.

        Args:
            action_spec: of one action.
            target_entropy: see :class:`SGDEntropyTarget`.
            max_entropy: of every part, where the first stage ends; None: there is none.
            initial_alpha: α at the start.
            min_alpha: α never falls below it.
            fast_rate: change of log α per update at first, and far below the target.
            slow_rate: the same in the end.
            first_rate: the same in the first stage, with ``max_entropy``.
            name: in summaries and messages.

        Raises:
            ConfigError: naming a part that has no default, or if the targets do not fit
                the action, or numbers each other.
        """
        super().__init__(action_spec, target_entropy, initial_alpha, name=name)
        check_positive(
            min_alpha=min_alpha,
            fast_rate=fast_rate,
            slow_rate=slow_rate,
            first_rate=first_rate,
        )
        if max_entropy is None:
            reason = "there is no first stage without max_entropy"
            check_unused(type(self), reason, first_rate=first_rate)
        if min_alpha > initial_alpha or slow_rate > fast_rate:
            raise ConfigError(
                f"{self.name}: expected min_alpha <= initial_alpha and slow_rate <= "
                f"fast_rate, got {min_alpha}, {initial_alpha}, {slow_rate} and "
                f"{fast_rate}"
            )
        self._max_entropy = max_entropy
        self._min_log_alpha = math.log(min_alpha)
        self._fast_rate = fast_rate
        self._slow_rate = slow_rate
        self._first_rate = first_rate
        like = self._target
        stage = torch.full_like(like, 2 if max_entropy is None else 1)
        self.register_buffer(
            "_log_alpha", torch.full_like(like, math.log(initial_alpha))
        )
        self.register_buffer("_rate", torch.full_like(like, fast_rate))
        self.register_buffer("_stage", stage.long())
        self.register_buffer("_history", torch.full((3, len(like)), math.nan))

    @property
    def alpha(self) -> Tensor:
        return self._log_alpha.exp()

    @torch.no_grad()
    def after_update(self, root_inputs: TimeStep, info: EntropyInfo) -> None:
        """Takes in the entropies of an update, and moves every α."""
        mean = torch.stack(
            [losses.batch_mean(h, info.valid) for h in info.entropy.unbind(-1)]
        )
        self.adjust(mean)

    @torch.no_grad()
    def adjust(self, entropy: Tensor) -> None:
        """Moves α after an update with these mean entropies, [N]."""
        self._history.copy_(torch.cat([self._history[1:], entropy[None]]))
        before, now = self._history[:-1].nanmean(0), self._history[1:].nanmean(0)
        target, half = self.target, 0.5
        if self._max_entropy is not None:
            self._stage += ((self._stage == 1) & (now <= self._max_entropy)).long()
        is_below = now < target
        self._stage += ((self._stage == 2) & is_below).long()
        # Rates: shorter with every crossing, long again far below.
        crosses = is_below != (before < target)
        shorter = (0.9 * self._rate).clamp(min=self._slow_rate)
        rate = torch.where(crosses, shorter, self._rate)
        far_below = now < torch.where(target > 0, 0.5 * target, 2.0 * target)
        rate = torch.where(far_below, self._fast_rate, rate)
        rises, falls = now > before, now < before
        up = torch.where(is_below, 1.0, half) * falls
        down = torch.where(is_below, half, 1.0) * rises
        step = torch.where(self._stage == 3, (up - down) * rate, 0.0)
        step = torch.where(self._stage == 1, -self._first_rate, step)
        self._rate.copy_(torch.where(self._stage == 3, rate, self._rate))
        self._log_alpha.add_(step).clamp_(min=self._min_log_alpha)


def default_target_entropy(path: str, spec: Any) -> float:
    """The target of one part of an action that gives none.

    Raises:
        ConfigError: naming it, if it is unbounded or no action.
    """
    if not isinstance(spec, TensorSpec):
        raise ConfigError(f"{path}: expected a TensorSpec, got {type(spec).__name__}")
    if spec.is_discrete:
        if spec.dtype == torch.bool or is_binary(spec):
            return spec.numel * entropy_of_mostly_one_value(2)
        if isinstance(spec, BoundedTensorSpec):
            numbers = num_categories(spec).tolist()
            return sum(entropy_of_mostly_one_value(int(n)) for n in numbers)
    elif isinstance(spec, BoundedTensorSpec) and spec.is_bounded:
        volume = ActionBounds(spec).log_volume
        return volume - spec.numel * (1 + math.log(2))
    raise ConfigError(
        f"{path} is unbounded: there is no default of its entropy. Give target_entropy."
    )


def _targets(
    name: str, action_spec: NestedTensorSpec, target_entropy: Nest
) -> Sequence[Scheduled]:
    """H̄ of every part of the action."""
    parts = nest.flatten_with_path(action_spec)
    if target_entropy is None:
        return [
            default_target_entropy(f"{name}: {leaf_name('action', path)}", spec)
            for path, spec in parts
        ]
    if isinstance(target_entropy, int | float | Scheduler):
        targets = [target_entropy] * len(parts)
    else:
        try:
            nest.assert_same_structure(action_spec, target_entropy)
        except ValueError as error:
            raise ConfigError(
                f"{name}: target_entropy must be a number, a scheduler (points of one "
                "as LinearScheduler(points)), or a nest of these like the action: "
                f"{error}"
            ) from error
        targets = nest.flatten(target_entropy)
    numbers = [h for h in targets if not isinstance(h, Scheduler)]
    if not all(isinstance(h, int | float) and math.isfinite(h) for h in numbers):
        raise ConfigError(
            f"{name}: target_entropy must be numbers or schedulers, got {targets}"
        )
    return [h if isinstance(h, Scheduler) else float(h) for h in targets]
