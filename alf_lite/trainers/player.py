"""Plays the policy of a run, built from its checkpoint, and records it as a video."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from alf_lite.config import TrainerConfig
from alf_lite.config import files as config_files
from alf_lite.data_structures import TimeStep
from alf_lite.environments.creation import create_environment
from alf_lite.environments.environment import Environment
from alf_lite.errors import ConfigError, EnvError
from alf_lite.trainers.evaluator import EvalResult, evaluate, quotas
from alf_lite.trainers.run_directory import RunDirectory
from alf_lite.trainers.run_policy import (
    build_policy,
    load_policy_checkpoint,
    read_run_config,
)

_MISSING = "recording needs the video extra: pip install 'alf_lite[video]'"
_SUFFIXES = (".mp4", ".gif", ".webm", ".mkv", ".mov", ".avi")


class PlayResult(NamedTuple):
    """The episodes that were played, and by which policy."""

    evaluation: EvalResult
    checkpoint: Path
    step: int  # iterations of training


def play(
    root_dir: str | Path,
    num_episodes: int,
    *,
    checkpoint: str | int = "latest",
    num_environments: int = 1,
    sample: bool = False,
    render: bool = False,
    record_file: str | Path | None = None,
    device: str | None = None,
    seed: int = 0,
    gin_params: Sequence[str] = (),
    config: TrainerConfig | None = None,
    create_env: Callable[..., Environment] = create_environment,
) -> PlayResult:
    """Plays whole episodes with a checkpointed policy.

    The configuration of the run is read and executed: play only runs that you trust, as
    you would run only programs that you trust.

    Args:
        root_dir: of the run.
        num_episodes: how many.
        checkpoint: "latest", "best" (by the evaluations during training) or a step.
        num_environments: stepped side by side.
        sample: draw actions from the policy instead of taking the most likely ones.
        render: show environment 0 in a window.
        record_file: write a video of the episodes, such as ``play.mp4`` or ``.gif``;
            several environments are side by side.
        device: of the networks; that of the training by default.
        seed: of the environments and the sampling.
        gin_params: override the configuration of the run.
        config: what the run was built with in Python, instead of its conf.
        create_env: builds the environments, see :class:`Trainer`.

    Raises:
        ConfigError: if there is no run, no display, or the video extra is missing.
        CheckpointError: if the checkpoint cannot be used.
    """
    RunDirectory(root_dir).read_user_config()  # to say so, if there is no run
    render_mode = _render_mode(render, record_file)
    if config is None:
        config = read_run_config(root_dir, gin_params)
    elif gin_params:
        raise ConfigError("gin_params override a conf: change config instead")
    if sample:
        config = dataclasses.replace(config, epsilon_greedy=1.0)
    if device is not None:
        config = dataclasses.replace(config, device=device)
    loaded = load_policy_checkpoint(root_dir, checkpoint)
    with contextlib.ExitStack() as stack:
        with config_files.gin_errors():
            env = create_env(
                num_parallel_environments=num_environments,
                seed=seed,
                render_mode=render_mode,
            )
        stack.callback(env.close)
        algorithm = build_policy(config, env, loaded)
        on_step: EpisodeRecorder | None = None
        if record_file is not None:
            video = stack.enter_context(
                VideoFile(record_file, env.metadata.get("render_fps") or 30)
            )
            on_step = EpisodeRecorder(env, video, num_episodes)
        result = evaluate(algorithm, env, num_episodes, seed=seed, on_step=on_step)
    return PlayResult(result, loaded.path, loaded.step)


def _render_mode(render: bool, record_file: str | Path | None) -> str | None:
    """The render mode; recording needs no display."""
    if render and record_file is not None:
        raise ConfigError("render and record_file exclude each other: give one of them")
    has_display = sys.platform != "linux" or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")
    )
    if render and not has_display:
        raise ConfigError(
            "there is no display to render on. Record a video instead: "
            "--record_file=play.mp4"
        )
    if render:
        return "human"
    if not has_display:
        # pygame looks for a display, and complains, even if it only draws into memory.
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    return None if record_file is None else "rgb_array"


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
