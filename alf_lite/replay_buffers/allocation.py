"""Memory for the steps of a buffer: RAM, a GPU or a file, refused if none is left."""

from __future__ import annotations

import dataclasses
import errno
import logging
import mmap
import os
import shutil
import tempfile
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from alf_lite.config import configurable
from alf_lite.utils.checks import check_choice
from alf_lite.utils.free_memory import free_ram

_logger = logging.getLogger(__name__)

StorageKind = Literal["memory", "memmap"]

_GB = 1e9
# What says that there is no room for a file, and who may have said it.
_NO_ROOM = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "your quota of it is used up",
    errno.EFBIG: "one file may not be so large there, see ulimit -f",
}


def allocate(
    num_bytes: int, device: torch.device, directory: Path | str | None = None
) -> Tensor:
    """Uninitialised memory.

    Args:
        num_bytes: how many.
        device: where, unless ``directory`` is given.
        directory: keep the bytes in a file there, which the operating system pages in
            and out. The file has no name: its space is free again when the process
            ends, however it ends.

    Returns:
        A uint8 tensor [num_bytes].

    Raises:
        ValueError: if it does not fit; says how many GB are needed and free. Nothing
            has been allocated then.
    """
    if directory is not None:
        if device.type != "cpu":
            raise ValueError(
                f"a replay buffer in a file must have device 'cpu', got '{device}'"
            )
        return _map_file(num_bytes, Path(directory))
    _refuse_if_too_large(
        num_bytes,
        _free_memory(device),
        f"{device} memory",
        "Make max_length smaller, or keep the buffer in a file: storage='memmap'.",
    )
    if device.type == "cpu":
        # numpy asks for huge pages, which makes reading random rows faster.
        return torch.from_numpy(np.empty(num_bytes, np.uint8))
    return torch.empty(num_bytes, dtype=torch.uint8, device=device)


def _map_file(num_bytes: int, directory: Path) -> Tensor:
    directory.mkdir(parents=True, exist_ok=True)
    _refuse_if_too_large(
        num_bytes,
        shutil.disk_usage(directory).free,
        f"disk space in {directory}",
        "Make max_length smaller, or choose another directory.",
    )
    with tempfile.TemporaryFile(dir=directory) as file:
        _reserve(file.fileno(), num_bytes, directory)
        mapped = mmap.mmap(file.fileno(), num_bytes)
    if hasattr(mmap, "MADV_RANDOM"):
        # Rows are read at random: do not read what follows them, too.
        mapped.madvise(mmap.MADV_RANDOM)
    # The tensor keeps the map alive, and the map keeps the file.
    return torch.frombuffer(mapped, dtype=torch.uint8)


def _reserve(descriptor: int, num_bytes: int, directory: Path) -> None:
    """Gives the file its size and its space on the disk.

    A sparse file would end the process by a signal if the disk fills up later.
    """
    try:
        if hasattr(os, "posix_fallocate"):
            try:
                os.posix_fallocate(descriptor, 0, num_bytes)
                return
            except OSError as error:
                if error.errno in _NO_ROOM:
                    raise
                # It cannot reserve; the check of the free space has to do.
                _logger.info("no space can be reserved in %s: %s", directory, error)
        os.ftruncate(descriptor, num_bytes)
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        raise ValueError(
            f"the replay buffer needs {num_bytes / _GB:.2g} GB of space in "
            f"{directory}, which the system refused: {_NO_ROOM[error.errno]}. Make "
            "max_length smaller, or choose another directory."
        ) from error


def _refuse_if_too_large(
    num_bytes: int, free: int | None, what: str, advice: str
) -> None:
    if free is not None and num_bytes > free:
        raise ValueError(
            f"the replay buffer needs {num_bytes / _GB:.2f} GB of {what}, but only "
            f"{free / _GB:.2f} GB are free. {advice}"
        )


def _free_memory(device: torch.device) -> int | None:
    """Bytes, or None where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type != "cpu":
        return None
    return free_ram()


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
        check_choice(StorageKind, storage=self.storage)
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
