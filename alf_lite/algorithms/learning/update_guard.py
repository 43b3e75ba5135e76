"""Keeps updates that diverge from the parameters, without the host looking at them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import torch
from torch import Tensor

from alf_lite.errors import DivergedError
from alf_lite.optimizers.optimizer import Optimizer
from alf_lite.utils.devices import DeviceFlag


class UpdateGuard:
    """Says on the device that updates change nothing.

    On the CPU, a loss that is not finite raises before a parameter has changed. On a
    GPU that would wait for every update. There the optimizers are told, on the device,
    to leave everything as it is after the first loss or gradient that is not finite.

    Args:
        device: of the parameters.
        checks_finite: whether a loss or gradient that is not finite is looked for.
        interval: updates between two glances at what was found.
    """

    def __init__(
        self, device: torch.device, *, checks_finite: bool, interval: int
    ) -> None:
        self.checks_finite = checks_finite
        self._interval = interval
        self._num_unseen = 0  # updates since the last glance
        self._diverged = DeviceFlag(device)

    @property
    def looks_at_once(self) -> bool:
        """Whether every update is waited for, so that messages say what was wrong."""
        return self.checks_finite and self._interval == 1

    def skip(
        self, loss: Tensor, norms: Sequence[Tensor], optimizers: Sequence[Optimizer]
    ) -> Tensor | None:
        """Whether an update shall change nothing, after its backward pass.

        Args:
            loss: [], detached.
            norms: [] each, of the gradients of every optimizer, if they are known.
            optimizers: whose gradients are looked at otherwise.

        Returns:
            [] float32 on the device, 0 or 1; None if none is ever skipped.
        """
        if not self.checks_finite:
            return None
        if norms:
            numbers = torch.stack([loss, *norms])
            happens = numbers.isfinite().all().logical_not()
        else:
            mark = 0 * loss  # NaN if it is not finite
            for optimizer in optimizers:
                optimizer.mark_non_finite(mark)
            happens = mark != 0
        return self._diverged.add(happens)

    def glance(self, name: str) -> None:
        """After an update: says if one is known to have diverged. Does not wait.

        Args:
            name: of the algorithm.

        Raises:
            DivergedError: up to twice the interval after it has happened.
        """
        if not self.checks_finite:
            return
        self._num_unseen += 1
        if self._num_unseen >= self._interval:
            self._num_unseen = 0
            if self._diverged.glance():
                self._raise(name)

    def look(self, name: str) -> None:
        """As :meth:`glance`, and waits for all updates."""
        if self.checks_finite and self._diverged.look():
            self._raise(name)

    def _raise(self, name: str) -> NoReturn:
        self._diverged.clear()  # whoever goes on all the same shall be able to
        raise DivergedError(
            f"{name}: the loss or a gradient was not finite in one of the last "
            f"{2 * self._interval} updates; none since has changed a parameter. Likely "
            "causes: a too large learning rate, unscaled rewards or observations, no "
            "gradient clipping. TrainerConfig.check_finite_interval = 1 says which."
        )
