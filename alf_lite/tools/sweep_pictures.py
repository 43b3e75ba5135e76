"""Pictures of a sweep, as Optuna draws them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from alf_lite.errors import needs_extra
from alf_lite.tools.search_space import Dimension
from alf_lite.tools.sweep_methods import study_of
from alf_lite.tools.sweep_trials import OPEN, Trial

# Importances of fewer trials say nothing.
_MIN_TRIALS = 4


def draw_pictures(
    folder: Path,
    space: Sequence[Dimension],
    trials: Sequence[Trial],
    minimize: bool,
    metric: str,
) -> list[Path]:
    """Scores over trials, scores over each setting, and how much each one matters.

    Args:
        folder: for the files.
        space: that was searched.
        trials: in their order.
        minimize: whether less is better.
        metric: what the score is, for the axes.

    Returns:
        The files; none if too few trials have finished.

    Raises:
        ConfigError: if an extra is missing.
    """
    num_finished = sum(trial.score is not None for trial in trials)
    if num_finished < 2:
        return []
    with needs_extra("a picture", "plot"):
        import matplotlib as mpl

        mpl.use("agg")
        from matplotlib import pyplot as plt
    with needs_extra("a picture of a sweep", "tune"):
        from optuna import importance
        from optuna.visualization import matplotlib as pictures
    ended = [(t.settings, t.state, t.score) for t in trials if t.state != OPEN]
    study = study_of(space, ended, minimize)
    files: list[Path] = []

    def save(name: str, axes: Any, *, width: float = 7.0) -> None:
        figure = (axes.flat[0] if hasattr(axes, "flat") else axes).figure
        figure.set_size_inches(width, 4.2)
        path = folder / f"{name}.png"
        figure.savefig(path, dpi=120, bbox_inches="tight")
        plt.close(figure)
        files.append(path)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what Optuna calls experimental
        save(
            "history",
            pictures.plot_optimization_history(study, target_name=metric),
        )
        width = max(7.0, 3.2 * len(space))
        save("slices", pictures.plot_slice(study, target_name=metric), width=width)
        if num_finished >= _MIN_TRIALS and len(space) > 1:
            evaluator = importance.PedAnovaImportanceEvaluator()
            axes = pictures.plot_param_importances(
                study, evaluator=evaluator, target_name=metric
            )
            save("importances", axes)
    return files
