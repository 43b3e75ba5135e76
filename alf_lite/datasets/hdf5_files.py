"""Looks through an HDF5 file of Minari before anything of it is read as data.

HDF5 can take numbers from other files, and make them up where none were written: both
are refused. So is what claims more bytes than the file can hold.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from alf_lite.datasets.data_files import RefusalError, check_fits

if TYPE_CHECKING:
    import h5py

HDF5_NAME = "main_data.hdf5"
# More than any filter saves of numbers that are all the same.
_MAX_RATIO = 1032
_MAX_DEPTH = 32


def check_hdf5(file: Path, num_episodes: int, num_steps: int) -> None:
    """Checks the structure of the file of a data set.

    Args:
        file: of Minari.
        num_episodes: as the metadata beside it say.
        num_steps: likewise, actions.

    Raises:
        RefusalError: naming what is wrong. Whatever h5py makes of a damaged file.
        ImportError: without h5py.
    """
    import h5py

    with h5py.File(file, "r") as root:
        _check_group(root, set(), 0)
        episodes = [name for name in root if name.startswith("episode_")]
        if len(episodes) != num_episodes:
            raise RefusalError(
                f"its metadata say {num_episodes} episodes, {file.name} has "
                f"{len(episodes)}"
            )
        found = sum(
            len(_dataset(root, f"episode_{number}/rewards"))
            for number in range(num_episodes)
        )
        if found != num_steps:
            raise RefusalError(
                f"its metadata say {num_steps} steps, {file.name} has {found}"
            )


def _dataset(root: h5py.Group, name: str) -> h5py.Dataset:
    import h5py

    dataset = root[name]
    if not isinstance(dataset, h5py.Dataset):
        raise RefusalError(f"{name} is a group, expected numbers")
    return dataset


def _check_group(group: h5py.Group, seen: set[int], depth: int) -> None:
    import h5py

    address = h5py.h5o.get_info(group.id).addr
    if address in seen:
        return
    seen.add(address)
    if depth > _MAX_DEPTH:
        raise RefusalError(f"{group.name} lies too deep")
    for name in group:
        place = f"{group.name.rstrip('/')}/{name}"
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            raise RefusalError(f"{place} is a link: refused, it may lead to any file")
        child = group[name]
        if isinstance(child, h5py.Group):
            _check_group(child, seen, depth + 1)
        elif isinstance(child, h5py.Dataset):
            _check_dataset(place, child)


def _check_dataset(place: str, dataset: h5py.Dataset) -> None:
    import h5py

    settings = dataset.id.get_create_plist()
    if settings.get_external_count() or dataset.is_virtual:
        raise RefusalError(f"{place} takes its numbers from other files: refused")
    if dataset.shape is None:
        raise RefusalError(f"{place} is empty")
    claimed = math.prod(dataset.shape) * dataset.id.get_type().get_size()
    stored = dataset.id.get_storage_size()
    ratio = _MAX_RATIO if settings.get_nfilters() else 1
    if claimed > ratio * stored:
        raise RefusalError(
            f"{place} claims {claimed} bytes, of which {stored} were written"
        )
    check_fits(place, claimed)
    if settings.get_layout() == h5py.h5d.CHUNKED and claimed:
        sizes = zip(dataset.shape, dataset.chunks, strict=True)
        expected = math.prod(-(-size // chunk) for size, chunk in sizes)
        found = dataset.id.get_num_chunks()
        if found != expected:
            raise RefusalError(f"{place}: {found} of its {expected} parts were written")
