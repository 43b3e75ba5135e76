# Written by `python -m tests.stubs`.

from alf_lite.environments.batch_creation import (
    class_of_batches as class_of_batches,
    make_batch as make_batch,
)
from alf_lite.environments.creation import (
    EnvironmentsOfRun as EnvironmentsOfRun,
    check_wrappers as check_wrappers,
    create_environment as create_environment,
    has_native as has_native,
)
from alf_lite.environments.env_factory import (
    EnvFactory as EnvFactory,
    dump_factory as dump_factory,
    load_factory as load_factory,
)
from alf_lite.environments.env_ids import (
    display_hint as display_hint,
    find_spec as find_spec,
    missing_package as missing_package,
)
from alf_lite.environments.env_indices import (
    counted_after as counted_after,
    create_after as create_after,
    first_index as first_index,
)
from alf_lite.environments.env_pool import EnvPoolVectorEnv as EnvPoolVectorEnv
from alf_lite.environments.env_server import (
    BuiltEnv as BuiltEnv,
    EnvSettings as EnvSettings,
    SharedSteps as SharedSteps,
    serve as serve,
)
from alf_lite.environments.environment import (
    Environment as Environment,
    EnvironmentWithSpecs as EnvironmentWithSpecs,
    StepRow as StepRow,
    step_rows as step_rows,
)
from alf_lite.environments.episode_memory import (
    ActionLog as ActionLog,
    EpisodeMemory as EpisodeMemory,
)
from alf_lite.environments.episode_wrappers import (
    ActionObservation as ActionObservation,
    ActionRepeat as ActionRepeat,
    CorrelatedActionNoise as CorrelatedActionNoise,
    ExtraEntry as ExtraEntry,
    RandomFirstEpisodeLength as RandomFirstEpisodeLength,
    ScalarReward as ScalarReward,
    TimeLimitIsNoEnd as TimeLimitIsNoEnd,
)
from alf_lite.environments.gymnasium_environment import (
    GymnasiumEnvironment as GymnasiumEnvironment,
)
from alf_lite.environments.info_keys import (
    InfoKeys as InfoKeys,
    find as find,
    info_names as info_names,
    raise_unseen as raise_unseen,
    still_unseen as still_unseen,
)
from alf_lite.environments.levels import (
    LevelDraws as LevelDraws,
    LevelSeeds as LevelSeeds,
    TaskMixture as TaskMixture,
)
from alf_lite.environments.mini_grid import (
    MiniGridObservation as _MiniGridObservation,
    MiniGridState as _MiniGridState,
    gymnasium,
)
from alf_lite.environments.numpy_time_steps import (
    ActionLeaf as ActionLeaf,
    NumpyTimeSteps as NumpyTimeSteps,
    ObservationLeaf as ObservationLeaf,
)
from alf_lite.environments.open_episodes import (
    OpenEpisode as OpenEpisode,
    Replay as Replay,
    global_sources as global_sources,
    lost_start as lost_start,
    untouched_globals as untouched_globals,
)
from alf_lite.environments.process_vector_env import (
    ProcessVectorEnv as ProcessVectorEnv,
)
from alf_lite.environments.rsl_rl_environment import (
    RslRlEnvironment as RslRlEnvironment,
)
from alf_lite.environments.rsl_rl_interface import (
    RslRlReader as RslRlReader,
    RslRlStep as RslRlStep,
    RslRlVecEnv as RslRlVecEnv,
)
from alf_lite.environments.serial_vector_env import SerialVectorEnv as SerialVectorEnv
from alf_lite.environments.single_env import (
    BatchOfSingleEnvs as BatchOfSingleEnvs,
    EnvDescription as EnvDescription,
    SavedEpisode as SavedEpisode,
    check_env as check_env,
    check_info as check_info,
    check_same_spaces as check_same_spaces,
    check_space as check_space,
    check_step_result as check_step_result,
    class_name as class_name,
    describe_env as describe_env,
    environment_seeds as environment_seeds,
    is_batch as is_batch,
    missing_value as missing_value,
    raise_env_error as raise_env_error,
    refuse_reset as refuse_reset,
    reward_space as reward_space,
    seeds_of_reset as seeds_of_reset,
    set_env_attribute as set_env_attribute,
    step_closed as step_closed,
    vector_seed as vector_seed,
)
from alf_lite.environments.space_specs import (
    RecordedLeaf as RecordedLeaf,
    RecordedValues as RecordedValues,
    action_leaf_spec as action_leaf_spec,
    action_offset as action_offset,
    action_spec as action_spec,
    float_bounds as float_bounds,
    is_rescaled as is_rescaled,
    observation_leaf_spec as observation_leaf_spec,
    observation_spec as observation_spec,
    offset as offset,
    rescaling as rescaling,
)
from alf_lite.environments.space_tree import (
    Column as Column,
    RowError as RowError,
    SpaceColumns as SpaceColumns,
    SpaceLeaf as SpaceLeaf,
    SpaceTree as SpaceTree,
    describe as describe,
)
from alf_lite.environments.specs_only_environment import (
    RemoteEnvironment as RemoteEnvironment,
    SpecsOnlyEnvironment as SpecsOnlyEnvironment,
    WithSpecsOf as WithSpecsOf,
    box_space as box_space,
    discrete_space as discrete_space,
    from_saved_spaces as from_saved_spaces,
    saved_spaces as saved_spaces,
)
from alf_lite.environments.time_steps import (
    ObservationBounds as ObservationBounds,
    TimeSteps as TimeSteps,
    check_action as check_action,
    check_action_is_finite as check_action_is_finite,
    element_text as element_text,
    raise_if_not_finite as raise_if_not_finite,
)
from alf_lite.environments.torch_env_checks import (
    check_declared as check_declared,
    check_transition as check_transition,
    named as named,
)
from alf_lite.environments.torch_tasks import (
    CartPoleState as CartPoleState,
    PendulumState as PendulumState,
    PointMassState as PointMassState,
    TorchCartPole as TorchCartPole,
    TorchPendulum as TorchPendulum,
    TorchPointMass as TorchPointMass,
)
from alf_lite.environments.torch_time_steps import (
    TorchActionLeaf as TorchActionLeaf,
    TorchObservationLeaf as TorchObservationLeaf,
    TorchTimeSteps as TorchTimeSteps,
    expand_mask as expand_mask,
)
from alf_lite.environments.torch_vector_env import (
    BatchState as BatchState,
    TorchVectorEnv as TorchVectorEnv,
)
from alf_lite.environments.wrappers import (
    ActionMaskFromInfo as ActionMaskFromInfo,
    ObservationElements as ObservationElements,
    atari_preprocessing as atari_preprocessing,
)
from collections.abc import Sequence

class MiniGridObservation(_MiniGridObservation):
    def __init__(
        self,
        env: gymnasium.Env,
        *,
        mission: bool | None = None,
        max_mission_words: int = 20,
        vocabulary: Sequence[str] = ...,
    ) -> None: ...

class MiniGridState(_MiniGridState):
    def __init__(
        self,
        env: gymnasium.Env,
        *,
        num_objects: int,
        mission: bool | None = None,
        max_mission_words: int = 20,
        vocabulary: Sequence[str] = ...,
    ) -> None: ...
