"""Memory that the steps of a numpy environment are written to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from alf_lite import nest
from alf_lite.data_structures import TimeStep


class StepRow:
    """One time step [B, ...]: arrays to write, and the tensors that share their memory.

    Args:
        time_step: tensors on the CPU.
    """

    def __init__(self, time_step: TimeStep) -> None:
        self.time_step = time_step
        self.step_type: np.ndarray = time_step.step_type.numpy()
        self.reward: np.ndarray = time_step.reward.numpy()
        self.discount: np.ndarray = time_step.discount.numpy()
        self.observation = [t.numpy() for t in nest.flatten(time_step.observation)]
        self.prev_action = [t.numpy() for t in nest.flatten(time_step.prev_action)]
        # By name; () if nothing was declared.
        self.env_info = {k: t.numpy() for k, t in dict(time_step.env_info).items()}


def step_rows(memory: TimeStep) -> Sequence[StepRow]:
    """The N rows of ``memory``, tensors [N, B, ...] on the CPU."""
    # Whoever writes may be in inference mode and whoever reads not.
    with torch.inference_mode(False):
        columns = [tensor.unbind(0) for tensor in nest.flatten(memory)]
        return [
            StepRow(nest.pack_sequence_as(memory, leaves))
            for leaves in zip(*columns, strict=True)
        ]
