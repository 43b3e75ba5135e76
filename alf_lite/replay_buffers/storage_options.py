"""Where the steps of a run are stored, as a conf says it."""

from __future__ import annotations

import dataclasses
from typing import get_args

import torch

from alf_lite.config import configurable
from alf_lite.replay_buffers.allocation import StorageKind


@configurable
@dataclasses.dataclass(frozen=True, kw_only=True)
class StorageOptions:
    """Where the replay buffer of a run keeps its steps.

    Args:
        storage: "memory", or "memmap" for a file, which may be larger than the memory.
        directory: of the file; None for the directory of the run. The file has no name
            there and vanishes with the process, however that ends.
        device: in whose memory, and where batches are made: "cpu", "cuda", "cuda:1".
    """

    storage: StorageKind = "memory"
    directory: str | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.storage not in get_args(StorageKind):
            raise ValueError(
                f"storage must be one of {', '.join(get_args(StorageKind))}, got "
                f"{self.storage!r}"
            )
        if self.directory is not None and self.storage != "memmap":
            raise ValueError(
                f"directory is {self.directory!r}, which has an effect only with "
                "storage='memmap'"
            )
        try:
            device = torch.device(self.device)
        except (RuntimeError, TypeError) as error:
            raise ValueError(
                f"device must be such as 'cpu' or 'cuda:0', got {self.device!r}"
            ) from error
        if device.type != "cpu" and self.storage == "memmap":
            raise ValueError(
                f"storage='memmap' needs device='cpu', got {self.device!r}"
            )
        if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
            raise ValueError(f"device is {self.device!r}, but torch sees no such one")
