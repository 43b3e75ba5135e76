"""Compares two settings over seeds: trains them, and draws both with bands.

    pip install -e '.[plot]'
    python examples/compare_settings.py --root_dir=runs/epochs

On the command line the same is ``alf_lite train --conf=ppo_cart_pole --seeds=0-2`` with
``--root_dir`` and ``--gin_param='TrainerConfig.epochs = 4'`` for each of the settings,
then ``alf_lite plot runs/epochs`` and ``alf_lite compare runs/epochs``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import alf_lite
from alf_lite.bin import compare, plot
from alf_lite.runs.curves import Curves

EPOCHS = 4, 20  # passes over each unroll


def train(root_dir: Path, epochs: int, seed: int, num_env_steps: int) -> None:
    """One run; of one that is finished already nothing is done again."""
    alf_lite.train(
        "ppo_cart_pole",
        root_dir / f"{epochs}_epochs" / f"seed_{seed}",
        seed=seed,
        gin_params=[
            f"TrainerConfig.num_env_steps = {num_env_steps}",
            f"TrainerConfig.epochs = {epochs}",
            "TrainerConfig.evaluate = False",
        ],
    )


def mean_height(curves: Curves) -> float:
    """How fast a run has learned: the mean of its curve over all steps."""
    curve = curves["charts/episodic_return"]
    between = (curve.values[1:] + curve.values[:-1]) / 2
    return float(np.average(between, weights=np.diff(curve.env_steps)))


def main() -> None:
    """Trains, draws, and computes a number of its own from the curves."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--root_dir", type=Path, default=Path("runs/epochs"))
    parser.add_argument("--num_env_steps", type=int, default=20_000)
    parser.add_argument("--num_seeds", type=int, default=3)
    arguments = parser.parse_args()
    root_dir = arguments.root_dir

    for epochs in EPOCHS:
        for seed in range(arguments.num_seeds):
            train(root_dir, epochs, seed, arguments.num_env_steps)

    # Means over seeds with 95 % bootstrap bands, and a table
    plot.main([str(root_dir), f"--output={root_dir / 'curves.png'}"])
    # How probable it is that a run of one setting is better than one of the other
    compare.main([str(root_dir), f"--output={root_dir / 'compare.png'}"])

    # Whatever else one wants to know: curves are arrays
    heights = {epochs: [] for epochs in EPOCHS}
    for name, curves in alf_lite.read_curves(root_dir).items():
        epochs = curves.settings["TrainerConfig.epochs"]
        heights[epochs].append(mean_height(curves))
        print(f"{name}: mean height {heights[epochs][-1]:.1f}")
    for epochs, values in heights.items():
        print(f"{epochs} epochs: {np.mean(values):.1f} in {len(values)} seeds")


if __name__ == "__main__":
    main()
