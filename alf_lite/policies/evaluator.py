"""Evaluates a policy without bias towards short episodes, and without side effects."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from alf_lite import nest
from alf_lite.algorithms.acting import PredictActor, eval_mode
from alf_lite.algorithms.rl_contract import RLContract
from alf_lite.data_structures import TimeStep
from alf_lite.environments.environment import Environment
from alf_lite.metrics.episode_metric import EpisodeFold, EpisodeMetric
from alf_lite.nest import path_parts
from alf_lite.utils import game_results, random_state
from alf_lite.utils.game_results import GAME_KEYS, Opposition, SeatRecord
from alf_lite.utils.statistics import bootstrap_ci95

Nest = Any
_logger = logging.getLogger(__name__)

_MANY_STEPS = 100_000  # of one episode, which may have no end at all


class PlayedGame(NamedTuple):
    """Against whom an episode was played, and what came of it."""

    opponent: str
    seat: int  # of the policy, from 0 on
    outcome: float  # what the policy has won


class EvalEpisode(NamedTuple):
    """One episode of an evaluation."""

    environment: int  # in which it was played, 0 … B-1
    number: int  # of the environment's episodes since the reset, from 0 on
    seed: int | None  # of that reset: the three together say which episode it was
    episode_return: float  # undiscounted, weighted if the reward has D dimensions
    length: int  # environment steps
    info: dict[str, float]  # ``mean/KEY`` and ``last/KEY``, see ``evaluate``
    return_vector: list[float] | None = None  # [D]
    metrics: Mapping[str, float] = MappingProxyType({})  # TrainerConfig.metric_ctors
    game: PlayedGame | None = None  # where episodes are games against opponents


class Video(NamedTuple):
    """What was recorded."""

    path: str
    episodes: Mapping[str, EvalEpisode]  # worst, median, best, …
    gif: bytes  # the same, small
    gif_size: tuple[int, int]  # its height and width


class EvalResult(NamedTuple):
    """Whole episodes, ordered by environment and then by time, and held-out data.

    A run that is evaluated on data alone has no episodes: then their means are NaN.
    """

    returns: list[float]  # undiscounted; for a reward of D dimensions the weighted sum
    lengths: list[int]  # environment steps
    # Of these episodes; what fast environments do beyond is left out
    num_env_steps: int
    info: dict[str, float]  # mean over the episodes, see ``evaluate``
    return_vectors: list[list[float]] | None = None  # [N, D], for D dimensions
    # On TrainerConfig.evaluation_buffer_dir: "loss" and its parts
    losses: Mapping[str, float] = MappingProxyType({})
    episodes: Sequence[EvalEpisode] = ()  # the same, one by one
    iterations: int = 0  # of training: whose policy it was
    env_steps: int = 0  # of training
    num_updates: int = 0  # of training; 0: nothing was learned
    metrics: Mapping[str, float] = MappingProxyType({})  # own ones, the episodes' means
    video: Video | None = None  # if one was recorded
    games: Sequence[SeatRecord] = ()  # by opponent and seat, if episodes are games

    @property
    def numbers(self) -> dict[str, float]:
        """All of them by name, as ``eval/NAME`` in docs/logged_metrics.md."""
        if not self.returns:
            return dict(self.losses)
        return {
            "AverageReturn": self.mean,
            "StdReturn": self.std,
            "MinReturn": self.min,
            "MaxReturn": self.max,
            "AverageEpisodeLength": self.mean_length,
            **self.mean_parts,
            **{f"EnvInfo/{name}": value for name, value in self.info.items()},
            **{
                f"Games/{name}": value
                for name, value in game_results.named_results(self.games).items()
            },
            **self.metrics,
            **self.losses,
        }

    @property
    def score(self) -> float:
        """What is best where it is largest.

        In games against opponents it is the mean outcome, in which every opponent and
        every seat counts alike, and elsewhere the mean return; on data alone the loss
        with a minus sign.
        """
        if not self.returns:
            return -self.losses["loss"]
        return game_results.score_of(self.games) if self.games else self.mean

    @property
    def mean(self) -> float:
        return float(np.mean(self.returns or math.nan))

    @property
    def mean_parts(self) -> dict[str, float]:
        """``AverageReturn/d`` of every part of a reward of several dimensions."""
        means = np.mean(self.return_vectors or [[]], axis=0).tolist()
        return {f"AverageReturn/{d}": mean for d, mean in enumerate(means)}

    @property
    def std(self) -> float:
        """Population standard deviation (divided by N)."""
        return float(np.std(self.returns or math.nan))

    @property
    def min(self) -> float:
        return min(self.returns, default=math.nan)

    @property
    def max(self) -> float:
        return max(self.returns, default=math.nan)

    @property
    def mean_length(self) -> float:
        return float(np.mean(self.lengths or math.nan))

    @property
    def ci95(self) -> tuple[float, float] | None:
        """95 % confidence interval of the mean return; None for a single episode."""
        return bootstrap_ci95(self.returns)


class EpisodeRecording(Protocol):
    """Makes videos of evaluations."""

    @property
    def every(self) -> int: ...  # evaluations from one to the next

    def check(self, env: Environment) -> None:
        """Raises ConfigError if nothing of these environments can be drawn."""

    def record(
        self,
        algorithm: RLContract,
        env: Environment,
        result: EvalResult,
        path: str,
        on_step: Callable[[TimeStep], None],
    ) -> Video:
        """Plays episodes of an evaluation again, and writes them to a file."""
        ...


def evaluate(
    algorithm: RLContract,
    env: Environment,
    num_episodes: int,
    *,
    seed: int | None = None,
    on_step: Callable[[TimeStep], None] | None = None,
    metrics: Sequence[EpisodeMetric] = (),
) -> EvalResult:
    """Runs ``num_episodes`` whole episodes with ``predict_step``.

    Every environment contributes a fixed number of episodes, its first ones. Taking
    whichever episodes finish first would favour short ones. Environments that are done
    no longer count, and are not stepped where that can be had (``Environment.freeze``);
    what a batch that moves as one does beyond is thrown away.

    Nothing of the algorithm changes: the random number generators, the training mode of
    every module and the statistics of normalizers are afterwards as they were before,
    and no summary is written.

    Args:
        algorithm: acts; how greedily is its own matter
            (``TrainerConfig.epsilon_greedy``).
        env: the evaluation's own, never the one being trained in. With fewer episodes
            than environments only the first ones count.
        num_episodes: at least 1.
        seed: of the environments and of what is drawn here. None leaves the
            environments' streams as they are.
        on_step: called with every time step, FIRST steps included; for recording.
        metrics: of one's own.

    Returns:
        The episodes. ``info`` holds for every number KEY of env_info ``mean/KEY``, the
        mean over the steps of an episode, and ``last/KEY``, its value at the end.
        ``games`` holds what it tells of games against opponents.
    """
    quota = quotas(env.batch_size, num_episodes)
    tally = _Tally(algorithm, env, quota, seed, metrics)
    with random_state.preserved(), torch.inference_mode(), eval_mode(algorithm):
        if seed is not None:
            random_state.seed_everything(seed)
        time_step = env.reset(seed)
        if not quota.all():
            env.freeze(tally.is_done)
        actor = PredictActor(algorithm, env.batch_size)
        while True:
            if on_step is not None:
                on_step(time_step)
            if tally.add(time_step):
                if tally.is_done.all():
                    return tally.result()
                env.freeze(tally.is_done)
            time_step = env.step(actor.act(time_step))


def quotas(num_environments: int, num_episodes: int) -> np.ndarray:
    """How many episodes each environment contributes: [B], as even as possible."""
    check_num_episodes(num_episodes)
    each, rest = divmod(num_episodes, num_environments)
    return each + (np.arange(num_environments) < rest)


def check_num_episodes(num_episodes: Any) -> None:
    """Raises ValueError, if it is not the number of episodes."""
    is_integer = isinstance(num_episodes, int | np.integer)
    if not is_integer or isinstance(num_episodes, bool) or num_episodes < 1:
        raise ValueError(
            f"num_episodes must be an integer, at least 1, got {num_episodes!r}"
        )


class _Tally:
    """Adds up the episodes of every environment until its quota is full."""

    def __init__(
        self,
        algorithm: RLContract,
        env: Environment,
        quota: np.ndarray,
        seed: int | None,
        metrics: Sequence[EpisodeMetric],
    ) -> None:
        weights = algorithm.reward_weights  # [D] or None
        self._reward_weights = None if weights is None else weights.double().cpu()
        self._quota = quota
        self._seed = seed
        self._env_name = env.name
        self._opposition: Opposition | None = env.opposition
        self._games: list[list[float]] = []  # as GAME_KEYS
        self._folds = [EpisodeFold(metric, len(quota)) for metric in metrics]
        num_environments = len(quota)
        self._finished = np.zeros(num_environments, dtype=np.int64)
        self._length = np.zeros(num_environments, dtype=np.int64)
        self._num_unwatched = _MANY_STEPS  # until an episode may be as long
        self._was_last = np.zeros(num_environments, dtype=bool)
        self._return: np.ndarray | None = None  # [B] or [B, D], float64
        self._info_sum: dict[str, np.ndarray] = {}
        self._episodes: list[list[EvalEpisode]] = [[] for _ in quota]

    @property
    def is_done(self) -> np.ndarray:
        """[B], whose quota is full."""
        return self._finished >= self._quota

    def add(self, time_step: TimeStep) -> bool:
        """Counts a step of each environment; True if a quota is full by it."""
        is_first = time_step.is_first().cpu().numpy()
        reward = time_step.reward.cpu().numpy().astype(np.float64)
        info = _scalars(time_step.env_info)
        game = {key: info.pop(key) for key in GAME_KEYS if self._opposition is not None}
        if self._return is None:
            self._return = np.zeros_like(reward)
            self._info_sum = {path: np.zeros(len(is_first)) for path in info}
        # A FIRST step belongs to no transition: its reward and info do not count.
        self._return[is_first] = 0.0
        self._return[~is_first] += reward[~is_first]
        self._length = np.where(is_first, 0, self._length + 1)
        for path, value in info.items():
            total = self._info_sum[path]
            self._info_sum[path] = np.where(is_first, 0.0, total + value)
        for fold in self._folds:
            fold.add_step(time_step)
        is_last = time_step.is_last().cpu().numpy()
        is_any_full = False
        # An agent that waits for the others has LAST steps, of which the first one ends
        ends, self._was_last = is_last & ~self._was_last, is_last
        for b in np.flatnonzero(ends & (self._finished < self._quota)):
            episode = self._episode(int(b), info)
            played = [float(game[key][b]) for key in GAME_KEYS if key in game]
            self._episodes[b].append(episode._replace(game=self._game(played)))
            self._finished[b] += 1
            is_any_full |= bool(self._finished[b] == self._quota[b])
        self._num_unwatched -= 1
        if self._num_unwatched == 0:
            self._watch_lengths()
        return is_any_full

    def _watch_lengths(self) -> None:
        """Says once that an episode has gone on for very long, if one has."""
        lengths = np.where(self.is_done | self._was_last, 0, self._length)
        b = int(lengths.argmax())
        self._num_unwatched = _MANY_STEPS - int(lengths[b])
        if self._num_unwatched <= 0:  # and is never 0 again
            self._num_unwatched = -1
            _logger.warning(
                "Environment %d of %s was stepped %s times without the end of its "
                "episode. Without a time limit it may never come: use gymnasium."
                "wrappers.TimeLimit or create_environment(..., max_episode_steps=...).",
                b,
                self._env_name,
                f"{_MANY_STEPS:,}",
            )

    def _game(self, played: list[float]) -> PlayedGame | None:
        """Counts a game, as GAME_KEYS, if it is one against somebody."""
        if self._opposition is None or played[0] < 0:
            return None
        self._games.append(played)
        opponent, seat, outcome = played
        name = self._opposition.name_of(int(opponent))
        return PlayedGame(name, int(seat), outcome)

    def _episode(self, b: int, info: dict[str, np.ndarray]) -> EvalEpisode:
        """The episode of environment b that ends now, with these infos [B]."""
        assert self._return is not None
        length = int(self._length[b])
        total, vector = self._return[b], None
        if self._reward_weights is not None:
            vector = total.tolist()
            total = total @ self._reward_weights.numpy()
        means = {f"mean/{p}": float(s[b]) / length for p, s in self._info_sum.items()}
        last = {f"last/{p}": float(value[b]) for p, value in info.items()}
        return EvalEpisode(
            environment=b,
            number=int(self._finished[b]),
            seed=self._seed,
            episode_return=float(total),
            length=length,
            info={**means, **last},
            return_vector=vector,
            metrics={f.metric.name: float(f.current()[b]) for f in self._folds},
        )

    def result(self) -> EvalResult:
        episodes = [episode for row in self._episodes for episode in row]
        games: Sequence[SeatRecord] = ()
        if self._opposition is not None and self._games:
            played, name_of = np.array(self._games), self._opposition.name_of
            games = game_results.seat_records(played, name_of)
        vectors = None
        if self._reward_weights is not None:
            vectors = [e.return_vector for e in episodes if e.return_vector is not None]
        lengths = [episode.length for episode in episodes]
        means = [
            {key: float(np.mean([d[key] for d in dicts])) for key in dicts[0]}
            for dicts in ([e.info for e in episodes], [e.metrics for e in episodes])
        ]
        return EvalResult(
            returns=[episode.episode_return for episode in episodes],
            lengths=lengths,
            num_env_steps=sum(lengths),
            info=means[0],
            metrics=means[1],
            return_vectors=vectors,
            episodes=tuple(episodes),
            games=games,
        )


def _scalars(env_info: Nest) -> dict[str, np.ndarray]:
    """Path -> [B] float64, of those leaves that are one number per environment."""
    return {
        "/".join(path_parts(path)): leaf.cpu().numpy().astype(np.float64)
        for path, leaf in nest.flatten_with_path(env_info)
        if leaf.ndim == 1
    }
