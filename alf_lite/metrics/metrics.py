"""The metrics of a training run, computed from raw time steps.

All of them look at one :class:`EpisodeTracker`, which observes every unroll once; a
metric only says which of its numbers it is. Averages are means over the last
``buffer_size`` episodes, every episode counting once, and NaN before the first one has
ended. Step 0 of an episode is its FIRST and step L its LAST step, so L is its length.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.config import configurable
from alf_lite.data_structures import TimeStep
from alf_lite.errors import ConfigError
from alf_lite.metrics.episode_metric import EpisodeMetric, RecentEpisodes
from alf_lite.metrics.episode_tracker import EpisodeTracker
from alf_lite.metrics.recent_games import RecentGames
from alf_lite.nest import leaf_name
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec
from alf_lite.utils.game_results import GAME_KEYS, Opposition
from alf_lite.utils.ranks import ranks

Nest = Any

_OWN = "own"  # in the state of a MetricSet, the metrics of one's own
_NUM_GAMES = 1_000  # that are looked at by opponent and seat


class Metric(ABC):
    """A number, or a nest of numbers, about the episodes of a tracker."""

    def __init__(self, tracker: EpisodeTracker) -> None:
        self._tracker = tracker

    @property
    def name(self) -> str:
        """What summaries call it."""
        return type(self).__name__

    @abstractmethod
    def result(self) -> Nest:
        """The value now: Python numbers, and lists of them where there are several."""


class NumberOfEpisodes(Metric):
    """The number of episodes that have ended."""

    def result(self) -> int:
        return self._tracker.num_episodes


class EnvironmentSteps(Metric):
    """The number of steps that are not FIRST, of all environments together."""

    def result(self) -> int:
        return self._tracker.num_env_steps


class AverageReturn(Metric):
    """The undiscounted return of an episode, Σ_{t=1}^{L} r_t."""

    def result(self) -> Nest:
        return self._tracker.means().episode_return.tolist()


class AverageEpisodeLength(Metric):
    """The number of steps of an episode that are not FIRST, L."""

    def result(self) -> float:
        return self._tracker.means().length.tolist()


class AverageEnvInfo(Metric):
    """The declared env_info of an episode: its mean over the steps and its last value.

    The mean is (1/L) Σ_{t=1}^{L} info_t, right for velocities and parts of the reward;
    the last value is info_L, right for success flags and counters. Both are reported,
    as ``{"mean": ..., "last": ...}`` of the nest that the environment declares, or
    ``()`` if it declares none.

    Args:
        tracker: what it looks at.
        left_out: keys that say nothing as a mean.
        at_end_only: whether means over the steps say nothing.
    """

    def __init__(
        self,
        tracker: EpisodeTracker,
        left_out: Sequence[str] = (),
        at_end_only: bool = False,
    ) -> None:
        super().__init__(tracker)
        self._left_out = left_out
        self._at_end_only = at_end_only

    def result(self) -> Nest:
        means = self._tracker.means()
        mean, last = means.info_mean, means.info_last
        if self._left_out:
            mean, last = (
                {key: info[key] for key in info if key not in self._left_out}
                for info in (mean, last)
            )
        if nest.is_empty(mean):
            return ()
        found = {"last": last} if self._at_end_only else {"mean": mean, "last": last}
        return nest.map_structure(np.ndarray.tolist, found)


class AverageDiscountedReturn(Metric):
    """The discounted return from a step of an episode, averaged over its steps.

        (1/L) Σ_{t=0}^{L-1} G_t,   G_t = r_{t+1} + γ d_{t+1} G_{t+1},   G_L = 0

    with the discount d of the environment. It is what a value function predicts on
    average, except that an episode cut by a time limit is not bootstrapped.
    """

    def result(self) -> Nest:
        return self._tracker.means().discounted_return.tolist()


class AverageReward(Metric):
    """The reward per step of an episode, (1/L) Σ_{t=1}^{L} r_t."""

    def result(self) -> Nest:
        return self._tracker.means().reward.tolist()


class EpisodicStartAverageDiscountedReturn(Metric):
    """The discounted return from the start of an episode.

        G_0 = Σ_{t=1}^{L} (Π_{s=1}^{t-1} γ d_s) r_t

    with the discount d of the environment.
    """

    def result(self) -> Nest:
        return self._tracker.means().start_discounted_return.tolist()


class MetricSet(Sequence[Metric]):
    """Metrics of one tracker: observed together, read one by one.

    Args:
        tracker: what the metrics look at.
        metrics: in the order of the sequence.
        own: those of ``TrainerConfig.metric_ctors``, and games against opponents; they
            end the sequence.

    Attributes:
        tracker: as given.
        observe: takes in raw time steps [T, B, ...], each step once and in its order.
    """

    def __init__(
        self,
        tracker: EpisodeTracker,
        metrics: Sequence[Metric],
        own: Sequence[RecentEpisodes | RecentGames] = (),
    ) -> None:
        self.tracker = tracker
        self.observe = self._observe_all if own else tracker.observe
        self._own = tuple(own)
        self._metrics: tuple[Any, ...] = (*metrics, *own)

    def __len__(self) -> int:
        return len(self._metrics)

    def __iter__(self) -> Iterator[Metric]:
        return iter(self._metrics)

    def __getitem__(self, index: Any) -> Any:
        return self._metrics[index]

    def results(self) -> dict[str, float]:
        """All numbers there are by now, named as in ``AverageEnvInfo/last/success``."""
        named = self.all_results()
        return {name: value for name, value in named.items() if not math.isnan(value)}

    def all_results(self) -> dict[str, float]:
        """`results` and, as NaN, the numbers that no episode has given yet."""
        return {
            leaf_name(metric.name, path, "/"): value
            for metric in self._metrics
            for path, value in nest.flatten_with_path(metric.result())
        }

    def share(self) -> None:
        """Makes the numbers those of all ranks, which call it at the same time."""
        if ranks.size == 1:
            return
        parts: list[EpisodeTracker | RecentEpisodes | RecentGames] = [
            self.tracker,
            *self._own,
        ]
        shares = [part.shares() for part in parts]
        own = np.concatenate(shares)
        elsewhere = ranks.sum_(torch.from_numpy(own.copy())).numpy() - own
        begin = 0
        for part, share in zip(parts, shares, strict=True):
            part.take_in(elsewhere[begin : begin + len(share)])
            begin += len(share)

    def drop_open_episodes(self) -> None:
        """Forgets the episodes that have not ended, as after a reset."""
        self.tracker.drop_open_episodes()
        for metric in self._own:
            metric.drop_open_episodes()

    def forget_episodes(self) -> None:
        """Averages are those of the episodes that end from here on."""
        self.tracker.forget_episodes()
        for metric in self._own:
            metric.forget_episodes()

    def reset(self) -> None:
        """Starts all metrics anew."""
        self.tracker.reset()
        for metric in self._own:
            metric.reset()

    def state_dict(self) -> dict[str, Any]:
        """Everything that later results depend on, as ints and tensors."""
        state = self.tracker.state_dict()
        if self._own:
            state[_OWN] = {metric.name: metric.state_dict() for metric in self._own}
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues where ``state_dict`` was taken; CheckpointError if it cannot.

        Metrics of one's own that it does not hold begin anew; others are dropped.
        """
        saved = state_dict.get(_OWN, {})
        tracked = {k: value for k, value in state_dict.items() if k != _OWN}
        for metric in self._own:
            if metric.name in saved:
                metric.load_state_dict(saved[metric.name])
        self.tracker.load_state_dict(tracked)

    def _observe_all(self, time_step: TimeStep) -> None:
        self.tracker.observe(time_step)
        env_id = time_step.env_id
        if isinstance(env_id, Tensor):
            env_ids = env_id.reshape(-1, time_step.step_type.shape[1])[0].cpu().numpy()
        else:
            env_ids = np.arange(time_step.step_type.shape[1])
        for metric in self._own:
            metric.observe(time_step, env_ids)


