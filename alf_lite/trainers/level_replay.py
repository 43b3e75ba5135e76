"""Prioritised level replay: plays those levels again from which most is to be learnt.

Jiang, Grefenstette and Rocktäschel, "Prioritized Level Replay", arXiv:2010.03934. The
environment draws its levels, ``alf_lite.environments.levels``; this hook sets the
probabilities. With the score S_i of a level, C_i the number of episodes when it was
last played and c that of all episodes so far (eq. 2 to 5):

    P_S ∝ (1 / rank(S_i))^{1/β},  P_C ∝ c − C_i,  P = (1 − ρ) P_S + ρ P_C

over the levels that were played; those that never were share ``new_level_share``.

Differences from the paper:

1. Probabilities change between two unrolls and not at every episode.
2. An episode counts when it has ended, with its steps of all unrolls.
3. A level that was never played is chosen with a constant probability, as long as
   there are some; in the paper it falls with the number of levels that are left.
4. Instead of GAE's advantages, the progress of the return may be the score, which is
   how ALF chooses the tasks of a curriculum.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.algorithms.learning.training_batches import TrainingBatch
from alf_lite.config import configurable
from alf_lite.data_structures import StepType
from alf_lite.errors import ConfigError, EnvError
from alf_lite.trainers.hooks import Hook, Training
from alf_lite.utils import summary
from alf_lite.utils.checks import check_choice, check_unused
from alf_lite.utils.devices import moved

LevelScore = Literal["value_loss", "positive_value_loss", "progress"]
_FAST, _SLOW = 0.2, 0.1  # of the two averages of the return, per episode of a level


@configurable
class LevelReplay(Hook):
    """Draws the levels of the training environments by what is to be learnt from them.

    The environments are those of ``LevelSeeds`` or ``TaskMixture``, or any that have
    the method ``set_level_weights`` and report ``level``; the conf must say
    ``create_environment.env_info_keys = ["level"]``. The algorithm computes advantages
    before its updates, as PPO does. Evaluations are not touched.

    Args:
        num_levels: N, as in the environment.
        score: of an episode: ``value_loss`` is the mean of |A_t| by GAE,
            ``positive_value_loss`` that of max(A_t, 0), ``progress`` how much the
            return of the level changes lately. With the intrinsic rewards of an Agent,
            as its RL algorithm sees them.
        temperature: β; 0.1 takes hardly any but the best ones.
        staleness: ρ, the share of those that were not played for long.
        new_level_share: of levels that were never played, as long as there are some.
        priority: see :class:`Hook`.
    """

    on_all_ranks = changes_environments = True

    def __init__(
        self,
        num_levels: int,
        score: LevelScore = "value_loss",
        temperature: float = 0.1,
        staleness: float = 0.1,
        new_level_share: float = 0.5,
        priority: int = 50,
    ) -> None:
        super().__init__(priority)
        check_choice(LevelScore, score=score)
        if num_levels < 1 or not temperature > 0:
            raise ValueError(
                "LevelReplay: num_levels must be at least 1 and temperature positive, "
                f"got {num_levels} and {temperature}"
            )
        for name, share in (("staleness", staleness), ("new_level", new_level_share)):
            if not 0 <= share <= 1:
                raise ValueError(f"LevelReplay: {name} must lie in [0, 1], got {share}")
        if staleness == 1:
            reason = "staleness is 1, and no level is played for its score"
            check_unused(LevelReplay, reason, temperature=temperature)
        self._score = score
        self._temperature = temperature
        self._staleness = staleness
        self._new_level_share = new_level_share
        self.scores = np.full(num_levels, np.nan)  # [N], NaN: never played
        self._played_at = np.zeros(num_levels)  # [N], C_i
        self._num_episodes = 0  # c
        self._averages = np.zeros((2, num_levels))  # of returns, the fast and the slow
        # [3, B]: steps, Σ score and Σ reward of the open episodes
        self._open: np.ndarray | None = None

    def before_episodes(self, training: Training) -> None:
        """Raises ConfigError if there are no levels, or nothing to score them by."""
        algorithm = training.algorithm
        env = algorithm.env
        assert env is not None
        if "level" not in env.env_info_spec:
            raise ConfigError(
                f"LevelReplay: {env.name} does not say which level it plays. Set "
                'create_environment.env_info_keys = ["level"].'
            )
        if not algorithm.on_policy:
            raise ConfigError(
                f"LevelReplay: {algorithm.name} is off-policy and computes no "
                "advantages of its episodes. Use PPOAlgorithm."
            )
        self._set_weights(training)

    def after_iter(self, training: Training) -> None:
        preprocessed = training.algorithm.training_run.preprocessed
        if preprocessed is None:
            raise ConfigError(
                f"LevelReplay: {training.algorithm.name} computes no advantages before "
                "its updates. Use PPOAlgorithm."
            )
        # Without its rows in the mirror, see SymmetricUnroll
        env = training.algorithm.env
        assert env is not None
        own = nest.narrow(preprocessed, 0, env.batch_size)
        self.observe(moved(own, torch.device("cpu")))
        self._set_weights(training)
        if summary.should_record():
            is_played = ~np.isnan(self.scores)
            weights = self.weights()
            summary.scalar("level_replay/played", float(is_played.mean()))
            score = self.scores[is_played].mean() if is_played.any() else 0.0
            summary.scalar("level_replay/score", float(score))
            entropy = -(weights * np.log(np.maximum(weights, 1e-12))).sum()
            summary.scalar("level_replay/effective_levels", float(np.exp(entropy)))

    def observe(self, batch: TrainingBatch) -> None:
        """Takes the episodes of an unroll in.

        Args:
            batch: [B, T+1, ...]; the last row is the first one of the next unroll.
        """
        steps = batch.inputs
        advantage = _advantage(batch.rollout_info)[:, :-1]
        valid = batch.valid[:, :-1].numpy()
        reward = nest.map_structure(Tensor.numpy, steps.reward)[:, 1:]
        level = steps.env_info["level"][:, 1:].numpy().astype(np.int64)
        gain = np.abs(advantage)
        if self._score == "positive_value_loss":
            gain = np.maximum(advantage, 0)
        if reward.ndim == 3:
            reward = reward.sum(-1)
        # [3, B, T+1], what had come before each step of the unroll
        parts = np.stack([valid, np.where(valid, gain, 0), np.where(valid, reward, 0)])
        # A run may go on with other environments, in which new episodes begin.
        if self._open is None or self._open.shape[1] != len(valid):
            self._open = np.zeros((3, len(valid)))
        # What was open there has been cut off, as where a run could not be resumed.
        self._open[:, steps.step_type[:, 0].numpy() == StepType.FIRST] = 0.0
        sums = np.concatenate([self._open[..., None], parts], axis=2).cumsum(2)
        begin = np.zeros_like(self._open)
        is_last = steps.step_type.numpy() == StepType.LAST
        # An agent that waits for the others has LAST steps, of which the first one ends
        for b, t in np.argwhere(is_last[:, 1:] & ~is_last[:, :-1]):
            total = sums[:, b, t + 1] - begin[:, b]
            begin[:, b] = sums[:, b, t + 1]
            self._add_episode(int(level[b, t]), *total.tolist())
        self._open = sums[..., -1] - begin

    def _add_episode(
        self, level: int, num_steps: float, gain: float, episode_return: float
    ) -> None:
        self._num_episodes += 1
        is_new = np.isnan(self.scores[level])
        self._played_at[level] = self._num_episodes
        self.scores[level] = gain / max(num_steps, 1.0)
        if self._score == "progress":
            rates = np.array([1.0, 1.0] if is_new else [_FAST, _SLOW])
            averages = self._averages[:, level]
            averages += rates * (episode_return - averages)
            self.scores[level] = abs(averages[0] - averages[1])

    def weights(self) -> np.ndarray:
        """P, [N]."""
        is_new = np.isnan(self.scores)
        num_levels = len(is_new)
        if is_new.all():
            return np.full(num_levels, 1 / num_levels)
        played = np.flatnonzero(~is_new)
        by_score = np.empty(len(played))
        # Equal scores keep the order of their levels.
        order = np.argsort(-self.scores[played], kind="stable")
        by_score[order] = 1 / np.arange(1, len(played) + 1)
        by_score = by_score ** (1 / self._temperature)
        age = self._num_episodes - self._played_at[played]
        by_age = age if age.any() else np.ones(len(played))
        replay = (1 - self._staleness) * by_score / by_score.sum()
        replay += self._staleness * by_age / by_age.sum()
        share = self._new_level_share if is_new.any() else 0.0
        weights = np.zeros(num_levels)
        weights[played] = (1 - share) * replay
        weights[is_new] = share / max(is_new.sum(), 1)
        return weights

    def _set_weights(self, training: Training) -> None:
        env = training.algorithm.env
        assert env is not None
        try:
            env.set_attribute("set_level_weights", self.weights())
        except EnvError as error:
            raise ConfigError(f"LevelReplay: {error}") from error

    def state_dict(self) -> dict[str, Any]:
        if not self._num_episodes and self._open is None:
            return {}
        return {
            "scores": self.scores.tolist(),
            "played_at": self._played_at.tolist(),
            "num_episodes": self._num_episodes,
            "averages": self._averages.tolist(),
            "open": [] if self._open is None else self._open.tolist(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        scores = np.array(state["scores"])
        if scores.shape != self.scores.shape:
            raise ValueError(f"{len(scores)} levels, now there are {len(self.scores)}")
        self.scores = scores
        self._played_at = np.array(state["played_at"])
        self._num_episodes = int(state["num_episodes"])
        self._averages = np.array(state["averages"])
        self._open = np.array(state["open"]) if state["open"] else None


def _advantage(info: Any) -> np.ndarray:
    """[B, T+1] of what an algorithm has preprocessed.

    Raises:
        ConfigError: if there is none.
    """
    if isinstance(info, Mapping):  # of the parts of an Agent
        info = info["rl"]
    advantage = getattr(info, "advantage", None)
    if not isinstance(advantage, Tensor):
        raise ConfigError(
            "LevelReplay scores levels by advantages, and the algorithm computes none "
            "before its updates. Use PPOAlgorithm."
        )
    return advantage.numpy()
