"""The evaluations of a training run: when, with which seeds, and what they decide."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from alf_lite.algorithms.parts.reward_weights import learns_reward_weights
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import TimeStep
from alf_lite.environments.environment import Environment
from alf_lite.metrics.episode_metric import EpisodeMetric, build_episode_metrics
from alf_lite.policies.evaluator import EpisodeRecording, EvalResult
from alf_lite.runs.training_state import EvaluatedPolicy, RunState
from alf_lite.trainers import train_summaries
from alf_lite.trainers.dataset_evaluator import DatasetEvaluator
from alf_lite.trainers.evaluation_process import EvaluationProcess
from alf_lite.trainers.evaluation_worker import EvalParts, EvalRequest, create_eval_env
from alf_lite.trainers.signals import StopSignals
from alf_lite.unrollers.actor_copy import without_evaluation
from alf_lite.utils import random_state, summary
from alf_lite.utils.ranks import ranks

_logger = logging.getLogger(__name__)

_WAIT_SECONDS = 0.1  # for a result, between two looks at the signals


class RunEvaluations:
    """Evaluates in environments of its own, on held-out data, or both.

    With ``TrainerConfig.async_eval`` the episodes are played by another process, and
    the result comes some iterations after its evaluation began. An evaluation that is
    due while another one goes on is left out.

    Args:
        config: of the run.
        create_env: called with ``num_parallel_environments`` and ``seed``.
        seed: of the run.
        signals: end an evaluation at once, because it can take long.
        show: called with the numbers of steps and of episodes so far, and of those that
            are wanted.
        score: of a result, larger is better; decides which policy is the best. None
            leaves that to ``EvalResult.score``.
        recording: of videos, if any are wanted.
    """

    def __init__(
        self,
        config: TrainerConfig,
        create_env: Callable[..., Environment],
        seed: int,
        signals: StopSignals,
        show: Callable[[int, int, int], None],
        score: Callable[[EvalResult], float | None],
        recording: EpisodeRecording | None = None,
    ) -> None:
        if not ranks.is_first:  # which evaluates for all
            config = without_evaluation(config)
        self._config = config
        self._create_env = create_env
        self._env_seed = random_state.derive_seed(seed, "evaluation")
        self._signals = signals
        self._show = show
        self._score = score
        self._recording = recording
        self._env: Environment | None = None
        self._metrics: list[EpisodeMetric] = []
        self._data: DatasetEvaluator | None = None
        self._process: EvaluationProcess | None = None
        self._begun: _Begun | None = None
        self._has_warned = False
        self.latest: EvalResult | None = None
        if config.evaluate and not config.async_eval:
            self._metrics = build_episode_metrics(config.metric_ctors)
            # Building environments may draw random numbers; training must not notice.
            with random_state.preserved():
                self._env = create_eval_env(
                    config, create_env, self._env_seed, recording
                )

    def set_up(self, algorithm: RLAlgorithm) -> None:
        """Loads the held-out data and starts the process, if the config wants them."""
        self._returns_compare = not learns_reward_weights(algorithm)
        sources = self._config.evaluation_sources
        if sources:
            self._data = DatasetEvaluator(algorithm, self._config, sources)
        if self._config.evaluate and self._config.async_eval:
            policy = algorithm.state_dict()
            self._process = EvaluationProcess(
                self._config, self._create_env, self._env_seed, policy, self._recording
            )
            # What is wrong with it, and what of the configuration it uses, is known
            # before hours of training.
            self._process.wait_until_ready()

    @property
    def _is_wanted(self) -> bool:
        return self._config.evaluate or self._data is not None

    def is_due(self, run: RunState) -> bool:
        """Whether to evaluate after the iterations so far."""
        interval = self._config.eval_interval
        if not is_evaluation_due(run.iterations, run.last_eval_iteration, interval):
            return False
        if not self._is_wanted or self._is_begun(run):
            return False
        if self._begun is None:
            return True
        if not self._has_warned and run.iterations:
            self._has_warned = True
            _logger.warning(
                "The evaluation of iteration %d still goes on: that of iteration %d is "
                "left out, and so will others be. Raise TrainerConfig.eval_interval, "
                "or lower num_eval_episodes.",
                self._begun.policy.iterations,
                run.iterations,
            )
        return False

    def is_final_one_missing(self, run: RunState) -> bool:
        """Whether the run ends without an evaluation of what it has learned."""
        is_done = run.last_eval_iteration == run.iterations
        # What still goes on is not waited for any more.
        return self._is_wanted and not is_done and self._begun is None

    def _is_begun(self, run: RunState) -> bool:
        begun = self._begun
        return begun is not None and begun.policy.iterations == run.iterations

    def evaluate(
        self, algorithm: RLAlgorithm, run: RunState, *, is_final: bool = False
    ) -> EvalResult | None:
        """Evaluates and notes in ``run`` what it means, or has another process do it.

        The episodes depend on the seed and the iteration alone, so that a resumed run
        sees the same ones.

        Returns:
            The episodes, if there is an environment, and the losses on data, if there
            are any; None if a signal ended it, or it is not known yet: see :meth:`poll`
            and :meth:`wait`.
        """
        result = EvalResult([], [], 0, {})._replace(
            losses=self._evaluate_on_data(),
            iterations=run.iterations,
            env_steps=run.env_steps,
            num_updates=algorithm.num_updates,
        )
        seed = random_state.derive_seed(run.seed, "evaluation", run.iterations)
        video_path = self._video_path(run.iterations, is_final)
        policy = self._policy(algorithm, run)
        begun = _Begun(time.perf_counter(), summary.position(), result, policy)
        if self._process is not None:
            if self._signals.received is not None:
                return None  # nobody would wait for it
            request = EvalRequest(
                iterations=run.iterations,
                env_steps=run.env_steps,
                num_episodes=self._config.num_eval_episodes,
                seed=seed,
                progress=algorithm.progress.state_dict(),
                predict_epsilon=algorithm.predict_epsilon,
                video_path=video_path,
            )
            self._process.begin(request, begun.policy.state)
            self._begun = begun
            return None
        if self._env is None:
            return self._note(result, begun, run)
        self._num_steps = self._num_episodes = 0
        try:
            parts = EvalParts(self._env, algorithm, self._metrics, self._recording)
            played = parts.play(
                self._config.num_eval_episodes, seed, self._on_step, video_path
            )
        except _InterruptedError:
            return None
        return self._note(played, begun, run)

    def poll(self, run: RunState) -> tuple[EvalResult, EvaluatedPolicy] | None:
        """What another process has found, if it has; fast enough for every iteration.

        Raises:
            EnvError, ConfigError, WorkerError: if that process failed.
        """
        if self._process is None or self._begun is None:
            return None
        return self._take(self._process.poll(), run)

    def wait(
        self, run: RunState, *, is_at_limit: bool
    ) -> tuple[EvalResult, EvaluatedPolicy] | None:
        """The same, if an evaluation goes on, when it has ended or a signal has come.

        Args:
            run: its counters.
            is_at_limit: whether nothing is left to train.

        Raises:
            EnvError, ConfigError, WorkerError: if the process failed.
        """
        while self._process is not None and self._begun is not None:
            if self._signals.received is not None:
                iteration = self._begun.policy.iterations
                self._say_what_is_lost(iteration, run, is_at_limit)
                return None
            taken = self._take(self._process.poll(_WAIT_SECONDS), run)
            if taken is not None:
                return taken
            self._show_progress(self._process.num_steps, self._process.num_episodes)
        return None

    def _say_what_is_lost(
        self, iteration: int, run: RunState, is_at_limit: bool
    ) -> None:
        interval, last = self._config.eval_interval, run.last_eval_iteration
        # A checkpoint holds no policy but its own.
        is_repeated = iteration == run.iterations and (
            is_at_limit or is_evaluation_due(iteration, last, interval)
        )
        _logger.warning(
            "The evaluation of iteration %d was still going on: its result is lost. %s",
            iteration,
            "A run that is resumed from here repeats it."
            if is_repeated
            else "A run that is resumed from here does not repeat it.",
        )

    def _take(
        self, played: EvalResult | None, run: RunState
    ) -> tuple[EvalResult, EvaluatedPolicy] | None:
        if played is None:
            return None
        begun, self._begun = self._begun, None
        assert begun is not None, played
        return self._note(played, begun, run), begun.policy

    def _note(self, played: EvalResult, begun: _Begun, run: RunState) -> EvalResult:
        """Writes it down, and in ``run`` what it decides."""
        known = begun.result
        result = played._replace(
            losses=known.losses,
            iterations=known.iterations,
            env_steps=known.env_steps,
            num_updates=known.num_updates,
        )
        if result.returns:
            seconds = time.perf_counter() - begun.at
            with summary.at(begun.position):
                train_summaries.summarize_evaluation(result, seconds)
            self.latest = result
        run.last_eval_iteration = result.iterations
        if result.num_updates == 0:  # what has learned nothing is never the best
            return result
        if result.returns and self._reaches_threshold(result.mean):
            run.early_stop_score = result.mean
        score = self._score(result)
        if score is None:
            score = result.score if self._returns_compare else math.nan
        # A resumed run may know a best one that it has yet to make again.
        best = run.best_iteration or 0
        if result.iterations > best:
            run.num_evals_without_better += 1
        is_better = run.best_score is None or score > run.best_score
        is_again = result.iterations == run.best_iteration
        if math.isfinite(score) and (
            is_better or (is_again and score == run.best_score)
        ):
            run.best_score, run.best_iteration = score, result.iterations
            run.num_evals_without_better = 0
        elif is_again:  # the best one was of a part that was killed, and stays the best
            run.best_iteration = None
        return result

    def _video_path(self, iterations: int, is_final: bool) -> str | None:
        """Of the video of this evaluation, if it is to be recorded."""
        if self._recording is None:
            return None
        interval = self._config.eval_interval * self._recording.every
        if is_final or not interval or iterations % interval == 0:
            name = f"iteration-{iterations}.mp4"
            return str(Path(self._config.root_dir) / "videos" / name)
        return None

    def _policy(self, algorithm: RLAlgorithm, run: RunState) -> EvaluatedPolicy:
        """The algorithm as it is now; a copy on the CPU, if training goes on."""
        state = algorithm.state_dict()
        if self._process is not None:
            state = {name: t.detach().to("cpu", copy=True) for name, t in state.items()}
        return EvaluatedPolicy(run.iterations, run.env_steps, state)

    def _evaluate_on_data(self) -> Mapping[str, float]:
        losses = {} if self._data is None else self._data.evaluate()
        for name, value in losses.items():
            summary.scalar(f"eval_data/{name}", value)
        return losses

    def reason_to_stop(self, run: RunState) -> str:
        """Why the evaluations end the run, as the config is now; "" if they do not."""
        if self._reaches_threshold(run.early_stop_score):
            return (
                f"early_stop_return: {run.early_stop_score:.4g} reaches "
                f"{self._config.early_stop_return:.4g}"
            )
        patience = self._config.early_stop_patience
        if patience is not None and run.num_evals_without_better >= patience:
            best = f"that of iteration {run.best_iteration or 0}"
            if run.best_score is not None and run.best_iteration is None:
                best = "the best one before the run was killed"
            return (
                f"early_stop_patience: none of {run.num_evals_without_better} "
                f"evaluations was better than {best}"
            )
        return ""

    def close(self) -> None:
        if self._env is not None:
            self._env.close()
        if self._process is not None:
            self._process.close()

    def _reaches_threshold(self, score: float | None) -> bool:
        threshold = self._config.early_stop_return
        return score is not None and threshold is not None and score >= threshold

    def _on_step(self, time_step: TimeStep) -> None:
        if self._signals.received is not None:
            raise _InterruptedError
        self._num_steps += len(time_step.step_type)
        self._num_episodes += int(time_step.is_last().sum())
        self._show_progress(self._num_steps, self._num_episodes)

    def _show_progress(self, num_steps: int, num_episodes: int) -> None:
        wanted = self._config.num_eval_episodes
        # A batch that moves as one goes on with episodes that do not count.
        self._show(num_steps, min(num_episodes, wanted), wanted)


class _Begun(NamedTuple):
    """An evaluation that goes on."""

    at: float
    position: summary.Position
    result: EvalResult  # what is known already
    policy: EvaluatedPolicy


def is_evaluation_due(iteration: int, last: int | None, interval: int) -> bool:
    """Whether to evaluate after ``iteration``: at every multiple, 0 included, once.

    Args:
        iteration: iterations completed.
        last: when the last evaluation was; None if there was none.
        interval: iterations between two evaluations; 0 means never.
    """
    return interval > 0 and iteration % interval == 0 and iteration != last


class _InterruptedError(Exception):
    """A signal came during an evaluation."""
