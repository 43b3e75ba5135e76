# Written by `python -m tests.stubs`.

from alf_lite.replay_buffers.allocation import (
    StorageOptions as StorageOptions,
    allocate as allocate,
)
from alf_lite.replay_buffers.compiled_sum_tree import (
    CompiledSumTree as CompiledSumTree,
    make_sum_tree as make_sum_tree,
)
from alf_lite.replay_buffers.device_priority_sampler import (
    DevicePrioritySampler as DevicePrioritySampler,
)
from alf_lite.replay_buffers.episode_returns import EpisodeReturns as EpisodeReturns
from alf_lite.replay_buffers.own_replay import (
    OwnReplay as OwnReplay,
    ReplayMonitor as ReplayMonitor,
)
from alf_lite.replay_buffers.packed_windows import PackedWindows as PackedWindows
from alf_lite.replay_buffers.priority_options import (
    PriorityOptions as PriorityOptions,
    check_options as check_options,
)
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer as ReplayBuffer
from alf_lite.replay_buffers.replay_file import (
    RawSteps as RawSteps,
    ReplayFile as ReplayFile,
    restore as restore,
    save as save,
)
from alf_lite.replay_buffers.replay_mixture import (
    ReplayMixture as ReplayMixture,
    Windows as Windows,
    alike as alike,
    join as join,
)
from alf_lite.replay_buffers.replay_settings import (
    ReplayOptions as ReplayOptions,
    check_replay_settings as check_replay_settings,
    default_ratios as default_ratios,
    shares as shares,
    windows_per_update as windows_per_update,
)
from alf_lite.replay_buffers.ring_storage import RingStorage as RingStorage
from alf_lite.replay_buffers.row_layout import (
    Expected as Expected,
    Leaf as Leaf,
    PackedSteps as PackedSteps,
    RowLayout as RowLayout,
    dtype_name as dtype_name,
    numpy_dtype as numpy_dtype,
)
from alf_lite.replay_buffers.sampling_weights import (
    SampleLimits as SampleLimits,
    SamplingWeights as SamplingWeights,
)
from alf_lite.replay_buffers.stored_steps import (
    EpisodeIndex as EpisodeIndex,
    StoredSteps as StoredSteps,
    to_array as to_array,
    to_distinct_env_ids as to_distinct_env_ids,
    to_env_ids as to_env_ids,
    to_indices as to_indices,
    to_stored_steps as to_stored_steps,
)
from alf_lite.replay_buffers.sum_tree import (
    Drawn as Drawn,
    SumTree as SumTree,
    last_of_each as last_of_each,
    locate as locate,
    nothing_to_find as nothing_to_find,
)
from alf_lite.replay_buffers.weighted_sampler import (
    WeightedSampler as WeightedSampler,
    make_sampler as make_sampler,
)
from alf_lite.replay_buffers.window_sampler import (
    PositionRanges as PositionRanges,
    SamplingOptions as SamplingOptions,
    UniformSampler as UniformSampler,
    WindowStarts as WindowStarts,
    all_windows as all_windows,
    check_size as check_size,
    draw_in_strata as draw_in_strata,
    draw_others as draw_others,
    draw_random as draw_random,
    draw_stratified as draw_stratified,
    draw_with_replacement as draw_with_replacement,
    draw_without_replacement as draw_without_replacement,
)
