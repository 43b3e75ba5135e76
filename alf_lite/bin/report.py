"""What the programs tell about training and evaluations, as lines of text."""

from __future__ import annotations

import math

from alf_lite.trainers.evaluator import EvalResult
from alf_lite.trainers.progress_display import format_return, format_seconds
from alf_lite.trainers.run_record import TrainResult


def training_lines(result: TrainResult) -> list[str]:
    """How the run ended, how good it is, and what to do with it."""
    root_dir = result.root_dir
    done = f"{result.iterations} iterations, {_steps_or_updates(result)}"
    if result.was_finished:
        return [
            f"The run in {root_dir} is already finished: {done}.",
            "To train longer, give the same command with a higher limit, such as "
            "--gin_param='TrainerConfig.num_iterations = N',",
            "or 'TrainerConfig.num_env_steps = N'. For a new run use another root_dir.",
        ]
    if result.stop_signal is not None:
        by = f"Stopped by {result.stop_signal.name} after {done}."
        if result.note:
            return [by, result.note]
        saved = f"Saved {result.checkpoint}. " if result.checkpoint else ""
        return [f"{by} {saved}The same command continues."]
    seconds = format_seconds(result.seconds)
    if result.seconds_now < result.seconds:
        seconds += f", {format_seconds(result.seconds_now)} of it since it was resumed"
    lines = [f"Trained {done} in {seconds} ({result.stop_reason})."]
    if result.evaluation is not None:
        lines += evaluation_lines(result.evaluation)
    elif not math.isnan(result.average_return):
        value = format_return(result.average_return)
        lines.append(f"Mean return of the latest training episodes: {value}")
    play = f"python -m alf_lite.bin.play --root_dir={root_dir}"
    return [
        *lines,
        f"Checkpoint:   {result.checkpoint}",
        f"TensorBoard:  tensorboard --logdir={root_dir}",
        f"Watch it:     {play} --render",
        f"Record it:    {play} --record_file=play.mp4",
    ]


def _steps_or_updates(result: TrainResult) -> str:
    if result.env_steps == 0 and result.num_updates > 0:
        return f"{result.num_updates} updates"
    return f"{result.env_steps} environment steps"


def evaluation_lines(result: EvalResult) -> list[str]:
    """The returns in one line, and the means of env_info in one each."""
    interval = result.ci95
    confidence = (
        ""
        if interval is None
        else f"95 % confidence interval [{interval[0]:.2f}, {interval[1]:.2f}], "
    )
    episodes = (
        "1 episode" if len(result.returns) == 1 else f"{len(result.returns)} episodes"
    )
    return [
        f"Evaluation:   mean return {result.mean:.2f}, {confidence}{episodes} "
        f"(min {result.min:.2f}, max {result.max:.2f}, "
        f"mean length {result.mean_length:.1f})",
        *(f"              {name}: {value:.4g}" for name, value in result.info.items()),
    ]
