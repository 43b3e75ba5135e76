"""Writes frames to a video file, and episodes as frames, with the ``video`` extra."""

from __future__ import annotations

import math
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from alf_lite.data_structures import TimeStep
from alf_lite.environments.environment import Environment
from alf_lite.errors import ConfigError, EnvError
from alf_lite.trainers.evaluator import quotas

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


class EpisodeRecorder:
    """Records exactly the episodes that an evaluation counts; its ``on_step``.

    Several environments are side by side, row by row. Each stands still when it has
    played its episodes.

    Args:
        env: made with ``render_mode="rgb_array"``.
        video: where the frames go.
        num_episodes: of the evaluation.
    """

    def __init__(self, env: Environment, video: VideoFile, num_episodes: int) -> None:
        self._env = env
        self._video = video
        self._missing = quotas(env.batch_size, num_episodes)
        self._num_shown = int((self._missing > 0).sum())
        self._num_columns = math.ceil(math.sqrt(self._num_shown))
        self._shape: tuple[int, ...] = ()  # of a frame
        self._canvas = np.zeros(0, np.uint8)

    def __call__(self, time_step: TimeStep) -> None:
        """Adds a frame of what the environments look like now.

        Raises:
            ConfigError: if they cannot be drawn.
            EnvError: if their frames differ in size.
        """
        frames = [frame for frame in self._env.render_all() if frame is not None]
        if len(frames) < self._num_shown:
            self._refuse(len(frames))
        if not self._shape:
            self._shape = frames[0].shape
            height, width, *rest = self._shape
            num_rows = math.ceil(self._num_shown / self._num_columns)
            size = (num_rows * height, self._num_columns * width, *rest)
            self._canvas = np.zeros(size, frames[0].dtype)
        for b in np.flatnonzero(self._missing):
            self._draw(int(b), frames[b])
        self._missing -= (self._missing > 0) & time_step.is_last().numpy(force=True)
        self._video.add(self._canvas)

    def _draw(self, index: int, frame: np.ndarray) -> None:
        if frame.shape != self._shape:
            raise EnvError(
                f"environment {index} of {self._env.name} draws a frame of shape "
                f"{frame.shape}, those before were {self._shape}: they make no video"
            )
        row, column = divmod(index, self._num_columns)
        height, width = self._shape[:2]
        self._canvas[
            row * height : (row + 1) * height, column * width : (column + 1) * width
        ] = frame

    def _refuse(self, num_frames: int) -> None:
        name = self._env.name
        if num_frames == 0:
            raise ConfigError(
                f"{name} renders nothing: it cannot be recorded. Does it support "
                "render_mode='rgb_array'?"
            )
        raise ConfigError(
            f"{name} draws {num_frames} of the {self._num_shown} environments to "
            f"record. Give --num_environments={num_frames}."
        )
