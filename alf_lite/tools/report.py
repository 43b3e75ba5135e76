"""What the programs tell: of training, evaluations and recorded steps."""

from __future__ import annotations

import contextlib
import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from alf_lite.policies.evaluator import EvalResult
from alf_lite.tools import pictures
from alf_lite.tools.invocation import invocation
from alf_lite.tools.step_statistics import Findings, Statistics
from alf_lite.trainers.progress_measures import format_return, format_seconds
from alf_lite.trainers.run_end import TrainResult
from alf_lite.utils import game_results

_NUM_BINS = 10
_BAR_WIDTH = 40


def training_lines(result: TrainResult) -> list[str]:
    """How the run ended, how good it is, and what to do with it."""
    root_dir = _from_here(result.root_dir)
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
    typed = shlex.quote(str(root_dir))
    play = f"{invocation('play')} --root_dir={typed}"
    lines += [
        f"Checkpoint:   {result.checkpoint and _from_here(result.checkpoint)}",
        f"TensorBoard:  tensorboard --logdir={typed}",
    ]
    if result.evaluation is not None and result.evaluation.games:
        arena = f"{invocation('arena')} {typed} random"
        return [*lines, f"Play it:      {play} --human", f"Rate it:      {arena}"]
    return [
        *lines,
        f"Watch it:     {play} --render",
        f"Record it:    {play} --record_file=play.mp4",
    ]


def _from_here(path: Path) -> Path:
    """As one would type it: relative to the current directory if it is below."""
    with contextlib.suppress(ValueError, OSError):  # elsewhere; no directory any more
        return path.relative_to(Path.cwd())
    return path


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
    first = (
        f"mean return {result.mean:.2f}, {confidence}{episodes} "
        f"(min {result.min:.2f}, max {result.max:.2f}, "
        f"mean length {result.mean_length:.1f})"
    )
    if result.games:
        first = (
            f"score {result.score:+.3f} (mean outcome over opponents and seats), "
            f"{episodes} (mean length {result.mean_length:.1f})"
        )
    numbers = {**result.mean_parts, **result.info}
    infos = [f"{name}: {value:.4g}" for name, value in numbers.items()]
    others = [*game_results.result_lines(result.games), *infos]
    return [f"Evaluation:   {first}", *(f"              {line}" for line in others)]


# Recorded steps


def summary_line(statistics: Statistics) -> str:
    """How much there is and how good it is, in one line."""
    episodes = _count(statistics.complete_episodes, "complete episode")
    average = statistics.average_return
    returns = "" if average is None else f", mean return {average:.2f}"
    return f"{_count(statistics.total_steps, 'step')}, {episodes}{returns}"


def source_lines(path: str, statistics: Statistics) -> list[str]:
    """All that is known of a source."""
    lines = [
        path,
        f"  {summary_line(statistics)}",
        f"  {_count(statistics.num_environments, 'environment')}, "
        f"{statistics.trainable_transitions} trainable transitions",
        f"  episode ends: {statistics.num_terminations} terminal, "
        f"{statistics.num_truncations} cut off by a limit",
        "  fields:",
    ]
    width = max(len(name) for name in statistics.fields)
    lines += [f"    {name:<{width}}  {f}" for name, f in statistics.fields.items()]
    seams = _count(statistics.num_seams, "seam")
    if statistics.num_seams:
        lines.append(f"  {seams}, where a step does not continue the one before:")
        lines += _places(statistics.seams, statistics.num_seams)
    else:
        lines.append(f"  {seams}")
    lines += _findings("NaN or infinite", statistics.not_finite)
    if statistics.has_bounds:
        lines += _findings("out of bounds", statistics.out_of_bounds)
    else:
        lines.append("  bounds not compared: name the environment by --env or --conf")
    if statistics.returns:
        lengths = np.array(statistics.lengths)
        lines.append(
            f"  episode lengths: mean {lengths.mean():.1f}, min {lengths.min()}, "
            f"max {lengths.max()}"
        )
        lines += ["  returns of complete episodes:", *_histogram(statistics.returns)]
    return lines


