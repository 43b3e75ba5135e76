"""Hooks that many runs want: the best model, early stops, a curriculum."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

from alf_lite.config import configurable
from alf_lite.errors import ConfigError, EnvError, did_you_mean
from alf_lite.policies.evaluator import EvalResult
from alf_lite.trainers.hooks import Hook, Training
from alf_lite.utils import summary
from alf_lite.utils.checks import check_unused
from alf_lite.utils.ranks import ranks

_logger = logging.getLogger(__name__)


@configurable
class BestModel(Hook):
    """Keeps the policy that is the best by another number than the mean return.

    It is what ``--checkpoint=best`` loads, and what
    ``TrainerConfig.early_stop_patience`` waits for.

    Args:
        score: the number, one of ``EvalResult.numbers``: ``EnvInfo/last/is_success``,
            ``loss``, the name of a metric of one's own, ...
        lower_is_better: whether it is.
        priority: see :class:`Hook`.
    """

    def __init__(
        self,
        score: str = "AverageReturn",
        lower_is_better: bool = False,
        priority: int = 50,
    ) -> None:
        super().__init__(priority)
        self._name = score
        self._sign = -1.0 if lower_is_better else 1.0
        self._goes_on = False

    def before_train(self, training: Training) -> None:
        _check_evaluates(self, training)
        run = training.run
        if run.best_score is not None and not self._goes_on:
            _logger.warning(
                "BestModel: the best policy so far, that of iteration %s, has %.4g by "
                "another number, or of an earlier version. Scores by %s are compared "
                "with that, too.",
                run.best_iteration,
                run.best_score,
                self._name,
            )

    def state_dict(self) -> dict[str, Any]:
        return {"score": self._name, "lower_is_better": self._sign < 0}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state != self.state_dict():
            raise ValueError(
                f"the best policy so far is that by {state}, and scores by "
                f"{self.state_dict()} do not compare with that"
            )
        self._goes_on = True

    def score(self, result: EvalResult) -> float:
        return self._sign * number_of(result.numbers, self._name, type(self).__name__)


@configurable
class EarlyStop(Hook):
    """Ends the run by another number of the evaluations than the mean return.

    For the mean return itself there are ``TrainerConfig.early_stop_return`` and
    ``early_stop_patience``.

    Args:
        score: the number, one of ``EvalResult.numbers``.
        threshold: end as soon as it is reached; None: no threshold.
        patience: end after so many evaluations in a row without a better one; None: go
            on.
        lower_is_better: whether it is.
        priority: see :class:`Hook`.
    """

    def __init__(
        self,
        score: str = "AverageReturn",
        threshold: float | None = None,
        patience: int | None = None,
        lower_is_better: bool = False,
        priority: int = 50,
    ) -> None:
        super().__init__(priority)
        if threshold is None and patience is None:
            raise ValueError("EarlyStop: give a threshold, a patience, or both")
        if patience is not None and patience < 1:
            raise ValueError(f"EarlyStop: patience must be at least 1, got {patience}")
        self._name = score
        self._threshold = threshold
        self._patience = patience
        self._sign = -1.0 if lower_is_better else 1.0
        self._best = -math.inf
        self._num_without_better = 0

    def before_train(self, training: Training) -> None:
        _check_evaluates(self, training)
        self._stop_if_due(training)  # it was, in the run that is resumed

    def after_eval(self, training: Training, result: EvalResult) -> None:
        if result.num_updates == 0:
            return
        score = self._sign * number_of(result.numbers, self._name, "EarlyStop")
        self._num_without_better += 1
        if self._best < score < math.inf:  # which NaN is not
            self._best, self._num_without_better = score, 0
        self._stop_if_due(training)

    def _stop_if_due(self, training: Training) -> None:
        best, threshold = self._best, self._threshold
        if threshold is not None and best >= self._sign * threshold:
            training.request_stop(
                f"EarlyStop: {self._name} {self._sign * best:.4g} reaches "
                f"{threshold:.4g}"
            )
        elif self._patience is not None and self._num_without_better >= self._patience:
            training.request_stop(
                f"EarlyStop: {self._name} did not get better than "
                f"{self._sign * best:.4g} in {self._num_without_better} evaluations"
            )

    def state_dict(self) -> dict[str, Any]:
        return {
            "best": self._best,
            "num_without_better": self._num_without_better,
            "score": self._name,
            "lower_is_better": self._sign < 0,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        mine = {name: self.state_dict()[name] for name in ("score", "lower_is_better")}
        before = {name: state.get(name, mine[name]) for name in mine}
        if before != mine:
            _logger.warning(
                "EarlyStop: until here it looked at %s, and now at %s: it begins anew.",
                before,
                mine,
            )
            return
        best = float(state["best"])
        self._best = best if math.isfinite(best) else -math.inf
        self._num_without_better = int(state["num_without_better"])


@configurable
class Curriculum(Hook):
    """Makes the training environments harder, or changes settings, as it gets better.

    Evaluations are not touched: they tell how good the policy is at what the conf says.
    An environment that takes a new setting at its next reset is continued exactly by a
    run that is resumed; in one that takes it at once, new episodes begin then. Averages
    of training episodes begin anew with every level, with those that begin there.

    Args:
        levels: what each level sets; the first one, from the begin on, all that later
            ones set, so that no name is found missing at a later level. ``env.NAME`` is
            an attribute of every training environment, or a method that takes the
            value; ``algorithm.NAME`` one of the algorithm.
        thresholds: of the score, at which level 1, 2, … begins.
        score: the number that is compared. By default that of the latest training
            episodes, any of ``Metrics/``; with ``eval/`` in front, of evaluations.
        min_episodes: training episodes of a level before it is judged.
        interval: iterations between two looks at the training episodes.
        priority: see :class:`Hook`.
    """

    on_all_ranks = True

    def __init__(
        self,
        levels: Sequence[Mapping[str, Any]],
        thresholds: Sequence[float],
        score: str = "AverageReturn",
        min_episodes: int = 100,
        interval: int = 10,
        priority: int = 50,
    ) -> None:
        super().__init__(priority)
        if len(levels) != len(thresholds) + 1:
            raise ValueError(
                f"Curriculum: {len(levels)} levels need {len(levels) - 1} thresholds, "
                f"got {len(thresholds)}"
            )
        names = [name for level in levels for name in level]
        self.changes_environments = any(name.startswith("env.") for name in names)
        for name in names:
            if not name.startswith(("env.", "algorithm.")):
                raise ValueError(
                    f"Curriculum: {name} must begin with 'env.' or 'algorithm.'"
                )
            if name not in levels[0]:
                raise ConfigError(
                    f"Curriculum: a later level sets {name}, and the first one does "
                    "not. Give its first value there: the names of the first level are "
                    "checked before the run."
                )
        self._levels = levels
        self._thresholds = thresholds
        self._name = score
        self._min_episodes = min_episodes
        self._interval = max(interval, 1)
        self.level = 0
        self._num_episodes_before = 0  # those of earlier levels
        self._of_evaluations = score.startswith("eval/")
        if self._of_evaluations:
            reason = "a score of evaluations is looked at after each of them"
            check_unused(Curriculum, reason, interval=interval)
        self._evaluated: dict[str, float] = {}  # by the first rank, in this iteration

    def before_episodes(self, training: Training) -> None:
        """Raises ConfigError if something cannot be set."""
        for level in self._levels[: self.level + 1]:
            self._apply(training, level)

    def before_train(self, training: Training) -> None:
        if self._of_evaluations:
            _check_evaluates(self, training)
        else:  # it raises of a name that there is not
            numbers = training.algorithm.metrics.all_results()
            number_of(numbers, self._name, "Curriculum")

    def after_eval(self, training: Training, result: EvalResult) -> None:
        if self._of_evaluations and result.iterations:
            name = self._name.removeprefix("eval/")
            score = number_of(result.numbers, name, "Curriculum")
            self._evaluated = {self._name: float(score)}

    def after_iter(self, training: Training) -> None:
        if self._of_evaluations:
            numbers = ranks.broadcast_data(self._evaluated)
            self._evaluated = {}
            if numbers:
                self._look(training, numbers)
        elif training.run.iterations % self._interval == 0:
            self._look(training, training.algorithm.metrics.all_results())
        if summary.should_record():
            summary.scalar("curriculum/level", self.level)

    def _look(self, training: Training, numbers: Mapping[str, float]) -> None:
        num_episodes = training.algorithm.metrics.tracker.num_episodes
        if self.level == len(self._thresholds):
            return
        if num_episodes - self._num_episodes_before < max(self._min_episodes, 1):
            return
        score = number_of(numbers, self._name, "Curriculum")
        if not self._thresholds[self.level] <= score < math.inf:  # nor is it NaN
            return
        self.level += 1
        # Episodes that are open now have begun at the old level: they end as any, but
        # are in no average.
        env = training.algorithm.env
        num_open = env.batch_size * ranks.size if env is not None else 0
        self._num_episodes_before = num_episodes + num_open
        training.algorithm.metrics.forget_episodes()
        training.algorithm.metrics.drop_open_episodes()
        _logger.warning(
            "Curriculum: %s %.4g reaches %.4g, level %d of %d begins: %s",
            self._name,
            score,
            self._thresholds[self.level - 1],
            self.level,
            len(self._thresholds),
            dict(self._levels[self.level]),
        )
        self._apply(training, self._levels[self.level])

    def _apply(self, training: Training, level: Mapping[str, Any]) -> None:
        for name, value in level.items():
            kind, _, attribute = name.partition(".")
            if kind == "algorithm":
                _set(training.algorithm, attribute, value)
                continue
            env = training.algorithm.env
            assert env is not None, name
            try:
                env.set_attribute(attribute, value)
            except EnvError as error:
                raise ConfigError(f"Curriculum: {error}") from error

    def state_dict(self) -> dict[str, Any]:
        return {
            "level": self.level,
            "num_episodes_before": self._num_episodes_before,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        level = int(state["level"])
        if not 0 <= level < len(self._levels):
            raise ValueError(f"level {level} of {len(self._levels)} levels")
        self.level = level
        self._num_episodes_before = int(state["num_episodes_before"])


def number_of(numbers: Mapping[str, float], name: str, asker: str) -> float:
    """One of the numbers of an evaluation, or of the metrics.

    Raises:
        ConfigError: naming those that there are.
    """
    if name in numbers:
        return numbers[name]
    raise ConfigError(
        f"{asker}: there is no {name}.{did_you_mean(name, numbers)} There are "
        f"{', '.join(sorted(numbers))}."
    )


def _check_evaluates(hook: Hook, training: Training) -> None:
    config = training.algorithm.config
    if not (config.evaluate or config.evaluation_sources) or not config.eval_interval:
        raise ConfigError(
            f"{type(hook).__name__} looks at evaluations, and there are none during "
            "the training: set TrainerConfig.evaluate = True and eval_interval."
        )


def _set(algorithm: Any, path: str, value: Any) -> None:
    """Sets an attribute that there is, such as ``predict_epsilon``."""
    acting = algorithm.rl_algorithm
    if path == "predict_epsilon" and not acting.explores_by_epsilon:
        raise ConfigError(
            f"Curriculum: predict_epsilon has no effect: {type(acting).__name__} takes "
            "its best action in every evaluation. Leave it out"
        )
    *owners, name = path.split(".")
    target = algorithm
    for part in owners:
        target = getattr(target, part, None)
    if not hasattr(target, name):
        raise ConfigError(f"Curriculum: {type(algorithm).__name__} has no {path}")
    if callable(found := getattr(target, name)):
        found(value)
    else:
        setattr(target, name, value)
