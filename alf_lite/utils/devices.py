"""Between the host and a device such as a GPU, without waiting for it.

What is queued on a device runs later. Whoever reads a number of it, or copies in either
direction in the ordinary way, waits until all that was queued before is done, and the
device is idle until the host has caught up. So what goes there goes through pinned
memory, which may be copied while the host goes on, and what the host wants to know of
it is sent and looked at later.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.errors import ConfigError

Nest = Any

_DEVICE_OF_RUN = contextvars.ContextVar[torch.device | None]("device", default=None)


@contextlib.contextmanager
def device_of_run(device: torch.device | str) -> Iterator[None]:
    """What is made in the block, and asks for it, is on ``device``.

    That of torch stays as it is: much of an environment is on the host anyway.
    """
    token = _DEVICE_OF_RUN.set(torch.device(device))
    try:
        yield
    finally:
        _DEVICE_OF_RUN.reset(token)


def default_device() -> torch.device:
    """Of the run that something is made for; of torch, if it is for none."""
    return _DEVICE_OF_RUN.get() or torch.get_default_device()


def check_device(device: torch.device | str, of_whom: str = "") -> None:
    """Raises ConfigError, if torch cannot use it here.

    Args:
        device: that was asked for.
        of_whom: for the message.
    """
    try:
        torch.empty(1, device=device)
    # Each kind of device that is missing raises another one.
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        raise ConfigError(
            f"device {str(device)!r} was asked for{of_whom}, but torch sees no such "
            "device here. Use --device=cpu."
        ) from error


def pinned_empty(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Memory of the host that ``device`` reads and writes while the host goes on.

    Ordinary memory where that is no matter of pinning.
    """
    return torch.empty(shape, dtype=dtype, pin_memory=device.type == "cuda")


def moved(values: Nest, device: torch.device) -> Nest:
    """A nest of tensors on ``device``; those that are there are left as they are.

    Nobody waits for what goes from the host to the device. The other way, the host
    waits.
    """
    return nest.map_structure(lambda tensor: moved_tensor(tensor, device), values)


def moved_tensor(tensor: Tensor, device: torch.device) -> Tensor:
    """As :func:`moved`, one tensor."""
    if tensor.device == device:
        return tensor
    if device.type == "cpu":
        return tensor.to(device)
    if device.type == "cuda" and tensor.is_cpu:
        # torch keeps the pinned copy until the device has read it.
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


class DeviceFlag:
    """Whether something has happened on a device, of which the host learns later.

    Args:
        device: where it may happen.

    Attributes:
        state: [] float32 on the device, 1 from then on.
    """

    def __init__(self, device: torch.device) -> None:
        with torch.inference_mode(False):
            self.state = torch.zeros((), device=device)
            self._seen = pinned_empty((), torch.float32, device).zero_()

    def add(self, happens: Tensor) -> Tensor:
        """Takes in [] bool from the device; returns the state."""
        return self.state.copy_(torch.maximum(self.state, happens.to(torch.float32)))

    def glance(self) -> bool:
        """Whether it had happened at the last glance or a little later; never waits.

        The next state is sent. It may arrive late and never comes too early: what was
        seen once stays so.
        """
        known = self._seen.item() != 0
        self._seen.copy_(self.state, non_blocking=True)
        return known

    def look(self) -> bool:
        """Whether it has happened by now; waits for the device."""
        return self.state.item() != 0

    def clear(self) -> None:
        """From now on it has not happened, wherever the last glance has got to."""
        self.state.zero_()
        self._seen = torch.zeros_like(self._seen)
