"""A hook and a metric of one's own: a curriculum for a reward that is seldom found.

    python examples/own_hook.py --root_dir=runs/corridor
    python examples/own_hook.py --root_dir=runs/without --no_curriculum

A hook is called at fixed places of the training loop (docs/hooks.md); its state is
kept in the checkpoints. ``alf_lite.trainers.shipped_hooks.Curriculum`` does what this
one does, with settings of a conf:

    TrainerConfig.hook_ctors = [@Curriculum]
    TrainerConfig.metric_ctors = [@own_hook.Success]
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from torch import Tensor

import alf_lite
from alf_lite.data_structures import TimeStep
from alf_lite.metrics.episode_metric import EpisodeMetric
from alf_lite.trainers.hooks import Hook, Training

LONGEST = 20


class Corridor(gymnasium.Env):
    """A reward at the end of a corridor of ``length`` steps, and nothing on the way."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)  # back, forth

    def __init__(self) -> None:
        self.length = LONGEST  # a hook may set it; episodes that are open keep theirs

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._to_go = self.length
        self._num_steps = 0
        return self._observation(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._to_go = min(self._to_go + (-1 if action else 1), LONGEST)
        self._num_steps += 1
        is_there = self._to_go == 0
        is_late = self._num_steps == 2 * LONGEST
        return self._observation(), float(is_there), is_there, is_late, {}

    def _observation(self) -> np.ndarray:
        return np.array([self._to_go / LONGEST], np.float32)


class Success(EpisodeMetric):
    """The share of episodes that came to the end of the corridor."""

    def __init__(self) -> None:
        super().__init__(reduction="max")  # over the steps of an episode

    def value(self, time_step: TimeStep) -> Tensor:
        return (time_step.reward > 0).float()


class LongerCorridor(Hook):
    """Makes the corridor longer as soon as nearly all episodes are a success."""

    def __init__(self) -> None:
        super().__init__()
        self.length = 2

    def before_episodes(self, training: Training) -> None:
        assert training.algorithm.env is not None
        training.algorithm.env.set_attribute("length", self.length)

    def after_iter(self, training: Training) -> None:
        algorithm = training.algorithm
        success = {metric.name: metric.result() for metric in algorithm.get_metrics()}
        if success["Success"] > 0.9 and self.length < LONGEST:
            self.length += 1
            assert algorithm.env is not None
            algorithm.env.set_attribute("length", self.length)
            algorithm.metrics.forget_episodes()  # they were of an easier corridor

    def state_dict(self) -> dict[str, Any]:
        return {"length": self.length}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.length = state["length"]


def main() -> None:
    """Trains with or without the hook; evaluations are in the longest corridor."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--root_dir", type=Path, default=Path("runs/corridor"))
    parser.add_argument("--num_env_steps", type=int, default=40_000)
    parser.add_argument("--no_curriculum", action="store_true")
    arguments = parser.parse_args()

    env = alf_lite.create_environment(env_ctor=Corridor, num_parallel_environments=8)
    config = alf_lite.TrainerConfig(
        num_env_steps=arguments.num_env_steps,
        unroll_length=32,
        mini_batch_size=256,
        evaluate=True,
        epsilon_greedy=1.0,  # evaluates the policy that draws its actions
        random_seed=0,
        metric_ctors=[Success],
    )
    algorithm = alf_lite.PPOAlgorithm(
        env=env, config=config, optimizer=alf_lite.Adam(lr=1e-3)
    )
    hooks = [] if arguments.no_curriculum else [LongerCorridor()]
    result = alf_lite.Trainer(algorithm, arguments.root_dir, hooks=hooks).train()
    assert result.evaluation is not None
    print(f"Success of {LONGEST} steps: {result.evaluation.numbers['Success']:.0%}")


if __name__ == "__main__":
    main()
