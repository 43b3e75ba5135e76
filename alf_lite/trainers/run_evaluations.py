"""The evaluations of a training run: when, with which seeds, and what they decide."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from alf_lite import nest
from alf_lite.algorithms.algorithm import valid_steps
from alf_lite.algorithms.learning.batch_loss import batch_loss
from alf_lite.algorithms.learning.off_policy_learner import read_windows
from alf_lite.algorithms.learning.training_batches import time_major
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import BatchInfo, TimeStep
from alf_lite.datasets.loading import load_replay_buffer
from alf_lite.environments.environment import Environment
from alf_lite.errors import ConfigError, DataError
from alf_lite.nest import path_parts
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
from alf_lite.trainers import train_summaries
from alf_lite.trainers.evaluator import EvalResult, eval_mode, evaluate
from alf_lite.trainers.signals import StopSignals
from alf_lite.trainers.training_state import RunState
from alf_lite.utils import random_state, summary
from alf_lite.utils.losses import masked_mean

_BATCH_SIZE = 256  # windows


class RunEvaluations:
    """Evaluates in environments of its own, on held-out data, or both.

    The best policy is the one with the highest mean return or, if no environments are
    wanted, the one with the lowest loss on the data.

    Args:
        config: of the run.
        create_env: called with ``num_parallel_environments`` and ``seed``.
        seed: of the run.
        signals: end an evaluation at once, because it can take long.
        show: called with the number of steps so far.
    """

    def __init__(
        self,
        config: TrainerConfig,
        create_env: Callable[..., Environment],
        seed: int,
        signals: StopSignals,
        show: Callable[[int], None],
    ) -> None:
        self._config = config
        self._signals = signals
        self._show = show
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
        where: dict[str, Any] = {
            "iterations": run.iterations,
            "env_steps": run.env_steps,
        }
        if self._env is None:
            return EvalResult([], [], 0, {}, losses=losses, **where)
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
        result = result._replace(losses=losses, **where)
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
        self._show(self._num_steps)


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


class DatasetEvaluator:
    """The loss of an algorithm on held-out data, without a gradient.

    It is that of the offline part of training (``train_step_offline`` and
    ``calc_loss_offline``, by default the online ones): the negative log-likelihood of
    behaviour cloning, the TD error of a critic. Windows of ``mini_batch_length`` steps
    cover every transition once, as far as whole windows fit; what is drawn for them is
    the same every time.

    Args:
        algorithm: the root of a run, set up.
        config: of the run.
        sources: of the held-out data, see ``TrainerConfig.evaluation_buffer_dir``.

    Raises:
        ConfigError: if the algorithm is on-policy.
        DataError: if a source cannot be read, does not fit or is too short.
    """

    def __init__(
        self, algorithm: RLAlgorithm, config: TrainerConfig, sources: Sequence[str]
    ) -> None:
        if algorithm.on_policy or algorithm.env is None:
            raise ConfigError(
                f"{algorithm.name} is on-policy: its loss cannot be evaluated on "
                "recorded steps. Leave TrainerConfig.evaluation_buffer_dir out."
            )
        self._algorithm = algorithm
        self._config = config
        self._buffers = []
        # Training from a replay buffer, which was set up, wants it.
        assert config.mini_batch_length is not None
        self._length = config.mini_batch_length
        num_history_steps = algorithm.data_transformer.num_history_steps
        for path in sources:
            buffer = load_replay_buffer(path, algorithm.env)
            if int(buffer.sizes.max()) < self._length + num_history_steps:
                raise DataError(
                    f"{path} has {buffer.sizes.tolist()} steps of its environments, "
                    f"but a window takes {self._length + num_history_steps}"
                )
            self._buffers.append(buffer)

    def evaluate(self) -> dict[str, float]:
        """``loss`` and its parts, means over all valid steps.

        Nothing of the algorithm changes.
        """
        totals: dict[str, float] = {}
        num_steps = 0
        # Not inference mode: what the loss may keep is used by training, too.
        with (
            random_state.preserved(),
            torch.no_grad(),
            eval_mode(self._algorithm),
        ):
            random_state.seed_everything(0)
            for buffer in self._buffers:
                for info in self._windows(buffer):
                    values, count = self._losses(buffer, info)
                    for name, value in values.items():
                        totals[name] = totals.get(name, 0.0) + value * count
                    num_steps += count
        return {name: total / max(num_steps, 1) for name, total in totals.items()}

    def _windows(self, buffer: ReplayBuffer) -> Iterator[BatchInfo]:
        """Where the windows begin, batch by batch."""
        length = self._length
        history = self._algorithm.data_transformer.num_history_steps
        # The last step of a window is the first one of the next: its loss wants a
        # successor.
        stride = max(length - 1 - self._config.burn_in_length, 1)
        begins, ends = buffer.begin_positions, buffer.end_positions
        for env_id in range(buffer.num_environments):
            first, last = int(begins[env_id]) + history, int(ends[env_id]) - length
            starts = torch.arange(first, max(last + 1, first), stride)
            for begin in range(0, len(starts), _BATCH_SIZE):
                positions = starts[begin : begin + _BATCH_SIZE]
                yield BatchInfo(torch.full_like(positions, env_id), positions)

    def _losses(
        self, buffer: ReplayBuffer, info: BatchInfo
    ) -> tuple[dict[str, float], int]:
        """The means over the valid steps of a batch, and how many these are."""
        algorithm = self._algorithm
        experience = read_windows(buffer, info, self._length, algorithm)
        valid = valid_steps(experience.time_step.step_type)
        batch = time_major(algorithm.preprocess(experience, valid, info))
        loss_info, _ = batch_loss(algorithm, batch, offline=True)
        trained = batch.valid[self._config.burn_in_length :]
        values: dict[str, Any] = {"loss": loss_info.loss}
        for path, value in nest.flatten_with_path(loss_info.extra):
            if value.ndim == 2:
                value = masked_mean(value, trained[: value.shape[0]])
            values["/".join(("loss", *path_parts(path)))] = value
        num_rows = max(len(trained) - 1, 1)
        return {k: float(v) for k, v in values.items()}, int(trained[:num_rows].sum())
