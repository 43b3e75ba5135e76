"""Scales observations by their running mean and standard deviation."""

from __future__ import annotations

from collections.abc import Sequence

from alf_lite import nest
from alf_lite.config import configurable
from alf_lite.data_structures import TimeStep
from alf_lite.data_transformers.observation_leaves import replace_specs, select_leaves
from alf_lite.data_transformers.statistics_transformer import (
    StatisticsTransformer,
    UpdateMode,
)
from alf_lite.tensor_specs import BoundedTensorSpec, NestedTensorSpec, TensorSpec
from alf_lite.utils.normalizers import Normalizer, NormalizerMode


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
        clipping: bounds the results to [-clipping, clipping]; None for no bounds.
        zero_mean: whether to subtract the mean.
        mode: how much the past counts, see :class:`Normalizer`.
        speed: of the mode ``"adaptive"``.
        update_rate: of the mode ``"moving"``.
        update_mode: see :class:`StatisticsTransformer`.

    Raises:
        ConfigError: if a field does not exist or is not floating point, or an argument
            is out of range.
    """

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        reward_spec: TensorSpec = TensorSpec(()),
        *,
        fields: Sequence[str] | None = None,
        clipping: float | None = 10.0,
        zero_mean: bool = True,
        mode: NormalizerMode = "running",
        speed: float = 8.0,
        update_rate: float = 1e-4,
        update_mode: UpdateMode = "rollout",
    ) -> None:
        positions = select_leaves(
            observation_spec, fields, lambda spec: spec.is_continuous, "floating point"
        )
        all_specs = nest.flatten(observation_spec)
        specs = {name: all_specs[i] for name, i in positions.items()}
        super().__init__(
            observation_spec,
            reward_spec,
            transformed_observation_spec=replace_specs(
                observation_spec,
                positions.values(),
                lambda spec: _transformed_spec(spec, clipping),
            ),
            normalizer=Normalizer(
                specs,
                zero_mean=zero_mean,
                mode=mode,
                speed=speed,
                update_rate=update_rate,
            ),
            clipping=clipping,
            update_mode=update_mode,
        )
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


def _transformed_spec(spec: TensorSpec, clipping: float | None) -> TensorSpec:
    if clipping is None:
        return TensorSpec(spec.shape, spec.dtype)
    return BoundedTensorSpec(spec.shape, spec.dtype, -clipping, clipping)
