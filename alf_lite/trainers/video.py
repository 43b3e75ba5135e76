"""Writes frames to a video file, with the ``video`` extra."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from alf_lite.errors import ConfigError


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
        try:
            import imageio.v2 as imageio
        except ImportError as error:
            raise ConfigError(
                "recording needs imageio: pip install 'alf_lite[video]'"
            ) from error
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._writer: Any = imageio.get_writer(
                self._path, **self._options(frames_per_second)
            )
        except (OSError, ValueError, ImportError) as error:
            raise ConfigError(
                f"{self._path} cannot be written: {error}. Give a file such as "
                "play.mp4 or play.gif; they need pip install 'alf_lite[video]'."
            ) from error

    def _options(self, frames_per_second: float) -> dict[str, Any]:
        if self._path.suffix.lower() == ".gif":
            return {"duration": 1000 / frames_per_second, "loop": 0}
        # Codecs want even sizes; the default would resize to multiples of 16.
        return {"fps": frames_per_second, "macro_block_size": 2}

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
