"""An environment of one's own: check it, train, draw the curve, act, export.

    pip install -e '.[plot,export]'
    python examples/own_environment.py --root_dir=runs/docking

An environment is a class of gymnasium, and nothing has to be registered. In a module of
its own, a conf or the command line names it as well: ``create_environment.env_ctor =
@my_module.Docking``, ``alf_lite check_env my_module.Docking``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import alf_lite
from alf_lite.bin import plot


class Docking(gymnasium.Env):
    """A boat has to come to rest at the jetty, wherever it starts."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)  # thrust

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._distance = self.np_random.uniform(-2.0, 2.0)
        self._velocity = 0.0
        self._num_steps = 0
        return self._observation(), {}

    def step(
        self, action: np.ndarray
    ) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._velocity = 0.95 * self._velocity + 0.05 * float(action[0])
        self._distance += self._velocity
        self._num_steps += 1
        reward = -abs(self._distance)
        is_lost = abs(self._distance) > 4.0
        if is_lost:
            reward -= 100.0
        # Lost is an end that counts; a time limit is none, and is bootstrapped.
        return self._observation(), reward, is_lost, self._num_steps == 50, {}

    def _observation(self) -> np.ndarray:
        return np.array([self._distance, self._velocity], np.float32)


def train(root_dir: Path, num_env_steps: int) -> None:
    """Trains, and keeps everything in ``root_dir``."""
    env = alf_lite.create_environment(env_ctor=Docking, num_parallel_environments=8)
    config = alf_lite.TrainerConfig(
        num_env_steps=num_env_steps,
        evaluate=True,
        eval_interval=4,  # iterations of 8 * 128 steps
        num_eval_episodes=20,
        random_seed=0,
    )
    algorithm = alf_lite.PPOAlgorithm(env=env, config=config)
    result = alf_lite.Trainer(algorithm, root_dir).train()
    assert result.evaluation is not None
    print(f"Mean return {result.evaluation.mean:.1f} after {result.env_steps} steps")


def act(root_dir: Path) -> None:
    """Uses the policy as any program would."""
    policy = alf_lite.load_policy(root_dir)
    env = Docking()
    observation, _ = env.reset(seed=1)
    is_over = False
    while not is_over:
        action = policy.predict(observation)
        observation, _, terminated, truncated, _ = env.step(action)
        is_over = terminated or truncated
    print(f"The boat ends {abs(observation[0]):.2f} from the jetty")


def main() -> None:
    """Goes through all steps."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--root_dir", type=Path, default=Path("runs/docking"))
    parser.add_argument("--num_env_steps", type=int, default=40_000)
    arguments = parser.parse_args()
    root_dir = arguments.root_dir

    report = alf_lite.check_env(Docking)
    print(report)
    if not report.is_usable:
        return
    train(root_dir, arguments.num_env_steps)
    plot.main([str(root_dir), f"--output={root_dir / 'curve.png'}", "--title=Docking"])
    act(root_dir)
    exported = alf_lite.export_policy(
        root_dir, create_env=lambda **_: alf_lite.create_environment(env_ctor=Docking)
    )
    print(f"Exported to {exported.directory}: {exported.largest_difference:.1e} apart")


if __name__ == "__main__":
    main()
