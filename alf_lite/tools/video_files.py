"""Video files, and what of the extra ``video`` they need."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from alf_lite.checkpoints import files
from alf_lite.errors import ConfigError, needs_extra

_needs_extra = functools.partial(needs_extra, "recording", "video")
_SUFFIXES = (".mp4", ".gif", ".webm", ".mkv", ".mov", ".avi")


def pillow(font_size: int) -> tuple[Any, Any, Any]:
    """Pillow's ``Image`` and ``ImageDraw``, and a font of a size in pixels."""
    with _needs_extra():
        from PIL import Image, ImageDraw, ImageFont
    return Image, ImageDraw, ImageFont.load_default(font_size)


def check_can_record(suffix: str = ".mp4") -> None:
    """Raises ConfigError if what such a file needs of the extra is missing."""
    with _needs_extra():
        import imageio.v2  # noqa: F401

        if suffix != ".gif":
            import imageio_ffmpeg  # noqa: F401
    pillow(12)


class VideoFile:
    """A video that is written frame by frame; a context manager.

    If its block raises, by Ctrl-C too, there is none, and an earlier one stays.

    Args:
        path: its suffix chooses the format: ``.mp4``, ``.gif``, ``.webm``, ...
        frames_per_second: of the playback.

    Raises:
        ConfigError: if the extra is missing, the format is unknown or the file cannot
            be written.
    """

    def __init__(self, path: str | Path, frames_per_second: float) -> None:
        self._path = self.check(path)
        suffix = self._path.suffix.lower()
        import imageio.v2 as imageio

        options: dict[str, Any] = {
            "format": "FFMPEG",
            "fps": frames_per_second,
            # Codecs want even sizes; the default would resize to multiples of 16.
            "macro_block_size": 2,
        }
        if suffix == ".gif":
            options = {"format": "GIF", "duration": 1000 / frames_per_second, "loop": 0}
        # An earlier file is replaced by a whole one, or stays.
        self._closing = contextlib.ExitStack()
        output = files.new_output(self._path, replace_file=True)
        path = self._closing.enter_context(output)
        with _needs_extra():
            self._writer: Any = imageio.get_writer(path, **options)
        self._closing.push(self._close)

    @staticmethod
    def check(path: str | Path) -> Path:
        """The path, if a video can be written there; raises ConfigError if not."""
        path = Path(path).expanduser()
        if path.suffix.lower() not in _SUFFIXES:
            raise ConfigError(
                f"{path}: a video file ends in one of {', '.join(_SUFFIXES)}"
            )
        check_can_record(path.suffix.lower())
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            was_there = path.exists()
            path.touch()
            if not was_there:
                path.unlink()  # nothing may be recorded in the end
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
        return path

    def add(self, frame: np.ndarray) -> None:
        """Appends a frame [height, width, 3] uint8."""
        with self._errors_of_disk():
            self._writer.append_data(frame)

    def __enter__(self) -> VideoFile:
        return self

    def __exit__(self, *error: Any) -> None:
        self._closing.__exit__(*error)

    def _close(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if error is not None:
            with contextlib.suppress(OSError):  # after another one
                self._writer.close()
            return
        with self._errors_of_disk():
            self._writer.close()

    @contextlib.contextmanager
    def _errors_of_disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            # The rest are pages of FFmpeg's, which has said the same already.
            why = str(error).partition("\n")[0]
            raise ConfigError(
                f"{self._path} cannot be written: {why}. Is the disk full?"
            ) from error
