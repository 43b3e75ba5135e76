"""The loss on held-out data, and metrics of one's own there."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.algorithms.acting import eval_mode, exploring
from alf_lite.algorithms.algorithm import valid_steps
from alf_lite.algorithms.learning.batch_loss import LossFunction
from alf_lite.algorithms.learning.replay_batches import read_windows
from alf_lite.algorithms.learning.training_batches import time_major, transpose
from alf_lite.algorithms.parts.critics import UpdateCounter
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import BatchInfo, Experience
from alf_lite.datasets.loading import load_replay_buffer
from alf_lite.errors import ConfigError, DataError
from alf_lite.nest import path_parts
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
from alf_lite.utils import random_state
from alf_lite.utils.losses import masked_mean
from alf_lite.utils.tensor_utils import reset_state

Nest = Any

# (algorithm, steps) → a number, or one for each step: [T, B] or [T-1, B], of which the
# mean over the steps that are not LAST is taken. ``steps`` are windows [T, B, ...] as
# they are trained on, transformed: ``steps.time_step``, and ``steps.action``, which was
# executed, whoever chose it. Nothing tells that of the last row: no mean is over it.
DataMetric = Callable[[RLAlgorithm, Experience], Any]

_BATCH_SIZE = 256  # windows


class DatasetEvaluator:
    """The loss of an algorithm on held-out data, without a gradient.

    It is that of the offline part of training (``train_step_offline`` and
    ``calc_loss_offline``, by default the online ones): the negative log-likelihood of
    behaviour cloning, the TD error of a critic. Windows of ``mini_batch_length`` steps
    cover every transition once, as far as whole windows fit; what is drawn for them is
    the same every time, and the actor has its part each time, however seldom it is
    updated. They count as steps of the first of ``offline_buffer_dir``.

    ``TrainerConfig.data_metrics`` adds numbers of one's own, see ``DataMetric``.

    Args:
        algorithm: the root of a run, set up.
        config: of the run.
        sources: of the held-out data, see ``TrainerConfig.evaluation_buffer_dir``.

    Raises:
        DataError: if a source cannot be read, does not fit or is too short.
    """

    def __init__(
        self, algorithm: RLAlgorithm, config: TrainerConfig, sources: Sequence[str]
    ) -> None:
        assert algorithm.env is not None, "it trains"
        self._algorithm = algorithm
        self._config = config
        self._loss = LossFunction(algorithm, offline=True)
        replay = algorithm.training_run.replay
        assert replay is not None, "it is off-policy"
        self._replay = replay
        self._buffers = []
        # Training from a replay buffer, which was set up, wants it.
        assert config.mini_batch_length is not None
        self._length = config.mini_batch_length
        num_history_steps = algorithm.data_transformer.num_history_steps
        for path in sources:
            buffer = load_replay_buffer(path, algorithm.env, join_environments=True)
            if int(buffer.sizes.max()) < self._length + num_history_steps:
                raise DataError(
                    f"{path} has {buffer.sizes.tolist()} steps of its environments, "
                    f"but a window takes {self._length + num_history_steps}"
                )
            self._buffers.append(buffer)

    def evaluate(self) -> dict[str, float]:
        """``loss``, its parts and own metrics, means over all valid steps.

        Nothing of the algorithm changes.
        """
        totals: dict[str, float] = {}
        num_steps = 0
        # Not inference mode: what the loss may keep is used by training, too.
        with (
            random_state.preserved(),
            torch.no_grad(),
            eval_mode(self._algorithm),
            _all_due(self._algorithm),
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
        # The last steps of a window, which are not trained, begin the next one.
        num_last = self._algorithm.num_bootstrap_steps
        stride = max(length - num_last - self._config.burn_in_length, 1)
        begins, ends = buffer.begin_positions, buffer.end_positions
        for env_id in range(buffer.num_environments):
            first, last = int(begins[env_id]) + history, int(ends[env_id]) - length
            starts = torch.arange(first, max(last + 1, first), stride)
            for begin in range(0, len(starts), _BATCH_SIZE):
                positions = starts[begin : begin + _BATCH_SIZE]
                yield BatchInfo(
                    torch.full_like(positions, env_id),
                    positions,
                    source=torch.ones_like(positions),  # they are not the run's own
                )

    def _losses(
        self, buffer: ReplayBuffer, info: BatchInfo
    ) -> tuple[dict[str, float], int]:
        """The means over the valid steps of a batch, and how many these are."""
        algorithm = self._algorithm
        experience = read_windows(buffer, info, self._length, algorithm)
        valid = valid_steps(experience.time_step.step_type)
        own = self._own_metrics(experience, valid)
        info = self._replay.batches.with_returns(info, buffer)
        batch = time_major(algorithm.preprocess(experience, valid, info))
        loss_info, _ = self._loss(batch)
        trained = batch.valid[self._config.burn_in_length :]
        values: dict[str, Any] = {"loss": loss_info.loss}
        for path, value in nest.flatten_with_path(loss_info.extra):
            if value.ndim == 2:
                value = masked_mean(value, trained[: value.shape[0]])
            values["/".join(("loss", *path_parts(path)))] = value
        num_rows = max(len(trained) - algorithm.num_bootstrap_steps, 1)
        numbers = {k: float(v) for k, v in values.items()}
        return numbers | own, int(trained[:num_rows].sum())

    def _own_metrics(self, experience: Experience, valid: Tensor) -> dict[str, float]:
        """What ``data_metrics`` say of windows [B, T, ...]."""
        metrics = self._config.data_metrics
        if not metrics:
            return {}
        steps, valid = transpose(experience), valid.transpose(0, 1).clone()
        valid[-1] = False
        executed = nest.narrow(steps.time_step.prev_action, 1, None)
        last = nest.narrow(steps.action, -1, None)
        steps = steps._replace(action=nest.cat([executed, last]))
        numbers = {}
        for metric in metrics:
            name, value = _name(metric), torch.as_tensor(metric(self._algorithm, steps))
            if value.shape not in ((), valid.shape, valid[1:].shape):
                raise ConfigError(
                    f"TrainerConfig.data_metrics: {name} must return one number, or "
                    f"one for each of the steps {list(valid.shape)}, got "
                    f"{list(value.shape)}"
                )
            if value.ndim:
                value = masked_mean(value.float(), valid[: len(value)])
            numbers[name] = float(value)
        return numbers


@contextlib.contextmanager
def _all_due(algorithm: RLAlgorithm) -> Iterator[None]:
    """No part of the loss is left out because it is not trained in every update."""
    counters = [m for m in algorithm.modules() if isinstance(m, UpdateCounter)]
    before = [counter.is_due for counter in counters]
    try:
        for counter in counters:
            counter.is_due = True
        yield
    finally:
        for counter, was_due in zip(counters, before, strict=True):
            counter.is_due = was_due


def action_error(algorithm: RLAlgorithm, steps: Experience) -> Tensor:
    """How far the policy's best action is from the recorded one, a ``DataMetric``.

    The mean squared distance or, of discrete actions, the share of different ones.

    Returns:
        [T, B]
    """
    num_steps, batch_size = steps.time_step.step_type.shape
    state = algorithm.get_initial_predict_state(batch_size)
    initial, errors = state, []
    with exploring(algorithm, False):  # whatever episodes are played with
        for t in range(num_steps):
            inputs = nest.map_structure(lambda x, t=t: x[t], steps.time_step)
            state = reset_state(state, initial, inputs.is_first())
            step = algorithm.predict_step(inputs, state)
            state = step.state
            recorded = nest.map_structure(lambda x, t=t: x[t], steps.action)
            errors.append(_distance(step.output, recorded))
        return torch.stack(errors)


def _distance(action: Nest, recorded: Nest) -> Tensor:
    """[B], the mean over all parts of the action."""
    parts = [
        (a - r).square() if a.is_floating_point() else (a != r).float()
        for a, r in zip(nest.flatten(action), nest.flatten(recorded), strict=True)
    ]
    return torch.cat([part.reshape(len(part), -1) for part in parts], 1).mean(1)


def _name(metric: DataMetric) -> str:
    while isinstance(metric, functools.partial):
        metric = metric.func
    return getattr(metric, "__name__", type(metric).__name__)