def steps_as_json(
    statistics: Sequence[Statistics], paths: Sequence[str]
) -> dict[str, Any]:
    """The statistics of one source, or of several together and one by one."""
    if len(statistics) == 1:
        return {"path": paths[0], **_as_json(statistics[0])}
    returns = [r for source in statistics for r in source.returns]
    each = [_as_json(source) for source in statistics]
    counts = [name for name, value in each[0].items() if isinstance(value, int)]
    return {
        **{name: sum(source[name] for source in each) for name in counts},
        "average_return": _finite(float(np.mean(returns))) if returns else None,
        "fields": {k: v for source in each for k, v in source["fields"].items()},
        "sources": [
            {"path": path, **source} for path, source in zip(paths, each, strict=True)
        ],
    }


def draw_returns(
    statistics: Sequence[Statistics], paths: Sequence[str], file: str | Path
) -> None:
    """Draws the returns and the lengths of the complete episodes.

    Raises:
        ConfigError: if the ``plot`` extra is missing or the file cannot be written.
    """
    styles = [pictures.line_style(i) for i in range(len(paths))]
    colours = [style["color"] for style in styles]
    with pictures.picture(file, 1, 2, size=(4.5, 3.4)) as (figure, axes):
        for values, axis, label in (
            ([source.returns for source in statistics], axes[0], "return"),
            ([source.lengths for source in statistics], axes[1], "length in steps"),
        ):
            if any(values):
                axis.hist(values, bins=30, color=colours)
            axis.set_xlabel(label)
            axis.set_ylabel("complete episodes")
        if len(paths) > 1:
            pictures.legend(figure, dict(zip(paths, styles, strict=True)))


def _as_json(statistics: Statistics) -> dict[str, Any]:
    return {
        "total_steps": statistics.total_steps,
        "num_environments": statistics.num_environments,
        "trainable_transitions": statistics.trainable_transitions,
        "complete_episodes": statistics.complete_episodes,
        "average_return": _finite(statistics.average_return),
        "fields": {
            name: {"shape": list(field.shape), "dtype": str(field.dtype)}
            for name, field in statistics.fields.items()
        },
        "num_terminations": statistics.num_terminations,
        "num_truncations": statistics.num_truncations,
        "num_seams": statistics.num_seams,
        "seams": statistics.seams,
        "num_not_finite": statistics.not_finite.count,
        "not_finite": statistics.not_finite.places,
        **(
            {
                "num_out_of_bounds": statistics.out_of_bounds.count,
                "out_of_bounds": statistics.out_of_bounds.places,
            }
            if statistics.has_bounds
            else {}
        ),
        "returns": [_finite(value) for value in statistics.returns],
        "lengths": statistics.lengths,
    }


def _finite(value: float | None) -> float | None:
    """JSON has no NaN."""
    return value if value is not None and math.isfinite(value) else None


def _count(number: int, unit: str) -> str:
    return f"{number} {unit}{'' if number == 1 else 's'}"


def _findings(what: str, findings: Findings) -> list[str]:
    lines = [f"  {what}: {_count(findings.count, 'value')}"]
    return lines + _places(findings.places, findings.count)


def _places(places: list[str], count: int) -> list[str]:
    more = [f"    and {count - len(places)} more"] if count > len(places) else []
    return [f"    {place}" for place in places] + more


def _histogram(values: list[float]) -> list[str]:
    """The numbers of values in equal parts of their range, as bars."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ["    none of them is finite"]
    counts, edges = np.histogram(finite, bins=_NUM_BINS)
    texts = [f"{edge:.2f}" for edge in edges]
    width = max(map(len, texts))
    return [
        f"    {low:>{width}} to {high:>{width}} "
        f"{'#' * math.ceil(_BAR_WIDTH * count / counts.max()):<{_BAR_WIDTH}} {count}"
        for low, high, count in zip(texts, texts[1:], counts, strict=False)
    ]
