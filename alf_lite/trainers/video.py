"""Writes frames to a video file, with the ``video`` extra."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from alf_lite.errors import ConfigError

_MISSING = "recording needs the video extra: pip install 'alf_lite[video]'"
_SUFFIXES = (".mp4", ".gif", ".webm", ".mkv", ".mov", ".avi")


class VideoFile:
    """A video that is written frame by frame; a context manager.

    Args:
        path: its suffix chooses the format: ``.mp4``, ``.gif``, ``.webm``, ...
        frames_per_second: of the playback.

    Raises:
        ConfigError: if the extra is missing, the format is unknown or the file cannot
            be written.
    """

    def __init__(self, path: str | Path, frames_per_second: float) -> None:
        self._path = Path(path).expanduser()
        suffix = self._path.suffix.lower()
        if suffix not in _SUFFIXES:
            raise ConfigError(
                f"{self._path}: a video file ends in one of {', '.join(_SUFFIXES)}"
            )
        try:
            import imageio.v2 as imageio
        except ImportError as error:
            raise ConfigError(_MISSING) from error
        options: dict[str, Any] = {
            "format": "FFMPEG",
            "fps": frames_per_second,
            # Codecs want even sizes; the default would resize to multiples of 16.
            "macro_block_size": 2,
        }
        if suffix == ".gif":
            options = {"format": "GIF", "duration": 1000 / frames_per_second, "loop": 0}
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.touch()
            self._writer: Any = imageio.get_writer(self._path, **options)
        except ImportError as error:
            raise ConfigError(_MISSING) from error
        except OSError as error:
            raise ConfigError(
                f"{self._path} cannot be written: {error.strerror}"
            ) from error

    def add(self, frame: np.ndarray) -> None:
        """Appends a frame [height, width, 3] uint8."""
        self._writer.append_data(frame)

    def __enter__(self) -> VideoFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._writer.close()
