"""The content of a replay buffer as episodes in the environment's own units."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from alf_lite.data_structures import StepType
from alf_lite.datasets.segments import Segments
from alf_lite.datasets.source import Sequence, Source, field_kind, join_path
from alf_lite.environments.environment import Environment
from alf_lite.environments.recorded_values import RecordedLeaf

Arrays = dict[str, np.ndarray]

# What belongs to the steps of an episode; the rest belongs to the actions between them.
OF_STEPS = ("observation", "env_info")


class EpisodeReader:
    """Cuts a source into episodes, as data sets hold them.

    Args:
        source: in the agent's units, with ``action``.
        env: that it was recorded in.
    """

    def __init__(self, source: Source, env: Environment) -> None:
        self._source = source
        self._leaves: dict[str, RecordedLeaf] = {}
        values = env.recorded_values
        if values is not None:
            for name, leaves in (
                ("observation", values.observations),
                ("action", values.actions),
            ):
                for keys, leaf in leaves.items():
                    self._leaves[join_path(name, *keys)] = leaf

    def episodes(self) -> Iterator[Arrays]:
        """One after the other; what is left of an episode that was cut counts as one.

        Yields:
            With T actions: ``action`` [T, ...], ``reward`` [T] or [T, D],
            ``terminated`` [T] and ``truncated`` [T]; ``observation`` [T + 1, ...] and
            ``env_info`` likewise. The last step of an episode that was cut is
            truncated.
        """
        for sequence in self._source.sequences():
            segments = Segments.of(sequence.fields["step_type"])
            for begin, end in zip(segments.begins, segments.ends, strict=True):
                if end - begin > 1:
                    yield self._episode(sequence, int(begin), int(end))

    def _episode(self, sequence: Sequence, begin: int, end: int) -> Arrays:
        fields = sequence.fields
        arrays = {}
        for name, array in fields.items():
            kind = field_kind(name)
            if kind in OF_STEPS:
                arrays[name] = self._to_environment(name, array[begin:end])
            elif kind == "action":
                arrays[name] = self._to_environment(name, array[begin : end - 1])
        arrays["reward"] = fields["reward"][begin + 1 : end]
        is_last = fields["step_type"][end - 1] == StepType.LAST
        is_terminal = bool(is_last and fields["discount"][end - 1] == 0)
        flags = np.zeros((2, end - begin - 1), np.bool_)
        flags[:, -1] = is_terminal, not is_terminal
        arrays["terminated"], arrays["truncated"] = flags
        return arrays

    def _to_environment(self, name: str, array: np.ndarray) -> np.ndarray:
        leaf = self._leaves.get(name)
        return array if leaf is None else leaf.to_environment(array)
