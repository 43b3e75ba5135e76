"""Transformers that scale observations and rewards by running statistics."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.config import configurable
from alf_lite.data_structures import TimeStep
from alf_lite.data_transformers.data_transformer import (
    SingleStepTransformer,
    replace_specs,
    select_leaves,
)
from alf_lite.errors import ConfigError, EnvError
from alf_lite.tensor_specs import BoundedTensorSpec, NestedTensorSpec, TensorSpec
from alf_lite.utils.checks import check_choice
from alf_lite.utils.devices import moved_tensor
from alf_lite.utils.normalizers import Normalizer, NormalizerMode, NotFiniteError
from alf_lite.utils.ranks import SharedStatistics, ranks
from alf_lite.utils.recurrences import linear_scan, reverse_linear_scan
from alf_lite.utils.unroll_arrays import UnrollReader

Nest = Any
UpdateMode = Literal["rollout", "never"]


class StatisticsTransformer(SingleStepTransformer):
    """Scales by statistics of the training environments and clips the result.

    A subclass makes the ``normalizer`` in its constructor.

    Args:
        observation_spec: of one raw observation.
        reward_spec: of one raw reward.
        clipping: bounds the results to [-clipping, clipping]; None for no bounds.
        mode: how much the past counts, see :class:`Normalizer`.
        speed: of the mode ``"adaptive"``.
        update_rate: of the mode ``"moving"``.
        update_mode: when the statistics change: ``"rollout"``, after every unroll, or
            ``"never"``, to keep those of a checkpoint.

    Raises:
        ValueError: if ``clipping`` or ``update_mode`` is out of range.
    """

    keeps_entries_apart = True
    normalizer: Normalizer

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        reward_spec: TensorSpec = TensorSpec(()),
        *,
        clipping: float | None = 10.0,
        mode: NormalizerMode = "running",
        speed: float = 8.0,
        update_rate: float = 1e-4,
        update_mode: UpdateMode = "rollout",
    ) -> None:
        super().__init__(observation_spec, reward_spec)
        if clipping is not None and not clipping > 0:
            raise ConfigError(f"clipping must be above 0 or None, got {clipping}")
        check_choice(UpdateMode, update_mode=update_mode)
        self.has_statistics = update_mode != "never"
        self._clipping = clipping
        self._options: dict[str, Any] = {
            "mode": mode,
            "speed": speed,
            "update_rate": update_rate,
        }

    def observe(self, time_steps: TimeStep) -> None:
        if not self.has_statistics:
            return
        try:
            self.update_statistics(time_steps)
        except NotFiniteError as error:
            raise EnvError(
                f"{type(self).__name__} got a number that is not finite from the "
                f"training environments. {error}, which counts steps of the unroll "
                "first and then environments. Find out why, or clip it there."
            ) from error

    @abstractmethod
    def update_statistics(self, time_steps: TimeStep) -> None:
        """Updates the normalizer.

        Args:
            time_steps: raw [T, B, ...].

        Raises:
            NotFiniteError: if there is a NaN or an infinity; nothing has changed then.
        """


@configurable
class ObservationNormalizer(StatisticsTransformer):
    """Brings every element of the observation to mean 0 and standard deviation 1.

    The statistics are those of all observations of the training environments before the
    current unroll. During the first unroll the observation is only clipped.

    Args:
        observation_spec: of one raw observation.
        reward_spec: of one raw reward.
        fields: names of the parts to normalize, such as ``["arm.joints", "speed"]``;
            None for all floating-point parts.
        zero_mean: whether to subtract the mean.
        **kwargs: see :class:`StatisticsTransformer`.

    Raises:
        ValueError: if a field does not exist or is not floating point, or an argument
            is out of range.
    """

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        reward_spec: TensorSpec = TensorSpec(()),
        *,
        fields: Sequence[str] | None = None,
        zero_mean: bool = True,
        **kwargs: Any,
    ) -> None:
        positions = select_leaves(
            observation_spec, fields, lambda spec: spec.is_continuous, "floating point"
        )
        all_specs = nest.flatten(observation_spec)
        specs = {name: all_specs[i] for name, i in positions.items()}
        super().__init__(observation_spec, reward_spec, **kwargs)
        self.transformed_observation_spec = replace_specs(
            observation_spec,
            positions.values(),
            lambda spec: _transformed_spec(spec, self._clipping),
        )
        self.normalizer = Normalizer(specs, zero_mean=zero_mean, **self._options)
        self._positions = positions

    def transform(self, time_step: TimeStep) -> TimeStep:
        observation = time_step.observation
        leaves = nest.flatten(observation)
        normalized = self.normalizer.normalize_leaves(
            [leaves[i] for i in self._positions.values()], self._clipping
        )
        for i, leaf in zip(self._positions.values(), normalized, strict=True):
            leaves[i] = leaf
        return time_step._replace(
            observation=nest.pack_sequence_as(observation, leaves)
        )

    def update_statistics(self, time_steps: TimeStep) -> None:
        leaves = nest.flatten(time_steps.observation)
        self.normalizer.update({name: leaves[i] for name, i in self._positions.items()})

    def transform_rewards(self, rewards: Tensor) -> Tensor:
        return rewards

    def change_unscaled(
        self, change: Callable[[Nest], Nest], observation: Nest
    ) -> Nest:
        leaves = nest.flatten(observation)
        named = {name: leaves[i] for name, i in self._positions.items()}
        for name, leaf in self.normalizer.denormalize(named).items():
            leaves[self._positions[name]] = leaf
        changed = change(nest.pack_sequence_as(observation, leaves))
        return self.transform(TimeStep(observation=changed)).observation


def _transformed_spec(spec: TensorSpec, clipping: float | None) -> TensorSpec:
    if clipping is None:
        return TensorSpec(spec.shape, spec.dtype)
    return BoundedTensorSpec(spec.shape, spec.dtype, -clipping, clipping)


class _Largest(SharedStatistics):
    """The largest |x| of every element so far."""

    value: Tensor  # [*spec.shape] float64

    def __init__(self, spec: TensorSpec) -> None:
        super().__init__()
        value = torch.zeros(tuple(spec.shape), dtype=torch.float64)
        self.register_buffer("value", value)
        self._pending: Tensor | None = None  # of this rank alone

    def update(self, rows: Tensor) -> None:
        """Takes in [n, *spec.shape]."""
        if not len(rows):
            return
        largest = rows.abs().amax(0).to(self.value)
        if ranks.size > 1:
            before = self.value if self._pending is None else self._pending
            self._pending = torch.maximum(before, largest)
        else:
            self.value.copy_(torch.maximum(self.value, largest))

    def take_pending(self) -> Tensor:
        pending, self._pending = self._pending, None
        return (self.value if pending is None else pending).flatten()

    def take_in(self, pending: Tensor) -> None:
        largest = pending.to(self.value).amax(0).view_as(self.value)
        self.value.copy_(torch.maximum(self.value, largest))


@configurable
class RewardNormalizer(StatisticsTransformer):
    """Divides the reward by the standard deviation of the running discounted return.

        R_t = γ R_{t-1} + r_t,   R_t = 0 at FIRST

    The statistics are over all steps of the training environments before the current
    unroll, FIRST steps left out; during the first unroll the reward is only clipped.
    The mean is not subtracted, because that would change which policy is best, and the
    reward of FIRST steps stays 0. Every dimension of the reward has its own scale.
    Steps in which an agent waits for others count, with a reward of 0: where they are
    many, scaled rewards are somewhat larger.

    Args:
        observation_spec: of one raw observation.
        reward_spec: of one raw reward.
        gamma: γ of the discounted return; None means that of the algorithm, and 0.99 if
            it has none.
        max_return: bound of scaled returns: divided is by max |R| / max_return where
            that is larger than the deviation, so that no R that was seen is outside;
            for critics on a fixed support. None: by the deviation alone.
        **kwargs: see :class:`StatisticsTransformer`.

    Raises:
        ValueError: if an argument is out of range.
    """

    def __init__(
        self,
        *args: Any,
        gamma: float | None = None,
        max_return: float | None = None,
        **kwargs: Any,
    ) -> None:
        if gamma is not None and not 0 <= gamma <= 1:
            raise ConfigError(f"RewardNormalizer: gamma must be in [0, 1], got {gamma}")
        if max_return is not None and not max_return > 0:
            raise ConfigError(
                f"RewardNormalizer: max_return must be above 0, got {max_return}"
            )
        super().__init__(*args, **kwargs)
        self.normalizer = Normalizer(
            {"reward": self.reward_spec}, zero_mean=False, **self._options
        )
        self._max_return = max_return
        self._largest = None if max_return is None else _Largest(self.reward_spec)
        self._gamma = 0.99 if gamma is None else gamma
        self._has_own_gamma = gamma is not None
        self._reader = UnrollReader(self.reward_spec)
        # [environments so far, elements of the reward], R of the last step. No buffer:
        # only training needs it, and a policy may act in any number of environments.
        self._returns = np.zeros((0, self.reward_spec.numel))
        self._returns_there: Tensor | None = None  # of steps on a GPU

    def set_gamma(self, gamma: float) -> None:
        if not self._has_own_gamma:
            self._gamma = gamma

    def transform(self, time_step: TimeStep) -> TimeStep:
        reward = time_step.reward
        assert isinstance(reward, Tensor), "the time step has no reward"
        if self._largest is None or self._max_return is None:
            [normalized] = self.normalizer.normalize_leaves([reward], self._clipping)
            return time_step._replace(reward=normalized)
        [scaled] = self.normalizer.normalize_leaves([reward])
        [largest] = self.normalizer.normalize_leaves(
            [self._largest.value.to(reward.dtype)]
        )
        scaled *= (self._max_return / largest).clamp(max=1.0)
        if self._clipping is not None:
            scaled.clamp_(-self._clipping, self._clipping)
        return time_step._replace(reward=scaled)

    def update_statistics(self, time_steps: TimeStep) -> None:
        if not time_steps.step_type.is_cpu:
            self._update_on_device(time_steps)
            return
        steps = self._reader.read(time_steps)
        if steps.is_first.size == 0:
            return
        if not np.isfinite(steps.rewards).all():
            t, b, i = np.argwhere(~np.isfinite(steps.rewards))[0]
            raise NotFiniteError(
                f"reward: {steps.rewards[t, b, i]} at index ({t}, {b})"
            )
        is_first = steps.is_first[..., None]
        returns = linear_scan(
            np.where(is_first, 0.0, steps.rewards),
            np.where(is_first, 0.0, self._gamma),
            self._returns_of(steps.env_ids),
        )  # [T, B, elements of the reward]
        counted = torch.from_numpy(returns[~steps.is_first])
        counted = counted.reshape(-1, *self.reward_spec.shape)
        self.normalizer.update({"reward": counted})
        if self._largest is not None:
            self._largest.update(counted)
        self._returns[steps.env_ids] = returns[-1]

    def _update_on_device(self, steps: TimeStep) -> None:
        """As above, of steps on a GPU, which nobody waits for.

        Their columns are environments, the same ones in every unroll.
        """
        shape = (*steps.step_type.shape, self.reward_spec.numel)
        rewards = steps.reward.reshape(shape).double()
        is_first = steps.is_first()
        before = self._returns_there
        if before is None or before.shape != rewards.shape[1:]:
            before = moved_tensor(
                torch.from_numpy(self._returns_of(np.arange(shape[1]))), rewards.device
            )
        y = torch.where(is_first[..., None], 0.0, rewards)
        decay = torch.where(is_first, 0.0, self._gamma)[..., None].double()
        y = reverse_linear_scan(y.flip(0), decay.flip(0), before).flip(0)
        returns = y.reshape(*shape[:2], *self.reward_spec.shape)
        self.normalizer.update({"reward": returns}, ~is_first)
        if self._largest is not None:  # 0 at FIRST
            self._largest.update(returns.flatten(0, 1).nan_to_num(0.0, 0.0, 0.0))
        # Statistics leave out what is not finite, and later returns shall, too.
        self._returns_there = torch.where(y[-1].isfinite(), y[-1], 0.0)

    def _returns_of(self, env_ids: np.ndarray) -> np.ndarray:
        """[B, elements of the reward], 0 for environments that are new."""
        num_missing = env_ids.max() + 1 - len(self._returns)
        if num_missing > 0:
            self._returns = np.pad(self._returns, ((0, num_missing), (0, 0)))
        return self._returns[env_ids]

    def training_state_dict(self) -> dict[str, Any]:
        if self._returns_there is not None:
            self._returns = self._returns_there.cpu().numpy()
        return {"returns": torch.tensor(self._returns)}

    def load_training_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._returns_there = None
        self._returns = state_dict["returns"].numpy().copy()
