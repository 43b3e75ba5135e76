# Written by `python -m tests.stubs`.

from alf_lite.data_transformers.create_data_transformer import (
    SequentialDataTransformer as SequentialDataTransformer,
    create_data_transformer as create_data_transformer,
)
from alf_lite.data_transformers.data_transformer import (
    DataTransformer as DataTransformer,
    IdentityDataTransformer as IdentityDataTransformer,
    ReplayTransformer as ReplayTransformer,
    SingleStepTransformer as SingleStepTransformer,
    TransformStage as TransformStage,
    WindowOrigin as WindowOrigin,
    build_data_transformer as build_data_transformer,
    replace_specs as replace_specs,
    select_leaves as select_leaves,
)
from alf_lite.data_transformers.frame_stacker import FrameStacker as FrameStacker
from alf_lite.data_transformers.hindsight import (
    HindsightExperienceTransformer as HindsightExperienceTransformer,
    reward_function_of as reward_function_of,
)
from alf_lite.data_transformers.normalizing_transformers import (
    StatisticsTransformer as StatisticsTransformer,
    UpdateMode,
    ObservationNormalizer as _ObservationNormalizer,
    RewardNormalizer as _RewardNormalizer,
)
from alf_lite.data_transformers.single_step_transformers import (
    ImageScaleTransformer as ImageScaleTransformer,
    RewardTransformer as RewardTransformer,
    UntransformedTimeStep as UntransformedTimeStep,
    IgnoreTermination as _IgnoreTermination,
    LifeLossDiscount as _LifeLossDiscount,
    RewardClipping as _RewardClipping,
    RewardScaling as _RewardScaling,
    RewardShifting as _RewardShifting,
)
from alf_lite.data_transformers.sqil_transformer import (
    SqilTransformer as SqilTransformer,
)
from alf_lite.data_transformers.symmetries import (
    Reflection as Reflection,
    SymmetryTransformer as SymmetryTransformer,
    check_symmetries as check_symmetries,
)
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec
from alf_lite.utils.normalizers import NormalizerMode
from collections.abc import Sequence

class LifeLossDiscount(_LifeLossDiscount):
    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        reward_spec: TensorSpec = ...,
        *,
        info_key: str = 'life_lost',
    ) -> None: ...

class IgnoreTermination(_IgnoreTermination):
    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        reward_spec: TensorSpec = ...,
        *,
        discount: float = 1.0,
        info_key: str | None = None,
    ) -> None: ...

class ObservationNormalizer(_ObservationNormalizer):
    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        reward_spec: TensorSpec = ...,
        *,
        fields: Sequence[str] | None = None,
        zero_mean: bool = True,
        clipping: float | None = 10.0,
        mode: NormalizerMode = 'running',
        speed: float = 8.0,
        update_rate: float = 0.0001,
        update_mode: UpdateMode = 'rollout',
    ) -> None: ...

class RewardNormalizer(_RewardNormalizer):
    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        reward_spec: TensorSpec = ...,
        *,
        gamma: float | None = None,
        max_return: float | None = None,
        clipping: float | None = 10.0,
        mode: NormalizerMode = 'running',
        speed: float = 8.0,
        update_rate: float = 0.0001,
        update_mode: UpdateMode = 'rollout',
    ) -> None: ...

class RewardScaling(_RewardScaling):
    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        reward_spec: TensorSpec = ...,
        *,
        scale: float,
    ) -> None: ...

class RewardShifting(_RewardShifting):
    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        reward_spec: TensorSpec = ...,
        *,
        bias: float,
    ) -> None: ...

class RewardClipping(_RewardClipping):
    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        reward_spec: TensorSpec = ...,
        *,
        minimum: float = -1.0,
        maximum: float = 1.0,
    ) -> None: ...
