"""Speed of the peers of ``gpu.py``, one work per call; prints one JSON line.

    PEERS/bin/python benchmarks/gpu_peers.py leanrl --work=sac_half_cheetah \
        --leanrl=peers/LeanRL --num_env_steps=8000
    RSL_RL/bin/python benchmarks/gpu_peers.py rsl_rl --num_env_steps=6553600

It needs nothing of alf_lite. LeanRL is compiled and captured, as its authors advise.
rsl_rl trains on a Pendulum in torch with the equations of ``torch/Pendulum``, which
begins episodes as rsl_rl wants it: in the step that ends one.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import time
from pathlib import Path
from typing import Any

UNROLL_LENGTH, TIME_LIMIT = 16, 200
STEPS_BEFORE_SAC = 500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", choices=["leanrl", "rsl_rl"])
    parser.add_argument("--work", default="torch_pendulum")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--num_env_steps", type=int, required=True)
    parser.add_argument("--num_envs", type=int, default=4096, help="of rsl_rl")
    parser.add_argument("--leanrl", type=Path, help="folder of a clone of LeanRL")
    options = parser.parse_args()
    train = train_leanrl if options.library == "leanrl" else train_rsl_rl
    with contextlib.redirect_stdout(io.StringIO()):
        speed = train(options)
    print("\n" + json.dumps({"steps_per_second": speed}), flush=True)


def train_leanrl(options: argparse.Namespace) -> float:
    """Its script, whose environment is counted."""
    import measuring
    import peers

    kind = options.work.partition("_")[0]
    script = f"leanrl/{kind}_continuous_action_torchcompile.py"
    arguments = [
        f"--env-id={measuring.HALF_CHEETAH}",
        f"--total-timesteps={options.num_env_steps}",
    ]
    measuring.register_counted_environments()
    if kind == "ppo":
        arguments.append("--no-anneal-lr")
        measuring.counter.start(2048)
    else:
        arguments.append(f"--learning-starts={STEPS_BEFORE_SAC}")
        measuring.counter.start(100, learning_starts=STEPS_BEFORE_SAC)
    if options.device == "cpu":
        arguments.append("--no-cuda")
    else:
        arguments += ["--compile", "--cudagraphs"]
    peers.run_script(options.leanrl / script, arguments, peers.edit_leanrl)
    return measuring.counter.rates()["steps_per_second"]


def train_rsl_rl(options: argparse.Namespace) -> float:
    """PPO with the sizes of ``gpu.py``."""
    import torch
    from rsl_rl.runners import OnPolicyRunner

    num_steps = options.num_envs * UNROLL_LENGTH  # of an iteration
    num_iterations = max(5, options.num_env_steps // num_steps)
    network = {"class_name": "MLPModel", "hidden_dims": [64, 64], "activation": "tanh"}
    normal = {"class_name": "GaussianDistribution", "init_std": 1.0}
    settings = {
        "num_steps_per_env": UNROLL_LENGTH,
        "save_interval": 1_000_000,
        "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
        "actor": {**network, "distribution_cfg": normal},
        "critic": network,
        "algorithm": {
            "class_name": "PPO",
            "num_learning_epochs": 4,
            "num_mini_batches": 4,
            "gamma": 0.9,
            "learning_rate": 1e-3,
            "schedule": "fixed",
            "entropy_coef": 0.0,
            "max_grad_norm": 0.5,
        },
    }
    env = pendulum(options.device, options.num_envs)
    runner = OnPolicyRunner(env, settings, device=options.device)
    wait = torch.cuda.synchronize if options.device == "cuda" else lambda: None
    num_first = num_iterations // 5
    runner.learn(num_first)
    wait()
    begin = time.perf_counter()
    runner.learn(num_iterations - num_first)
    wait()
    seconds = time.perf_counter() - begin
    return (num_iterations - num_first) * num_steps / seconds


def pendulum(device: str, num_envs: int) -> Any:
    """Pendulum-v1 in torch, as rsl_rl's environments are."""
    import torch
    from rsl_rl.env import VecEnv
    from tensordict import TensorDict

    class Pendulum(VecEnv):
        num_actions, max_episode_length = 1, TIME_LIMIT
        cfg: dict = {}  # noqa: RUF012 (as the base class has it)

        def __init__(self) -> None:
            self.device, self.num_envs = device, num_envs
            self.episode_length_buf = torch.randint(
                TIME_LIMIT, (num_envs,), device=device
            )
            self._angle, self._speed = self._begin()

        def _begin(self) -> tuple[torch.Tensor, torch.Tensor]:
            random = 2 * torch.rand((2, num_envs), device=device) - 1
            return math.pi * random[0], random[1]

        def get_observations(self) -> TensorDict:
            parts = [self._angle.cos(), self._angle.sin(), self._speed]
            return TensorDict({"policy": torch.stack(parts, 1)}, [num_envs])

        def step(self, actions: torch.Tensor) -> Any:
            torque = 2 * actions[:, 0].clamp(-1, 1)
            angle = (self._angle + math.pi) % (2 * math.pi) - math.pi
            reward = -(angle**2 + 0.1 * self._speed**2 + 0.001 * torque**2)
            speed = self._speed + (15 * self._angle.sin() + 3 * torque) * 0.05
            speed = speed.clamp(-8, 8)
            self.episode_length_buf = self.episode_length_buf + 1
            ended = self.episode_length_buf >= TIME_LIMIT
            self.episode_length_buf = self.episode_length_buf.masked_fill(ended, 0)
            new_angle, new_speed = self._begin()
            self._angle = torch.where(ended, new_angle, self._angle + speed * 0.05)
            self._speed = torch.where(ended, new_speed, speed)
            extras = {"time_outs": ended}
            return self.get_observations(), reward, ended, extras

    return Pendulum()


if __name__ == "__main__":
    main()
