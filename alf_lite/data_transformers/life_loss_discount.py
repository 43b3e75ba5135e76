"""Teaches to keep lives, in games that go on after one is lost."""

from __future__ import annotations

import torch

from alf_lite.config import configurable
from alf_lite.data_structures import TimeStep
from alf_lite.data_transformers.data_transformer import SingleStepTransformer
from alf_lite.environments.environment import Environment
from alf_lite.errors import ConfigError
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec


@configurable
class LifeLossDiscount(SingleStepTransformer):
    """Sets the discount to 0 where a life is lost, as if the game had ended there.

    So nothing that comes afterwards is worth anything to an algorithm. The episode goes
    on: the step is no LAST step, the game is not reset, frames are stacked across it,
    and the metrics, which see raw time steps, count whole games.

    The environment must report it, in a conf
    ``create_environment.env_info_keys = ["life_lost"]``.

    Args:
        observation_spec: of one raw observation.
        reward_spec: of one raw reward.
        info_key: of the ``env_info`` that is not 0 where a life is lost.
    """

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        reward_spec: TensorSpec = TensorSpec(()),
        *,
        info_key: str = "life_lost",
    ) -> None:
        super().__init__(observation_spec, reward_spec)
        self._info_key = info_key

    def set_environment(self, env: Environment) -> None:
        spec = env.env_info_spec
        shape = spec[self._info_key].shape if self._info_key in spec else None
        if shape != ():
            problem = "no" if shape is None else f"shape {tuple(shape)} for the"
            raise ConfigError(
                f"LifeLossDiscount: {env.name} has {problem} env_info "
                f"{self._info_key!r}, expected a scalar. Set "
                f"create_environment.env_info_keys = [{self._info_key!r}]."
            )

    def transform(self, time_step: TimeStep) -> TimeStep:
        is_lost = time_step.env_info[self._info_key] != 0
        return time_step._replace(
            discount=torch.where(is_lost, 0.0, time_step.discount)
        )
