"""What transformers that scale by running statistics have in common."""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal, get_args

from alf_lite.data_structures import TimeStep
from alf_lite.data_transformers.data_transformer import SingleStepTransformer
from alf_lite.errors import ConfigError, EnvError
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec
from alf_lite.utils.normalizers import Normalizer, NotFiniteError

UpdateMode = Literal["rollout", "never"]


class StatisticsTransformer(SingleStepTransformer):
    """Scales by statistics of the training environments and clips the result.

    Args:
        observation_spec: of one raw observation.
        reward_spec: of one raw reward.
        transformed_observation_spec: of what the algorithm sees.
        normalizer: the statistics.
        clipping: bounds the results to [-clipping, clipping]; None for no bounds.
        update_mode: when the statistics change: ``"rollout"``, after every unroll, or
            ``"never"``, to keep those of a checkpoint.

    Raises:
        ConfigError: if ``clipping`` or ``update_mode`` is out of range.
    """

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        reward_spec: TensorSpec,
        *,
        transformed_observation_spec: NestedTensorSpec | None = None,
        normalizer: Normalizer,
        clipping: float | None,
        update_mode: UpdateMode,
    ) -> None:
        super().__init__(
            observation_spec,
            reward_spec,
            transformed_observation_spec=transformed_observation_spec,
        )
        if clipping is not None and not clipping > 0:
            raise ConfigError(f"clipping must be above 0 or None, got {clipping}")
        if update_mode not in get_args(UpdateMode):
            raise ConfigError(
                f"update_mode must be one of {list(get_args(UpdateMode))}, "
                f"got {update_mode!r}"
            )
        self.normalizer = normalizer
        self._clipping = clipping
        self._update_mode = update_mode

    @property
    def has_statistics(self) -> bool:
        return self._update_mode != "never"

    def observe(self, time_steps: TimeStep) -> None:
        if not self.has_statistics:
            return
        try:
            self.update_statistics(time_steps)
        except NotFiniteError as error:
            raise EnvError(
                f"{type(self).__name__} got a number that is not finite from the "
                f"training environments. {error}, which counts steps of the unroll "
                "first and then environments. The statistics were left as they were. "
                "Find out why the environment returns it, or clip it there."
            ) from error

    @abstractmethod
    def update_statistics(self, time_steps: TimeStep) -> None:
        """Updates the normalizer.

        Args:
            time_steps: raw [T, B, ...].

        Raises:
            NotFiniteError: if there is a NaN or an infinity; nothing has changed then.
        """
