"""Writes episodes as one ``.npz`` file; what is in it: ``npz_episodes``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np


def write_npz(episodes: Iterable[Mapping[str, np.ndarray]], path: Path) -> None:
    """Writes the file.

    Args:
        episodes: as of ``EpisodeReader``; at least one.
        path: is overwritten.
    """
    parts: dict[str, list[np.ndarray]] = {}
    for episode in episodes:
        for name, array in episode.items():
            parts.setdefault(name, []).append(array)
    arrays: dict[str, Any] = {
        name: np.concatenate(parts.pop(name)) for name in list(parts)
    }
    with path.open("wb") as file:  # savez adds a suffix to a name
        np.savez(file, **arrays)
