"""The sources of steps that a run trains on beside its own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from alf_lite import nest
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import StepType, TimeStep
from alf_lite.datasets.loading import load_replay_buffer
from alf_lite.environments.environment import Environment
from alf_lite.errors import CheckpointError, ConfigError, DataError
from alf_lite.replay_buffers.own_replay import OwnReplay
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer

_logger = logging.getLogger(__name__)


class OfflineBuffers(list[ReplayBuffer]):
    """The buffers, in the order of ``TrainerConfig.offline_buffer_dir``, others after.

    Args:
        config: names the sources.
        own: the run's own buffer, whose settings are those of the others.
        num_environments: of the run.
    """

    def __init__(
        self, config: TrainerConfig, own: OwnReplay, num_environments: int
    ) -> None:
        super().__init__()
        self._config = config
        self._own = own
        self._num_environments = num_environments
        self._num_named = 0  # of the configuration, that are here

    def load(self, env: Environment) -> Iterator[ReplayBuffer]:
        """What the configuration names and is not here, read when it is asked for.

        Raises:
            DataError: if a source cannot be read or does not fit ``env``.
        """
        for source in self._config.offline_sources[self._num_named :]:
            yield load_replay_buffer(
                source,
                env,
                self._config.offline_buffer_length,
                num_earliest_frames_ignored=self._own.num_history_steps,
                join_environments=True,
            )

    def add(
        self,
        buffer: ReplayBuffer,
        observe: Callable[[TimeStep], None] | None,
        *,
        is_named: bool,
    ) -> None:
        """Adds one more.

        Its windows are drawn as the own ones: by priorities of their own, if these have
        some.

        Args:
            buffer: of ``Experience``.
            observe: takes its steps [T, 1, ...] into statistics; None: there are none.
            is_named: whether it is the next one of the configuration.

        Raises:
            ConfigError: if options of the own buffer cannot be those of offline data,
                or there are numbers for the sources, and none for this one.
            DataError: if it has too few steps for one window.
        """
        least, options = self._own.least_length, self._own.options
        for name in () if is_named else ("mixing_ratios", "source_loss_weights"):
            if getattr(self._config, name) is not None:
                raise ConfigError(
                    f"TrainerConfig.{name} has no number for an offline buffer that is "
                    "added: leave it out, or write the buffer (write_source) and name "
                    "the file in TrainerConfig.offline_buffer_dir"
                )
        if int(buffer.sizes.max()) < least:
            raise DataError(
                f"an offline buffer has {buffer.sizes.tolist()} steps of its "
                f"environments, but a window takes {least}: "
                "TrainerConfig.mini_batch_length and what data transformers read "
                "before it"
            )
        buffer.ignore_earliest(self._own.num_history_steps)
        options.apply_to_recorded_steps(buffer)
        if observe is not None:
            for steps in _all_steps(buffer, first_id=self._num_environments):
                observe(steps)
        if not is_named:
            self.append(buffer)
            return
        self.insert(self._num_named, buffer)
        self._num_named += 1
        options.check_batches_of_source(buffer, self._num_named, self._num_environments)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs, but for the steps."""
        return {
            "offline_sizes": sizes_of(self),
            "offline_sampling": [buffer.sampling_state() for buffer in self],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores what ``state_dict`` returned.

        Raises:
            CheckpointError: if the offline buffers are not those of then.
        """
        check_sizes(self, state["offline_sizes"])
        for buffer, sampling in zip(self, state["offline_sampling"], strict=True):
            if not buffer.load_sampling_state(sampling):
                _logger.warning(
                    "Offline data were drawn in another way (priorities) before the "
                    "checkpoint: all windows count as new."
                )


def sizes_of(buffers: Sequence[ReplayBuffer]) -> list[int]:
    """How many steps each of them has."""
    return [buffer.total_size for buffer in buffers]


def check_sizes(buffers: Sequence[ReplayBuffer], sizes: list[int]) -> None:
    """Raises CheckpointError, if they are not the sizes of a checkpoint."""
    if sizes != sizes_of(buffers):
        raise CheckpointError(
            "the offline buffers have changed since the checkpoint: then they had "
            f"{sizes} steps, now {sizes_of(buffers)}. Restore the data in "
            "TrainerConfig.offline_buffer_dir, or begin a new run."
        )


def _all_steps(
    buffer: ReplayBuffer, first_id: int, length: int = 1000
) -> Iterator[TimeStep]:
    """All that is stored [T, 1, ...], one environment after the other.

    Args:
        buffer: of ``Experience``.
        first_id: ``env_id`` of its first environment, none of the run's own: statistics
            may keep something of each, such as its return so far.
        length: the largest T.
    """
    for env_id in range(buffer.num_environments):
        begin = int(buffer.begin_positions[env_id])
        end = int(buffer.end_positions[env_id])
        for position in range(begin, end, length):
            steps = buffer.get_windows(
                torch.tensor([env_id]),
                torch.tensor([position]),
                min(length, end - position),
            )
            time_step = nest.map_structure(lambda t: t.transpose(0, 1), steps.time_step)
            if position == begin:  # no return goes on from another environment
                step_type = time_step.step_type.clone()
                step_type[0] = int(StepType.FIRST)
                time_step = time_step._replace(step_type=step_type)
            # Several environments of the source may follow each other here.
            env_ids = torch.full_like(time_step.step_type, first_id + env_id)
            yield time_step._replace(env_id=env_ids)
