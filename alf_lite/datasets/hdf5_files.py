"""Looks through an HDF5 file of Minari before anything of it is read as data.

HDF5 can take numbers from other files, and make them up where none were written: both
are refused. So is what claims more bytes than the file can hold.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from alf_lite.checkpoints.data_files import RefusalError, check_fits

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
        lengths: dict[str, int] = {}
        _check_group(root.id, "", set(), lengths)
        episodes = [name for name in root if name.startswith("episode_")]
        if len(episodes) != num_episodes:
            raise RefusalError(
                f"its metadata say {num_episodes} episodes, {file.name} has "
                f"{len(episodes)}"
            )
        rewards = [f"/episode_{number}/rewards" for number in range(num_episodes)]
        missing = [place for place in rewards if place not in lengths]
        if missing:
            raise RefusalError(f"{missing[0]} is missing, or no array")
        found = sum(lengths[place] for place in rewards)
        if found != num_steps:
            raise RefusalError(
                f"its metadata say {num_steps} steps, {file.name} has {found}"
            )


def _check_group(
    group: h5py.h5g.GroupID, place: str, seen: set[int], lengths: dict[str, int]
) -> None:
    """Checks what is in a group, and notes the length of each array by its place.

    By the calls of HDF5 itself: the usual ones of h5py take twice as long.
    """
    from h5py import h5d, h5g, h5l, h5o

    if place.count("/") > _MAX_DEPTH:
        raise RefusalError(f"{place} lies too deep")
    for name in group:
        child_place = f"{place}/{name.decode(errors='replace')}"
        if group.links.get_info(name).type != h5l.TYPE_HARD:
            raise RefusalError(
                f"{child_place} is a link: refused, it may lead to any file"
            )
        child = h5o.open(group, name)
        if isinstance(child, h5d.DatasetID):
            _check_dataset(child_place, child)
            lengths[child_place] = child.shape[0] if child.shape else 0
        elif isinstance(child, h5g.GroupID):
            address = h5o.get_info(child).addr
            if address not in seen:
                seen.add(address)
                _check_group(child, child_place, seen, lengths)


def _check_dataset(place: str, dataset: h5py.h5d.DatasetID) -> None:
    from h5py import h5d, h5s

    settings = dataset.get_create_plist()
    layout, shape = settings.get_layout(), dataset.shape
    if settings.get_external_count() or layout == h5d.VIRTUAL:
        raise RefusalError(f"{place} takes its numbers from other files: refused")
    if dataset.get_space().get_simple_extent_type() == h5s.NULL:
        raise RefusalError(f"{place} is empty")
    claimed = math.prod(shape) * dataset.get_type().get_size()
    stored = dataset.get_storage_size()
    ratio = _MAX_RATIO if layout == h5d.CHUNKED and settings.get_nfilters() else 1
    if claimed > ratio * stored:
        raise RefusalError(
            f"{place} claims {claimed} bytes, of which {stored} were written"
        )
    check_fits(place, claimed)
    if layout == h5d.CHUNKED and claimed:
        sizes = zip(shape, settings.get_chunk(), strict=True)
        expected = math.prod(-(-size // chunk) for size, chunk in sizes)
        found = dataset.get_num_chunks()
        if found != expected:
            raise RefusalError(f"{place}: {found} of its {expected} parts were written")
