"""Plays the policy of a run, built from its configuration and a checkpoint."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from alf_lite.config import TrainerConfig
from alf_lite.config import files as config_files
from alf_lite.environments.creation import create_environment
from alf_lite.environments.environment import Environment
from alf_lite.errors import ConfigError
from alf_lite.trainers.evaluator import EvalResult, evaluate
from alf_lite.trainers.run_directory import RunDirectory
from alf_lite.trainers.run_policy import (
    build_policy,
    load_policy_checkpoint,
    read_run_config,
)
from alf_lite.trainers.video import EpisodeRecorder, VideoFile


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
