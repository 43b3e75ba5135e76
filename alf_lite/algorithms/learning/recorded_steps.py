"""Recorded steps that parts of an on-policy algorithm learn from.

They are not trained on as such: see ``Algorithm.needs_recorded_steps``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from alf_lite import nest
from alf_lite.algorithms.algorithm import Algorithm
from alf_lite.algorithms.learning.replay_batches import read_windows
from alf_lite.algorithms.rl_contract import RLContract
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import Experience
from alf_lite.datasets.loading import load_replay_buffer
from alf_lite.datasets.offline_buffers import check_sizes, sizes_of
from alf_lite.environments.environment import Environment
from alf_lite.errors import ConfigError
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer


class RecordedSteps:
    """Offline buffers, and the parts that draw from them.

    Args:
        algorithm: the root of the run.
        config: of the run.
    """

    def __init__(self, algorithm: RLContract, config: TrainerConfig) -> None:
        self._algorithm = algorithm
        self._config = config
        self._sources: Sequence[ReplayBuffer] = ()
        self._num_named = 0  # of the configuration, that are here

    def load_recorded(self, env: Environment) -> None:
        """Those that ``TrainerConfig.offline_buffer_dir`` names; nothing if done.

        Raises:
            ConfigError: if no part learns from recorded steps.
        """
        config, transformer = self._config, self._algorithm.data_transformer
        self._require_parts()
        for source in config.offline_sources[self._num_named :]:
            buffer = load_replay_buffer(
                source,
                env,
                config.offline_buffer_length,
                num_earliest_frames_ignored=transformer.num_history_steps,
                join_environments=True,
            )
            self.add_recorded(buffer)
            self._num_named += 1

    def add_recorded(self, buffer: ReplayBuffer) -> None:
        """Adds one more source; raises as above."""
        parts = self._require_parts()
        transformer = self._algorithm.data_transformer
        buffer.ignore_earliest(transformer.num_history_steps)
        self._sources = [*self._sources, buffer]
        for part in parts:
            part.recorded_steps = self._draw

    @property
    def num_recorded_sources(self) -> int:
        """How many offline buffers there are."""
        return len(self._sources)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run has to find again."""
        return {"offline_sizes": sizes_of(self._sources)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Compares with what ``state_dict`` returned; older checkpoints have nothing.

        Raises:
            CheckpointError: if the offline buffers are not those of then.
        """
        if state:
            check_sizes(self._sources, state["offline_sizes"])

    def _require_parts(self) -> list[Algorithm]:
        parts = parts_with_recorded_steps(self._algorithm)
        if not parts:
            raise has_no_replay(self._algorithm.name)
        return parts

    def _draw(self, number: int, length: int) -> Experience:
        """Windows [number, length, ...], transformed, of all sources alike."""
        sources, algorithm = self._sources, self._algorithm
        windows = []
        for k, buffer in enumerate(sources):
            size = number * (k + 1) // len(sources) - number * k // len(sources)
            if size:
                _, info = buffer.get_batch(size, length)
                windows.append(read_windows(buffer, info, length, algorithm))
        return nest.cat(windows) if len(windows) > 1 else windows[0]


def parts_with_recorded_steps(algorithm: Algorithm) -> list[Algorithm]:
    """The algorithm and those below it that learn from recorded steps."""
    return [
        part
        for part in algorithm.modules()
        if isinstance(part, Algorithm) and part.needs_recorded_steps
    ]


def has_no_replay(name: str) -> ConfigError:
    """Says that an algorithm is on-policy."""
    return ConfigError(
        f"{name} is on-policy: it has no replay buffer and cannot train on offline "
        "data. Use an off-policy algorithm."
    )
