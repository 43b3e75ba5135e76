"""Writes the replay buffer of a run beside its checkpoints, while it is trained."""

from __future__ import annotations

import logging
import re
from pathlib import Path

from alf_lite.checkpoints.new_output import new_output
from alf_lite.config import configurable
from alf_lite.errors import ConfigError
from alf_lite.trainers.hooks import Hook, Training

_logger = logging.getLogger(__name__)

_NAME = re.compile(r"replay-(\d+)")


@configurable
class ReplaySaver(Hook):
    """Keeps the newest files ``replay-<iterations>`` below ``root_dir/replay``.

    Each is a source for ``TrainerConfig.offline_buffer_dir`` of another run. It appears
    when it is complete, and older ones are deleted only after that. The run goes on if
    one cannot be written. The last one is written when the run ends, however it does.

    Args:
        interval: iterations between two files; 0 writes only the last one.
        keep: how many files.
        priority: see :class:`Hook`.
    """

    def __init__(self, interval: int = 0, keep: int = 1, priority: int = 50) -> None:
        super().__init__(priority)
        if interval < 0 or keep < 1:
            raise ValueError(
                "interval must be at least 0 and keep at least 1, got "
                f"{interval} and {keep}"
            )
        self._interval = interval
        self._keep = keep
        self._saved_iteration: int | None = None

    def before_train(self, training: Training) -> None:
        """Raises ConfigError if there is no replay buffer to be saved."""
        if training.algorithm.on_policy:
            raise ConfigError(
                f"ReplaySaver: {training.algorithm.name} is on-policy and has no "
                "replay buffer. Use an off-policy algorithm, or alf_lite.bin.collect."
            )

    def after_iter(self, training: Training) -> None:
        if self._interval and training.run.iterations % self._interval == 0:
            self._save(training)

    def after_train(self, training: Training) -> None:
        if not training.algorithm.on_policy:
            self._save(training)

    def _save(self, training: Training) -> None:
        iteration, buffer = training.run.iterations, training.algorithm.replay_buffer
        if iteration == self._saved_iteration or buffer is None:
            return
        if not training.owns_root_dir:
            _logger.error("The replay buffer was not saved: root_dir is gone.")
            return
        directory = training.root_dir / "replay"
        try:
            # A run that is resumed comes to the same iteration again.
            with new_output(
                directory / f"replay-{iteration}", replace_file=True
            ) as temporary:
                buffer.save().write_to(temporary)
        except ConfigError as error:
            _logger.error("The replay buffer was not saved: %s", error)
            return
        self._saved_iteration = iteration
        for path in _files(directory)[: -self._keep]:
            path.unlink(missing_ok=True)


def _files(directory: Path) -> list[Path]:
    """The saved buffers, oldest first."""
    found = [
        (int(match[1]), path)
        for path in directory.iterdir()
        if (match := _NAME.fullmatch(path.name))
    ]
    return [path for _, path in sorted(found)]
