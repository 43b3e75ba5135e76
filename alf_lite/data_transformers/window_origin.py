"""Where replayed windows come from, for transformers that look beyond them."""

from __future__ import annotations

from typing import NamedTuple, Self

import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.data_structures import BatchInfo, Experience
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer


class WindowOrigin(NamedTuple):
    """The buffer and the place of the windows [B, T] in it.

    In front of the windows, an experience may have steps that are not trained: the
    history from which transformers stack frames. It is then [B, H+T, ...], and the
    steps of the history may belong to earlier episodes.
    """

    buffer: ReplayBuffer
    batch_info: BatchInfo  # env_ids and positions [B] of the first of the T steps
    num_history_steps: int = 0  # H

    def positions(self, num_steps: int) -> Tensor:
        """The positions [B, H+T] of the steps of an experience, on the CPU.

        Args:
            num_steps: H+T.
        """
        offsets = torch.arange(num_steps) - self.num_history_steps
        return self.batch_info.positions.unsqueeze(1) + offsets

    def with_history(
        self, experience: Experience, num_history_steps: int
    ) -> tuple[Experience, Self]:
        """Puts the steps before the windows in front of them.

        Args:
            experience: [B, T, ...], as the buffer returned it.
            num_history_steps: H. The buffer must hold so many steps before every
                window: ``num_earliest_frames_ignored``.

        Returns:
            The experience [B, H+T, ...] and its source.
        """
        if num_history_steps == 0:
            return experience, self
        history = self.buffer.get_windows(
            self.batch_info.env_ids,
            self.batch_info.positions - num_history_steps,
            num_history_steps,
        )
        source = self._replace(num_history_steps=num_history_steps)
        return nest.cat([history, experience], dim=1), source

    def drop_history(self, num_steps: int) -> Self:
        """The source after a transformer took ``num_steps`` of the history off."""
        return self._replace(num_history_steps=self.num_history_steps - num_steps)
