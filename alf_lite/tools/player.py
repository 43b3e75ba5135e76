"""Plays the policy of a run, built from its checkpoint, and records it as a video."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from alf_lite.algorithms.acting import check_can_draw
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.config import files as config_files
from alf_lite.config.bindings import evaluation_scope
from alf_lite.data_structures import TimeStep
from alf_lite.environments.creation import create_environment
from alf_lite.environments.environment import Environment
from alf_lite.errors import ConfigError, EnvError
from alf_lite.policies.evaluator import EvalResult, evaluate, quotas
from alf_lite.policies.run_policy import (
    build_policy,
    load_policy_checkpoint,
    read_run_config,
)
from alf_lite.runs.directory import RunDirectory
from alf_lite.tools.shown_policy import Words, words_of
from alf_lite.tools.video_files import VideoFile
from alf_lite.tools.videos import (
    captioned,
    frames_per_second,
    num_environments_drawn,
    record_episodes,
)

_logger = logging.getLogger(__name__)


class PlayResult(NamedTuple):
    """The episodes that were played, and by which policy."""

    evaluation: EvalResult
    checkpoint: Path
    step: int  # iterations of training
    epsilon_greedy: float = 0.0  # 0: the best actions; 1: all drawn from the policy
    created_with: Mapping[str, Any] | None = None  # of create_environment, if by that
    can_draw: bool = True  # whether the policy has a distribution to draw actions from


def play(
    root_dir: str | Path,
    num_episodes: int,
    *,
    checkpoint: str | int = "latest",
    num_environments: int = 1,
    sample: bool = False,
    render: bool = False,
    record_file: str | Path | None = None,
    record: Literal["all", "worst_median_best"] = "all",
    show_policy: bool = False,
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
        record: all episodes, or the worst, the median ones and the best side by side;
            these are played a second time.
        show_policy: write into the video of all episodes what the policy thinks: the
            distribution of its actions, or their values.
        device: of the networks; that of the training by default.
        seed: of the environments and the sampling.
        gin_params: override the configuration of the run.
        config: what no conf can say of the run, see :func:`load_policy`.
        create_env: builds the environments, see :class:`Trainer`.

    Raises:
        ConfigError: if there is no run, no display, or the video extra is missing; or
            if there is nothing of the policy to show, or to draw from.
        CheckpointError: if the checkpoint cannot be used.
    """
    RunDirectory(root_dir).read_user_config()  # to say so, if there is no run
    render_mode = _render_mode(render, record_file)
    if show_policy and (record_file is None or record != "all"):
        raise ConfigError("show_policy is for a record_file of all episodes")
    with contextlib.ExitStack() as stack:
        stack.enter_context(config_files.own_config())
        config = read_run_config(root_dir, gin_params, config=config)
        if sample:
            config = dataclasses.replace(config, epsilon_greedy=1.0)
        if device is not None:
            config = dataclasses.replace(config, device=device)
        loaded = load_policy_checkpoint(root_dir, checkpoint)
        with config_files.gin_errors(), evaluation_scope():
            env = create_env(
                num_parallel_environments=num_environments,
                seed=seed,
                render_mode=render_mode,
            )
        stack.callback(env.close)
        algorithm = build_policy(config, env, loaded)
        if sample:
            check_can_draw(algorithm, "sample")
        on_step: EpisodeRecorder | None = None
        if record_file is not None and record == "all":
            file = VideoFile(record_file, frames_per_second(env))
            video = stack.enter_context(file)
            words = words_of(algorithm) if show_policy else None
            on_step = EpisodeRecorder(algorithm, env, video, num_episodes, words)
        elif record_file is not None:
            VideoFile.check(record_file)  # before anything is played
        result = evaluate(algorithm, env, num_episodes, seed=seed, on_step=on_step)
        if record_file is not None and record != "all":
            record_episodes(algorithm, env, result, record_file)
    return PlayResult(
        result,
        loaded.path,
        loaded.step,
        algorithm.predict_epsilon,
        env.created_with,
        algorithm.rl_algorithm.has_stochastic_policy,
    )


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
    return None if record_file is None else "rgb_array"


