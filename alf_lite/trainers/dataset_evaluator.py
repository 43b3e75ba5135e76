"""Evaluates an algorithm on recorded steps that it is not trained on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from alf_lite import nest
from alf_lite.algorithms.algorithm import valid_steps
from alf_lite.algorithms.learning.replay_source import ReplaySource
from alf_lite.algorithms.learning.training_batches import time_major
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import BatchInfo
from alf_lite.datasets.loading import load_replay_buffer
from alf_lite.errors import ConfigError, DataError
from alf_lite.utils import random_state, summary
from alf_lite.utils.losses import masked_mean
from alf_lite.utils.nest_paths import path_parts

_BATCH_SIZE = 256  # windows


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
        self._sources = []
        num_history_steps = algorithm.data_transformer.num_history_steps
        for path in sources:
            buffer = load_replay_buffer(path, algorithm.env)
            source = ReplaySource(config, num_history_steps, buffer)
            if int(buffer.sizes.max()) < source.least_length:
                raise DataError(
                    f"{path} has {buffer.sizes.tolist()} steps of its environments, "
                    f"but a window takes {source.least_length}"
                )
            self._sources.append(source)

    def evaluate(self) -> dict[str, float]:
        """``loss`` and its parts, means over all valid steps.

        Nothing of the algorithm changes.
        """
        totals: dict[str, float] = {}
        num_steps = 0
        with _preserved(self._algorithm):
            for source in self._sources:
                for info in self._windows(source):
                    values, count = self._losses(source, info)
                    for name, value in values.items():
                        totals[name] = totals.get(name, 0.0) + value * count
                    num_steps += count
        return {name: total / max(num_steps, 1) for name, total in totals.items()}

    def _windows(self, source: ReplaySource) -> Iterator[BatchInfo]:
        """Where the windows begin, batch by batch."""
        assert source.buffer is not None
        length = self._config.mini_batch_length or 1
        history = source.least_length - length
        # The last step of a window is the first one of the next: its loss wants a
        # successor.
        stride = max(length - 1 - self._config.burn_in_length, 1)
        begins, ends = source.buffer.begin_positions, source.buffer.end_positions
        for env_id in range(source.buffer.num_environments):
            first, last = int(begins[env_id]) + history, int(ends[env_id]) - length
            starts = torch.arange(first, max(last + 1, first), stride)
            for begin in range(0, len(starts), _BATCH_SIZE):
                positions = starts[begin : begin + _BATCH_SIZE]
                yield BatchInfo(torch.full_like(positions, env_id), positions)

    def _losses(
        self, source: ReplaySource, info: BatchInfo
    ) -> tuple[dict[str, float], int]:
        """The means over the valid steps of a batch, and how many these are."""
        algorithm = self._algorithm
        experience = source.read(algorithm.data_transformer, algorithm.device, info)
        valid = valid_steps(experience.time_step.step_type)
        batch = time_major(algorithm.preprocess(experience, valid, info))
        loss_info, _ = algorithm.batch_loss(batch, True)
        trained = batch.valid[self._config.burn_in_length :]
        values: dict[str, Any] = {"loss": loss_info.loss}
        for path, value in nest.flatten_with_path(loss_info.extra):
            if value.ndim == 2:
                value = masked_mean(value, trained[: value.shape[0]])
            values["/".join(("loss", *path_parts(path)))] = value
        num_rows = max(len(trained) - 1, 1)
        return {k: float(v) for k, v in values.items()}, int(trained[:num_rows].sum())


@contextlib.contextmanager
def _preserved(algorithm: RLAlgorithm) -> Iterator[None]:
    """Everything is afterwards as it was; no summary is written."""
    modes = [(module, module.training) for module in algorithm.modules()]
    algorithm.eval()
    try:
        # Not inference mode: what the loss may keep is used by training, too.
        with random_state.preserved(), torch.no_grad(), summary.disabled():
            random_state.seed_everything(0)
            yield
    finally:
        for module, training in modes:
            module.training = training
