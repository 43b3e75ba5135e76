"""Keeps the raw time step beside the transformed one."""

from __future__ import annotations

from alf_lite.config import configurable
from alf_lite.data_structures import TimeStep
from alf_lite.data_transformers.data_transformer import (
    SingleStepTransformer,
    TransformStage,
)
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec


@configurable
class UntransformedTimeStep(SingleStepTransformer):
    """Puts the raw step into ``time_step.untransformed``, for the algorithm to read.

    It is the step as the environment returned it, with its own reward and goal, also
    where later transformers replace them. Must come first.
    """

    stage = TransformStage.KEEP_RAW

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        reward_spec: TensorSpec = TensorSpec(()),
    ) -> None:
        super().__init__(observation_spec, reward_spec)

    def transform(self, time_step: TimeStep) -> TimeStep:
        return time_step._replace(untransformed=time_step)
