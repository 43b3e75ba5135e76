"""What the programs tell about training and evaluations, as lines of text."""

from __future__ import annotations

import math

from alf_lite.trainers.evaluator import EvalResult
from alf_lite.trainers.progress_display import format_return, format_seconds
from alf_lite.trainers.run_end import TrainResult


def training_lines(result: TrainResult) -> list[str]:
    """How the run ended, how good it is, and what to do with it."""
    root_dir = result.root_dir
    done = f"{result.iterations} iterations, {result.env_steps} environment steps"
    if result.was_finished:
        return [
            f"The run in {root_dir} is already finished: {done}.",
            "To train longer, give the same command with a higher limit, such as "
            "--gin_param='TrainerConfig.num_iterations = N',",
            "or 'TrainerConfig.num_env_steps = N'. For a new run use another root_dir.",
        ]
    if result.stop_signal is not None:
        saved = f"Saved {result.checkpoint}. " if result.checkpoint else ""
        return [
            f"Stopped by {result.stop_signal.name} after {done}. {saved}"
            "The same command continues."
        ]
    lines = [
        f"Trained {done} in {format_seconds(result.seconds)} ({result.stop_reason})."
    ]
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
