"""From a scripted controller to a better policy: record, imitate, learn, fine-tune.

    python examples/offline_to_online.py --root_dir=runs/offline

Behaviour cloning (BC) does what the controller did. Implicit Q-learning (IQL) finds out
what was good of it, first from the recorded steps alone; then it goes on with steps of
its own, which are half of every batch. On the command line: ``alf_lite collect``, and
the confs ``bc_pendulum`` and ``iql_pendulum``.
"""

from __future__ import annotations

import argparse
import functools
from pathlib import Path

import torch
from torch import Tensor

import alf_lite
from alf_lite.data_structures import TimeStep
from alf_lite.data_transformers import RewardScaling
from alf_lite.datasets.writing import write_source
from alf_lite.tools.collector import (
    EpsilonGreedyPolicy,
    NumEpisodes,
    ScriptedPolicy,
    collect,
)

ENVIRONMENT = "Pendulum-v1"


def controller(time_step: TimeStep) -> Tensor:
    """Swings the pendulum up by its energy and holds it there; [B, 3] → [B, 1]."""
    cos, sin, velocity = time_step.observation.unbind(-1)
    missing_energy = 5.0 * (1.0 - cos) - velocity.square() / 6
    swing = torch.where(velocity * missing_energy > 0, 1.0, -1.0)
    hold = -(4.0 * sin + velocity)
    torque = torch.where(cos > 0.8, hold, swing)
    return torque.clamp(-1, 1).unsqueeze(-1)  # agents act in [-1, 1]


def record(path: Path, num_episodes: int) -> None:
    """Writes steps of the controller; a third of its actions are random."""
    env = alf_lite.create_environment(ENVIRONMENT, num_parallel_environments=4)
    scripted = ScriptedPolicy(controller, "controller", env)
    policy = EpsilonGreedyPolicy(scripted, 1 / 3, env)
    steps = collect(env, policy, NumEpisodes(num_episodes), seed=0)
    write_source(steps, env, path, "alf_lite")
    env.close()


def train(
    algorithm_ctor: type[alf_lite.RLAlgorithm],
    root_dir: Path,
    data: Path,
    num_offline: int,
    num_online: int = 0,
    **coefficients: float,
) -> None:
    """An update per iteration: on the data alone, then on new steps, too."""
    env = alf_lite.create_environment(ENVIRONMENT)
    config = alf_lite.TrainerConfig(
        num_iterations=num_offline + num_online,
        rl_train_after_update_steps=num_offline,
        offline_buffer_dir=str(data),
        data_transformer_ctor=functools.partial(RewardScaling, scale=0.1),
        evaluate=True,
        eval_interval=num_offline,
        num_eval_episodes=20,
        num_eval_environments=20,
        mini_batch_size=128,
        random_seed=0,
    )
    optimizer = alf_lite.Adam(lr=1e-3)
    algorithm = algorithm_ctor(
        env=env, config=config, optimizer=optimizer, **coefficients
    )
    alf_lite.Trainer(algorithm, root_dir).train()
    curve = alf_lite.read_curves(root_dir)["eval/AverageReturn"]
    for value, updates, steps in zip(
        curve.values, curve.updates, curve.env_steps, strict=True
    ):
        print(f"{algorithm.name}: {value:.0f} after {updates} updates, {steps} steps")


def main() -> None:
    """Records and trains."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--root_dir", type=Path, default=Path("runs/offline"))
    parser.add_argument("--num_episodes", type=int, default=40)
    parser.add_argument("--num_updates", type=int, default=3_000, help="offline")
    parser.add_argument("--num_env_steps", type=int, default=3_000, help="online")
    arguments = parser.parse_args()

    root_dir, num_updates = arguments.root_dir, arguments.num_updates
    data = root_dir / "controller.replay"
    root_dir.mkdir(parents=True, exist_ok=True)
    if not data.exists():
        record(data, arguments.num_episodes)
    train(alf_lite.BcAlgorithm, root_dir / "bc", data, num_updates)
    train(
        alf_lite.IqlAlgorithm,
        root_dir / "iql",
        data,
        num_updates,
        arguments.num_env_steps,
        expectile=0.8,
        beta=10.0,
    )


if __name__ == "__main__":
    main()
