"""Videos of episodes: when, which ones, and what is in the picture."""

from __future__ import annotations

import contextlib
import io
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from alf_lite.algorithms.rl_contract import RLContract
from alf_lite.config import configurable
from alf_lite.data_structures import TimeStep
from alf_lite.environments.environment import Environment
from alf_lite.errors import ConfigError
from alf_lite.policies.evaluator import (
    EpisodeRecording,
    EvalEpisode,
    EvalResult,
    Video,
    evaluate,
)
from alf_lite.tools.video_files import VideoFile, check_can_record, pillow
from alf_lite.trainers.hooks import Hook, Training
from alf_lite.utils.checks import check_unused

_logger = logging.getLogger(__name__)

_MIN_FRAMES_PER_SECOND = 5.0
_TEXT_COLOR, _BAR_COLOR = (255, 255, 255), (24, 24, 27)
_GAP = 4  # pixels between two panels
_NUM_LETTERS = 27  # that a line has room for at least
_MAX_GIF_FRAMES, _MAX_GIF_WIDTH = 100, 400  # it lies in an event file


@configurable
class VideoRecorder(Hook):
    """Records the worst, the median and the best episode of evaluations.

    ``root_dir/videos`` has a file of each, TensorBoard a small one. The episodes are
    played and drawn after the evaluation, once more.

    Args:
        every: evaluations from one that is recorded to the next. That of the end is
            always recorded.
        height: of an episode in the picture, in pixels.
        max_frames: of the longest episode; of longer ones every second, third, … step
            is shown.
        priority: see :class:`Hook`.
    """

    def __init__(
        self,
        every: int = 1,
        height: int = 240,
        max_frames: int = 200,
        priority: int = 50,
    ) -> None:
        super().__init__(priority)
        for name, value in (("every", every), ("height", height)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if max_frames < 2:
            raise ValueError(f"max_frames must be at least 2, got {max_frames}")
        self.recording: EpisodeRecording = VideoSettings(every, height, max_frames)
        check_can_record()

    def before_train(self, training: Training) -> None:
        config = training.algorithm.config
        if not config.evaluate:
            raise ConfigError(
                "VideoRecorder records evaluations: set TrainerConfig.evaluate = True"
            )
        if not config.eval_interval:
            reason = "the only evaluation is that of the end (eval_interval is 0)"
            check_unused(VideoRecorder, reason, every=self.recording.every)
        if not training.owns_root_dir:
            raise ConfigError(
                "VideoRecorder: there is nowhere to write to. Give Trainer a root_dir."
            )


class VideoSettings(NamedTuple):
    """What is recorded of evaluations: an ``EpisodeRecording``."""

    every: int = 1  # evaluations from one that is recorded to the next
    height: int = 240  # pixels of a panel
    max_frames: int = 200  # of longer episodes every second, third, … step is shown

    def check(self, env: Environment) -> None:
        num_environments_drawn(env)

    def record(
        self,
        algorithm: RLContract,
        env: Environment,
        result: EvalResult,
        path: str | Path,
        on_step: Callable[[TimeStep], None] | None = None,
    ) -> Video:
        return record_episodes(algorithm, env, result, path, self, on_step)


def worst_median_best(returns: Sequence[float]) -> dict[str, int]:
    """Which of the episodes are shown, from the worst to the best.

    Of two it is the worst and the best one, of four and more there are two around the
    median. Of equal ones the earlier comes first.
    """
    order = np.argsort(returns, kind="stable").tolist()
    number, middle = len(order), len(order) // 2
    names, places = ["worst", "lower median", "upper median", "best"], [0, middle - 1]
    places += [middle, number - 1]
    if number % 2:
        names[1:3] = ["below median", "median"]
    if number == 3:
        del names[1], places[1]
    elif number < 3:
        names, places = ["worst", "best"][-number:], [0, number - 1][-number:]
    return {name: order[place] for name, place in zip(names, places, strict=True)}


def record_episodes(
    algorithm: RLContract,
    env: Environment,
    result: EvalResult,
    path: str | Path,
    settings: VideoSettings | None = None,
    on_step: Callable[[TimeStep], None] | None = None,
) -> Video:
    """Plays an evaluation once more, and records the worst, median and best episodes.

    Only these are drawn, and only after it is known which they are. What is written in
    the picture is what is played now; an environment that does not repeat itself may
    play other episodes than before.

    Args:
        algorithm: as it was in the evaluation.
        env: of the evaluation, made with ``render_mode="rgb_array"``.
        result: of the evaluation, with a seed.
        path: of the file.
        settings: see there.
        on_step: called with every time step.

    Raises:
        ConfigError: if nothing can be drawn or written.
    """
    settings = settings or VideoSettings()
    num_drawn = num_environments_drawn(env)
    drawn = [e for e in result.episodes if e.environment < num_drawn]
    returns = [episode.episode_return for episode in drawn]
    chosen = {name: drawn[i] for name, i in worst_median_best(returns).items()}
    longest = max(episode.length for episode in chosen.values())
    stride = math.ceil((longest + 1) / settings.max_frames)
    clips = [
        _Clip(name, episode, settings.height, stride)
        for name, episode in chosen.items()
    ]
    recorder = _ClipRecorder(algorithm, env, clips, on_step)
    with contextlib.suppress(_AllRecordedError):
        evaluate(
            algorithm,
            env,
            len(result.episodes),
            seed=result.episodes[0].seed,
            on_step=recorder,
        )
    speed = max(frames_per_second(env) / stride, _MIN_FRAMES_PER_SECOND)
    with VideoFile(path, speed) as file:
        for frame in _side_by_side(clips):
            file.add(frame)
    gif, size = _small_gif(clips, speed)
    for clip in clips:
        if not math.isclose(clip.total, clip.episode.episode_return, rel_tol=1e-4):
            _logger.warning(
                "%s does not repeat its episodes: the %s one of %s returned %.2f, and "
                "%.2f when it was recorded.",
                env.name,
                clip.name,
                path,
                clip.episode.episode_return,
                clip.total,
            )
    return Video(str(path), chosen, gif, size)


def frames_per_second(env: Environment) -> float:
    """How fast the environment is to be shown."""
    return float(env.metadata.get("render_fps") or 30)


def num_environments_drawn(env: Environment) -> int:
    """How many environments can be drawn: some batches draw their first one alone.

    Raises:
        ConfigError: if none can.
    """
    number = env.num_rendered
    if number == 0:
        raise ConfigError(
            f"{env.name} renders nothing: it cannot be recorded. Does it support "
            "render_mode='rgb_array'?"
        )
    return number


class _AllRecordedError(Exception):
    """The rest of the evaluation need not be played."""


class _Clip:
    """The pictures of one episode, compressed while others are played."""

    def __init__(
        self, name: str, episode: EvalEpisode, height: int, stride: int
    ) -> None:
        self.name = name
        self.episode = episode
        self.num_steps = 0
        self.total = 0.0  # the return so far
        self.is_complete = False
        self._height = height
        self._stride = stride
        self._frames: list[tuple[bytes, str]] = []  # compressed, with the numbers

    def add(self, env: Environment, is_last: bool) -> None:
        """Draws the environment, if this step is to be shown."""
        self.is_complete = is_last
        if self.num_steps % self._stride and not is_last:
            return
        frame = env.render_rows([self.episode.environment])[0]
        assert frame is not None, env.name
        stream = io.BytesIO()
        _scaled(frame, self._height).save(stream, "JPEG", quality=92)
        text = f"step {self.num_steps}   return {self.total:.2f}"
        self._frames.append((stream.getvalue(), text))

    def frame(self, index: int) -> np.ndarray:
        """[height, width, 3]; the last one stays."""
        from PIL import Image

        picture, text = self._frames[min(index, len(self._frames) - 1)]
        frame = np.asarray(Image.open(io.BytesIO(picture)))
        # What was played, should it not be what was played before.
        title = f"{self.name}: {self.total:.2f}"
        return np.asarray(captioned(frame, (title, text), self._height))

    def __len__(self) -> int:
        return len(self._frames)


class _ClipRecorder:
    """The ``on_step`` of an evaluation that fills clips."""

    def __init__(
        self,
        algorithm: RLContract,
        env: Environment,
        clips: Sequence[_Clip],
        on_step: Callable[[TimeStep], None] | None,
    ) -> None:
        self._on_step = on_step
        self._algorithm = algorithm
        self._env = env
        self._clips = clips
        self._number = np.full(env.batch_size, -1)  # of the episode that is played

    def __call__(self, time_step: TimeStep) -> None:
        if self._on_step is not None:
            self._on_step(time_step)
        self._number += time_step.is_first().numpy(force=True)
        rewards = self._algorithm.scalar_reward(
            time_step.reward.to(self._algorithm.device)
        ).tolist()
        is_last = time_step.is_last().tolist()
        for clip in self._clips:
            b, number = clip.episode.environment, clip.episode.number
            if clip.is_complete or self._number[b] != number:
                continue
            if not time_step.is_first()[b]:
                clip.num_steps += 1
                clip.total += rewards[b]
            clip.add(self._env, is_last[b])
        if all(clip.is_complete for clip in self._clips):
            raise _AllRecordedError


def _side_by_side(clips: Sequence[_Clip], stride: int = 1) -> Iterator[np.ndarray]:
    """Pictures of all clips at the same step; those that have ended stand still."""
    num_columns = 2 if len(clips) == 4 else len(clips)
    firsts = [clip.frame(0) for clip in clips]
    height = max(frame.shape[0] for frame in firsts) + _GAP
    width = max(frame.shape[1] for frame in firsts) + _GAP
    size = (math.ceil(len(clips) / num_columns) * height, num_columns * width, 3)
    longest = max(map(len, clips))
    for t in [*range(0, longest - 1, stride), longest - 1]:
        canvas = np.full(size, _BAR_COLOR, np.uint8)
        for i, clip in enumerate(clips):
            row, column = divmod(i, num_columns)
            frame = clip.frame(t)
            top, left = row * height, column * width
            canvas[top : top + frame.shape[0], left : left + frame.shape[1]] = frame
        yield canvas


def captioned(frame: np.ndarray, lines: Sequence[str], height: int) -> Any:
    """A picture [height, width, 3] uint8 scaled to a height, below lines of text.

    Returns:
        An image of Pillow.
    """
    image_module, draw_module, font = pillow(max(11, round(height / 17)))
    picture = _scaled(frame, height)
    line_height = round(font.size * 1.35)
    # The same for all pictures of a video.
    width = max(picture.width, math.ceil(font.getlength("0") * _NUM_LETTERS))
    bar_height = line_height * len(lines) + 4
    canvas = image_module.new("RGB", (width, height + bar_height), _BAR_COLOR)
    canvas.paste(picture, ((width - picture.width) // 2, bar_height))
    draw = draw_module.Draw(canvas)
    for i, line in enumerate(lines):
        draw.text((4, 2 + i * line_height), line, fill=_TEXT_COLOR, font=font)
    return canvas


def _scaled(frame: np.ndarray, height: int) -> Any:
    """The frame as an image of Pillow."""
    image_module, _, _ = pillow(12)
    frame = np.asarray(frame)
    if frame.ndim == 2:
        frame = np.repeat(frame[..., None], 3, axis=2)
    picture = image_module.fromarray(np.ascontiguousarray(frame[..., :3], np.uint8))
    if picture.height == height:
        return picture
    return picture.resize(
        (max(1, round(picture.width * height / picture.height)), height)
    )


def _small_gif(clips: Sequence[_Clip], speed: float) -> tuple[bytes, tuple[int, int]]:
    """The pictures as an animation that a browser shows, and its height and width."""
    image_module, _, _ = pillow(12)
    stride = math.ceil(max(map(len, clips)) / _MAX_GIF_FRAMES)
    pictures = []
    for frame in _side_by_side(clips, stride):
        height, width = frame.shape[:2]
        scale = min(1.0, _MAX_GIF_WIDTH / width)
        size = (max(1, round(width * scale)), max(1, round(height * scale)))
        pictures.append(image_module.fromarray(frame).resize(size).quantize(128))
    stream = io.BytesIO()
    pictures[0].save(
        stream,
        "GIF",
        save_all=True,
        append_images=pictures[1:],
        duration=round(1000 * stride / speed),
        loop=0,
    )
    return stream.getvalue(), (size[1], size[0])