class EpisodeRecorder:
    """Records exactly the episodes that an evaluation counts; its ``on_step``.

    Several environments are side by side, row by row. Each stands still when it has
    played its episodes.

    Args:
        algorithm: that acts.
        env: made with ``render_mode="rgb_array"``.
        video: where the frames go.
        num_episodes: of the evaluation.
        words: a line more for each environment.

    Raises:
        ConfigError: if nothing can be drawn.
    """

    def __init__(
        self,
        algorithm: RLAlgorithm,
        env: Environment,
        video: VideoFile,
        num_episodes: int,
        words: Words | None = None,
    ) -> None:
        self._words = words
        self._lines: Sequence[str] = ()  # of all environments, by their words
        self._algorithm = algorithm
        self._env = env
        self._video = video
        self._missing = quotas(env.batch_size, num_episodes)
        self._was_last = np.zeros(env.batch_size, dtype=bool)
        self._num_shown = 0  # known with the first step
        self._episode = np.zeros(env.batch_size, dtype=int)  # the first one is 1
        self._length = np.zeros(env.batch_size, dtype=int)
        self._total = np.zeros(env.batch_size)
        self._shape: tuple[int, ...] = ()  # of a frame
        self._canvas = np.zeros(0, np.uint8)

    def __call__(self, time_step: TimeStep) -> None:
        """Adds a frame of what the environments look like now.

        Raises:
            EnvError: if their frames differ in size.
        """
        self._count(time_step)
        if self._words is not None:
            self._lines = self._words(time_step)
        if not self._num_shown:
            self._num_shown = self._how_many()
        shown = np.flatnonzero(self._is_open()[: self._num_shown]).tolist()
        if shown:
            frames = self._env.render_rows(shown)
            for i, frame in zip(shown, frames, strict=True):
                assert frame is not None, i
                self._draw(i, frame)
            self._video.add(self._canvas)
        is_last = time_step.is_last().numpy(force=True)
        # An agent that waits for the others has LAST steps, of which the first one ends
        self._missing -= (self._missing > 0) & is_last & ~self._was_last
        self._was_last = is_last

    def _is_open(self) -> np.ndarray:
        """Whether episodes are missing, of each environment or game that is drawn."""
        return np.any(self._missing.reshape(-1, self._env.rows_per_frame), axis=1)

    def _count(self, time_step: TimeStep) -> None:
        is_first = time_step.is_first().numpy(force=True)
        reward = self._algorithm.scalar_reward(
            time_step.reward.to(self._algorithm.device)
        )
        self._episode += is_first
        self._length = np.where(is_first, 0, self._length + 1)
        self._total = np.where(is_first, 0.0, self._total + reward.numpy(force=True))

    def _how_many(self) -> int:
        """The environments that play episodes and can be drawn."""
        wanted = int(self._is_open().sum())
        number = min(wanted, num_environments_drawn(self._env))
        if number < wanted:
            _logger.warning(
                "%s draws %d of the %d environments that play: the others are not in "
                "the video.",
                self._env.name,
                number,
                wanted,
            )
        return number

    def _draw(self, index: int, frame: np.ndarray) -> None:
        row = index * self._env.rows_per_frame
        text = (
            f"episode {self._episode[row]}  step {self._length[row]}  "
            f"return {self._total[row]:.2f}"
        )
        if not self._shape:
            self._shape = frame.shape
        if frame.shape != self._shape:
            raise EnvError(
                f"environment {index} of {self._env.name} draws a frame of shape "
                f"{frame.shape}, those before were {self._shape}: they make no video"
            )
        lines = [text, *self._lines[row : row + 1]]
        picture = np.asarray(captioned(frame, lines, frame.shape[0]))
        height, width = picture.shape[:2]
        num_columns = math.ceil(math.sqrt(self._num_shown))
        if not self._canvas.size:
            num_rows = math.ceil(self._num_shown / num_columns)
            size = (num_rows * height, num_columns * width, 3)
            self._canvas = np.zeros(size, np.uint8)
        row, column = divmod(index, num_columns)
        top, left = row * height, column * width
        self._canvas[top : top + height, left : left + width] = picture