@configurable
def create_metrics(
    reward_spec: TensorSpec,
    env_info_spec: NestedTensorSpec,
    batch_size: int,
    buffer_size: int,
    gamma: float | None = None,
    algorithm_gamma: float | None = None,
    own: Sequence[EpisodeMetric] = (),
    opposition: Opposition | None = None,
    has_two_sides: bool = False,
) -> MetricSet:
    """The metrics of a training run; the first two are the axes of summaries.

    Args:
        reward_spec: of one reward.
        env_info_spec: of the env_info of one step.
        batch_size: number of environments.
        buffer_size: number of episodes that averages are taken over.
        gamma: γ of the discounted returns; None means that of the algorithm.
        algorithm_gamma: what that is; 0.99 if it has none.
        own: those of ``TrainerConfig.metric_ctors``.
        opposition: of environments in which games are played against opponents.
        has_two_sides: whether rewards belong to two sides in turn, see
            ``Environment.has_negative_discounts``, so that their sum says nothing.
    """
    if gamma is None:
        gamma = 0.99 if algorithm_gamma is None else algorithm_gamma
    tracker = EpisodeTracker(
        reward_spec,
        env_info_spec,
        batch_size=batch_size,
        buffer_size=buffer_size,
        gamma=gamma,
    )
    left_out = () if opposition is None else GAME_KEYS
    metrics: list[Metric] = [
        NumberOfEpisodes(tracker),
        EnvironmentSteps(tracker),
        AverageReturn(tracker),
        AverageEpisodeLength(tracker),
        AverageEnvInfo(tracker, left_out, at_end_only=has_two_sides),
        AverageDiscountedReturn(tracker),
        AverageReward(tracker),
        EpisodicStartAverageDiscountedReturn(tracker),
    ]
    if has_two_sides:
        plain_sums = AverageReturn, AverageReward
        metrics = [one for one in metrics if not isinstance(one, plain_sums)]
    for metric in own:
        if metric.name in {RecentGames.name, *(known.name for known in metrics)}:
            raise ConfigError(
                f"TrainerConfig.metric_ctors: {metric.name} is one of the metrics of "
                "every run. Override `name`."
            )
    recent: list[RecentEpisodes | RecentGames] = [
        RecentEpisodes(metric, batch_size, buffer_size) for metric in own
    ]
    if opposition is not None:
        recent.append(RecentGames(opposition, max(buffer_size, _NUM_GAMES)))
    return MetricSet(tracker, metrics, recent)
