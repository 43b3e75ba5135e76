"""Metrics of one's own: a number for every episode, folded over its steps."""

from __future__ import annotations

import collections
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from alf_lite.data_structures import StepType, TimeStep
from alf_lite.errors import CheckpointError, ConfigError
from alf_lite.metrics.episode_sums import RecentRows

Reduction = Literal["mean", "sum", "max", "min", "last"]

_BEGIN = {"mean": 0.0, "sum": 0.0, "max": -math.inf, "min": math.inf, "last": math.nan}
_FOLDS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "mean": np.add,
    "sum": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "last": lambda _, value: value,
}


class EpisodeMetric(ABC):
    """A number for every episode; ``TrainerConfig.metric_ctors`` names subclasses.

    class Height(EpisodeMetric):
        def value(self, time_step):
            return time_step.observation[..., 2]

    A run reports its mean over the latest training episodes and over the episodes of
    each evaluation.

    Args:
        reduction: what makes one number of the steps of an episode. Its FIRST step,
            which belongs to no transition, does not count.
    """

    def __init__(self, reduction: Reduction = "mean") -> None:
        if reduction not in _FOLDS:
            raise ValueError(
                f"reduction must be one of {', '.join(_FOLDS)}, got {reduction!r}"
            )
        self.reduction = reduction

    @property
    def name(self) -> str:
        """What summaries call it."""
        return type(self).__name__

    @abstractmethod
    def value(self, time_step: TimeStep) -> Tensor | np.ndarray:
        """The numbers of these steps.

        Args:
            time_step: [T, B, ...] or [B, ...], as the environment returned it.

        Returns:
            [T, B] or [B].
        """


def build_episode_metrics(ctors: Sequence[Callable[[], Any]]) -> list[EpisodeMetric]:
    """The metrics of ``TrainerConfig.metric_ctors``.

    Raises:
        ConfigError: if one is something else, or two have the same name.
    """
    metrics = [ctor() for ctor in ctors]
    for metric in metrics:
        if not isinstance(metric, EpisodeMetric):
            raise ConfigError(
                "TrainerConfig.metric_ctors must build EpisodeMetrics, got a "
                f"{type(metric).__name__}"
            )
    count = collections.Counter(metric.name for metric in metrics)
    twice = [name for name, number in count.items() if number > 1]
    if twice:
        raise ConfigError(
            f"TrainerConfig.metric_ctors: {len(metrics)} metrics, of which several are "
            f"called {twice[0]}. Override `name` in one of them."
        )
    return metrics


class EpisodeFold:
    """What a metric says of the open episodes of B environments.

    Args:
        metric: of one's own.
        batch_size: B.
    """

    def __init__(self, metric: EpisodeMetric, batch_size: int) -> None:
        self.metric = metric
        self._fold = _FOLDS[metric.reduction]
        self.folded = np.zeros(batch_size)
        # NaN: there is none. Known from a FIRST step on; an agent that waits for others
        # goes on with LAST steps.
        self.lengths = np.full(batch_size, math.nan)

    def add(self, time_step: TimeStep, env_ids: np.ndarray) -> np.ndarray:
        """Takes in [T, B, ...] steps of these environments.

        Returns:
            The numbers of the episodes that have ended, the first one first.
        """
        values = self._values(time_step)
        step_types = time_step.step_type.cpu().numpy()
        ended = []
        for step_type, value in zip(step_types, values, strict=True):
            self._add(step_type, value, env_ids)
            is_end = (step_type == StepType.LAST) & ~np.isnan(self.lengths[env_ids])
            if is_end.any():
                ended.append(self.current()[env_ids][is_end])
                self.lengths[env_ids[is_end]] = math.nan
        return np.concatenate(ended) if ended else np.zeros(0)

    def add_step(self, time_step: TimeStep) -> None:
        """Takes in one step [B, ...] of all environments."""
        step_type = time_step.step_type.cpu().numpy()
        self._add(step_type, self._values(time_step), slice(None))

    def current(self) -> np.ndarray:
        """[B], the number of each episode so far."""
        if self.metric.reduction != "mean":
            return self.folded
        return self.folded / np.maximum(self.lengths, 1)

    def drop_open(self) -> None:
        """Forgets the open episodes: their ends are not counted."""
        self.lengths[:] = math.nan

    def _add(self, step_type: np.ndarray, value: np.ndarray, env_ids: Any) -> None:
        is_first = step_type == StepType.FIRST
        folded = self._fold(self.folded[env_ids], value)
        begin = _BEGIN[self.metric.reduction]
        self.folded[env_ids] = np.where(is_first, begin, folded)
        self.lengths[env_ids] = np.where(is_first, 0, self.lengths[env_ids] + 1)

    def _values(self, time_step: TimeStep) -> np.ndarray:
        values = torch.as_tensor(self.metric.value(time_step)).detach().cpu()
        if values.shape != time_step.step_type.shape:
            raise ConfigError(
                f"{self.metric.name}.value: expected one number per step, "
                f"{list(time_step.step_type.shape)}, got {list(values.shape)}"
            )
        return values.double().numpy()


class RecentEpisodes:
    """The mean of a metric over the latest training episodes.

    Args:
        metric: of one's own.
        batch_size: number of environments.
        buffer_size: number of episodes.
    """

    def __init__(
        self, metric: EpisodeMetric, batch_size: int, buffer_size: int
    ) -> None:
        self.name = metric.name
        self._fold = EpisodeFold(metric, batch_size)
        self._recent = RecentRows(buffer_size, 1)
        self._elsewhere = np.zeros(2)

    def result(self) -> float:
        """NaN while no episode has ended."""
        return float(self._recent.mean(*self._elsewhere)[0])

    def shares(self) -> np.ndarray:
        """[2], what the other ranks are told: the number of episodes, and their sum."""
        return np.array([len(self._recent), self._recent.sum()[0]])

    def take_in(self, elsewhere: np.ndarray) -> None:
        """Counts the episodes of the other ranks, [2]."""
        self._elsewhere = elsewhere

    def observe(self, time_step: TimeStep, env_ids: np.ndarray) -> None:
        """Takes in raw time steps [T, B, ...] of these environments [B]."""
        ended = self._fold.add(time_step, env_ids)
        # In some it may not be known.
        self._recent.append(ended[~np.isnan(ended)][:, None])

    def drop_open_episodes(self) -> None:
        self._fold.drop_open()

    def forget_episodes(self) -> None:
        self._recent.clear()

    def reset(self) -> None:
        self._fold.drop_open()
        self._recent.clear()

    def state_dict(self) -> dict[str, Any]:
        return {
            "num_recorded": self._recent.num_appended,
            **{name: torch.tensor(array) for name, array in self._arrays().items()},
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues; CheckpointError if the shapes differ, then nothing has changed."""
        arrays = self._arrays()
        for name, array in arrays.items():
            if tuple(state_dict[name].shape) != array.shape:
                raise CheckpointError(
                    f"metrics: {self.name}: '{name}' was saved with the shape "
                    f"{tuple(state_dict[name].shape)}, now it is {array.shape}"
                )
        for name, array in arrays.items():
            array[...] = state_dict[name].numpy()
        self._recent.num_appended = int(state_dict["num_recorded"])

    def _arrays(self) -> dict[str, np.ndarray]:
        return {
            "recorded": self._recent.rows,
            "folded": self._fold.folded,
            "lengths": self._fold.lengths,
        }
