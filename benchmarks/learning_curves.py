"""Draws the returns of runs against environment steps, and says when they get far.

Each curve is the mean over the runs of one kind, which differ in their seed, with its
95 % bootstrap interval. --flat is a horizontal line: what runs reach without a step in
the environment, those that never take one as well as those that pre-train. Needs
pip install 'alf_lite[plot]'.

python benchmarks/learning_curves.py --output=docs/pendulum.png --title=Pendulum-v1 \
    --curve 'online only' runs/sac_pendulum/* \
    --curve 'symmetric mixing' runs/hybrid_sac_pendulum/* \
    --flat 'offline only' runs/hybrid_sac_pendulum_offline/*

The first curve is the reference: for each, it prints the first environment step where
the mean of three evaluations was at least that of the last three of the reference.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from alf_lite.trainers.evaluator import bootstrap_ci95

_TAG = "eval_vs_EnvironmentSteps/AverageReturn"
_NUM_AVERAGED = 3  # evaluations, when steps are compared


class Curve(NamedTuple):
    """Runs of one kind: N evaluations of S seeds."""

    label: str
    env_steps: np.ndarray  # [N]
    returns: np.ndarray  # [N, S]
    is_flat: bool  # without a step in the environment

    @property
    def mean(self) -> np.ndarray:
        return self.returns.mean(axis=1)

    @property
    def interval(self) -> tuple[np.ndarray, np.ndarray]:
        """Low and high end, [N] each; the mean itself if there is one seed."""
        ends = [bootstrap_ci95(row) or (row[0], row[0]) for row in self.returns]
        low, high = np.array(ends).T
        return low, high


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("--curve", "--flat"):
        parser.add_argument(
            name, nargs="+", action="append", default=[], metavar="LABEL RUN"
        )
    parser.add_argument("--title", required=True)
    parser.add_argument("--output", required=True, help="of the picture")
    parser.add_argument("--bottom", type=float, help="lowest return that is shown")
    parser.add_argument("--end", type=int, help="last environment step that is shown")
    parser.add_argument("--threshold", type=float, help="instead of the reference's")
    args = parser.parse_args()
    if not args.curve:
        parser.error("--curve is missing: the reference")
    curves = [
        make_curve(label, [read_run(Path(run)) for run in runs], is_flat=is_flat)
        for is_flat, kinds in ((False, args.curve), (True, args.flat))
        for label, *runs in kinds
    ]
    for line in summary_lines(curves, args.threshold):
        print(line)
    draw(curves, args.title, args.output, args.bottom, args.end)


def read_run(root_dir: Path) -> list[tuple[int, float]]:
    """(environment steps, mean return) of every evaluation of a run, in order.

    Of several without a step between them, as while pre-training, the last one counts.
    """
    if not (root_dir / "train").is_dir():
        raise SystemExit(f"{root_dir}: there is no run")
    events = EventAccumulator(str(root_dir / "train"), size_guidance={"scalars": 0})
    events.Reload()
    if _TAG not in events.Tags()["scalars"]:
        raise SystemExit(f"{root_dir}: no evaluations in its summaries")
    latest = {event.step: event.value for event in events.Scalars(_TAG)}
    return sorted(latest.items())


def make_curve(
    label: str, runs: Sequence[list[tuple[int, float]]], *, is_flat: bool
) -> Curve:
    """Runs at common environment steps, those of the first run that all have reached.

    Args:
        label: of the kind of run.
        runs: (environment steps, return) of each; at least one.
        is_flat: only the return of each before its first step counts.
    """
    if is_flat:
        returns = np.array([[run[0][1] for run in runs]])
        return Curve(label, np.zeros(1), returns, is_flat=True)
    end = min(run[-1][0] for run in runs)
    env_steps = np.array([step for step, _ in runs[0] if step <= end])
    columns = [np.interp(env_steps, *zip(*run, strict=True)) for run in runs]
    return Curve(label, env_steps, np.stack(columns, axis=1), is_flat=False)


def steps_to_reach(curve: Curve, threshold: float) -> int | None:
    """The first environment step with a mean of some evaluations of ``threshold``.

    These are the evaluation there and those before it, so that a lucky one does not
    decide.
    """
    mean = curve.mean
    for index in range(len(mean)):
        recent = mean[max(0, index + 1 - _NUM_AVERAGED) : index + 1]
        if recent.mean() >= threshold:
            return int(curve.env_steps[index])
    return None


def summary_lines(curves: Sequence[Curve], threshold: float | None = None) -> list[str]:
    """One line for each kind of run.

    Args:
        curves: the first is the reference.
        threshold: a return to be reached; None for what the reference ends with.
    """
    if threshold is None:
        threshold = curves[0].mean[-_NUM_AVERAGED:].mean()
    lines = []
    for curve in curves:
        low, high = curve.interval
        line = (
            f"{curve.label}: final return {curve.mean[-1]:.1f} "
            f"[{low[-1]:.1f}, {high[-1]:.1f}], seeds: {curve.returns.shape[1]}"
        )
        if not curve.is_flat:
            steps = steps_to_reach(curve, threshold)
            reached = "never" if steps is None else f"after {steps} steps"
            line += f", {threshold:.1f} {reached}"
        lines.append(line)
    return lines


def draw(
    curves: Sequence[Curve],
    title: str,
    output: str,
    bottom: float | None = None,
    end: int | None = None,
) -> None:
    """Writes the picture."""
    figure = Figure(figsize=(6.4, 4.0), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    end = end or max(curve.env_steps[-1] for curve in curves)
    for index, curve in enumerate(curves):
        steps, mean, (low, high) = curve.env_steps, curve.mean, curve.interval
        if curve.is_flat:
            steps = np.array([0, end])
            mean, low, high = (np.repeat(values, 2) for values in (mean, low, high))
        style = {"color": f"C{index}", "linestyle": "--" if curve.is_flat else "-"}
        axes.plot(steps, mean, label=curve.label, linewidth=1.6, **style)
        axes.fill_between(steps, low, high, color=f"C{index}", alpha=0.2, linewidth=0)
    axes.set(
        title=title, xlabel="environment steps", ylabel="mean return", xlim=(0, end)
    )
    axes.xaxis.set_major_formatter(
        lambda value, _: f"{value / 1000:g}k" if value else "0"
    )
    if bottom is not None:
        axes.set_ylim(bottom=bottom)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", frameon=False)
    figure.savefig(output)


if __name__ == "__main__":
    main()
