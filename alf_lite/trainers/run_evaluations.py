"""The evaluations of a training run: when, with which seeds, and what they decide."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import TimeStep
from alf_lite.environments.environment import Environment
from alf_lite.errors import ConfigError
from alf_lite.trainers import train_summaries
from alf_lite.trainers.dataset_evaluator import DatasetEvaluator
from alf_lite.trainers.evaluator import EvalResult, evaluate
from alf_lite.trainers.progress_display import ProgressDisplay
from alf_lite.trainers.schedule import is_evaluation_due
from alf_lite.trainers.signals import StopSignals
from alf_lite.trainers.training_state import RunState
from alf_lite.utils import random_state, summary


class RunEvaluations:
    """Evaluates in environments of its own, on held-out data, or both.

    The best policy is the one with the highest mean return or, if no environments are
    wanted, the one with the lowest loss on the data.

    Args:
        config: of the run.
        create_env: called with ``num_parallel_environments`` and ``seed``.
        seed: of the run.
        signals: end an evaluation at once, because it can take long.
        display: shows how far it is.
    """

    def __init__(
        self,
        config: TrainerConfig,
        create_env: Callable[..., Environment],
        seed: int,
        signals: StopSignals,
        display: ProgressDisplay,
    ) -> None:
        self._config = config
        self._signals = signals
        self._display = display
        self._env: Environment | None = None
        self._data: DatasetEvaluator | None = None
        self.latest: EvalResult | None = None
        if config.evaluate:
            # Building environments may draw random numbers; training must not notice.
            with random_state.preserved():
                self._env = create_env(
                    num_parallel_environments=config.num_eval_environments,
                    seed=random_state.derive_seed(seed, "evaluation"),
                )
            if not self._env.can_step:
                self._env.close()
                raise ConfigError(
                    f"TrainerConfig.evaluate is True, but {self._env.name} cannot be "
                    "stepped: there are no returns without an environment. Set "
                    "evaluate = False and leave early_stop_return out; "
                    "evaluation_buffer_dir evaluates on held-out data."
                )

    def load_data(self, algorithm: RLAlgorithm) -> None:
        """Loads the held-out data, if the config names any."""
        sources = self._config.evaluation_sources
        if sources:
            self._data = DatasetEvaluator(algorithm, self._config, sources)

    @property
    def _is_wanted(self) -> bool:
        return self._env is not None or self._data is not None

    def is_due(self, run: RunState) -> bool:
        """Whether to evaluate after the iterations so far."""
        return self._is_wanted and is_evaluation_due(
            run.iterations, run.last_eval_iteration, self._config.eval_interval
        )

    def is_final_one_missing(self, run: RunState) -> bool:
        """Whether the run ends without an evaluation of what it has learned."""
        return self._is_wanted and run.last_eval_iteration != run.iterations

    def evaluate(self, algorithm: RLAlgorithm, run: RunState) -> EvalResult | None:
        """Evaluates and notes in ``run`` what it means.

        The episodes depend on the seed and the iteration alone, so that a resumed run
        sees the same ones.

        Returns:
            The episodes, if there is an environment, and the losses on data, if there
            are any; None if a signal ended it.
        """
        losses = {}
        if self._data is not None:
            losses = self._evaluate_on_data(self._data, run)
        if self._env is None:
            return EvalResult([], [], 0, {}, losses=losses)
        begin = time.perf_counter()
        self._num_steps = 0
        try:
            result = evaluate(
                algorithm,
                self._env,
                self._config.num_eval_episodes,
                seed=random_state.derive_seed(run.seed, "evaluation", run.iterations),
                on_step=self._on_step,
            )
        except _InterruptedError:
            return None
        train_summaries.summarize_evaluation(
            result, run.env_steps, time.perf_counter() - begin
        )
        result = result._replace(losses=losses)
        self.latest = result
        run.last_eval_iteration = run.iterations
        if run.iterations > 0:  # what has learned nothing is never the best
            if self._reaches_threshold(result.mean):
                run.early_stop_score = result.mean
            if run.best_score is None or result.mean > run.best_score:
                run.best_score, run.best_iteration = result.mean, run.iterations
        return result

    def _evaluate_on_data(
        self, data: DatasetEvaluator, run: RunState
    ) -> dict[str, float]:
        losses = data.evaluate()
        for name, value in losses.items():
            summary.scalar(f"eval_data/{name}", value)
        if self._env is not None:
            return losses
        run.last_eval_iteration = run.iterations
        score = -losses["loss"]
        is_better = run.best_score is None or score > run.best_score
        if run.iterations > 0 and is_better and math.isfinite(score):
            run.best_score, run.best_iteration = score, run.iterations
        return losses

    def is_threshold_reached(self, run: RunState) -> bool:
        """Whether an evaluation has reached ``early_stop_return``, as it is now."""
        return self._reaches_threshold(run.early_stop_score)

    def close(self) -> None:
        if self._env is not None:
            self._env.close()

    def _reaches_threshold(self, score: float | None) -> bool:
        threshold = self._config.early_stop_return
        return score is not None and threshold is not None and score >= threshold

    def _on_step(self, time_step: TimeStep) -> None:
        if self._signals.received is not None:
            raise _InterruptedError
        self._num_steps += len(time_step.step_type)
        self._display.show_evaluation(self._num_steps)


class _InterruptedError(Exception):
    """A signal came during an evaluation."""
