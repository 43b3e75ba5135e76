# Written by `python -m tests.stubs`.

from alf_lite.metrics.episode_metric import (
    EpisodeFold as EpisodeFold,
    EpisodeMetric as EpisodeMetric,
    RecentEpisodes as RecentEpisodes,
    build_episode_metrics as build_episode_metrics,
)
from alf_lite.metrics.episode_sums import (
    EpisodeSums as EpisodeSums,
    FinishedEpisodes as FinishedEpisodes,
    RecentRows as RecentRows,
)
from alf_lite.metrics.episode_tracker import (
    EpisodeMeans as EpisodeMeans,
    EpisodeTracker as EpisodeTracker,
)
from alf_lite.metrics.metrics import (
    AverageDiscountedReturn as AverageDiscountedReturn,
    AverageEnvInfo as AverageEnvInfo,
    AverageEpisodeLength as AverageEpisodeLength,
    AverageReturn as AverageReturn,
    AverageReward as AverageReward,
    EnvironmentSteps as EnvironmentSteps,
    EpisodicStartAverageDiscountedReturn as EpisodicStartAverageDiscountedReturn,
    Metric as Metric,
    MetricSet as MetricSet,
    NumberOfEpisodes as NumberOfEpisodes,
    create_metrics as create_metrics,
)
from alf_lite.metrics.recent_games import RecentGames as RecentGames
