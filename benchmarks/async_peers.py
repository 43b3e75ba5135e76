"""Speed of the peers' environments in other processes, one library per call.

    PEERS/bin/python benchmarks/async_peers.py --work=sleeping --variant=sb3_subproc

prints one JSON line. ``async_training.py`` compares libraries. The work is that of
``ppo_cartpole.py``: 8 environments, 128 steps, 4 epochs of 4 mini-batches. It needs
nothing of alf_lite, and runs with the gymnasium that the library asks for.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import tempfile
from typing import Any

# isort: off
import measuring  # first: it sets the number of threads
import delayed_environments
# isort: on

import gymnasium as gym

NUM_ENVS = 8
UNROLL_LENGTH = 128
VARIANTS = ("sb3_dummy", "sb3_subproc", "sf_serial", "sf_sync", "sf_async")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", required=True)
    parser.add_argument("--variant", choices=VARIANTS, required=True)
    parser.add_argument("--num_env_steps", type=int, required=True)
    parser.add_argument("--delay", type=float, default=0.0, help="seconds per step")
    parser.add_argument("--num_workers", type=int, default=2, help="Sample Factory's")
    options = parser.parse_args()
    key = (
        "sleep_seconds" if options.work in ("sleeping", "ppo_slow") else "busy_seconds"
    )
    create = functools.partial(
        gym.make, delayed_environments.CART_POLE, **{key: options.delay}
    )
    marks = measuring.IterationMarks()
    if options.variant.startswith("sb3"):
        _train_sb3(options, create, marks)
    else:
        _train_sample_factory(options, create, marks)
    print("\n" + json.dumps(marks.rates()), flush=True)
    os._exit(0)  # Sample Factory leaves threads behind


def _train_sb3(
    options: argparse.Namespace, create: Any, marks: measuring.IterationMarks
) -> None:
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    class Marking(BaseCallback):
        def _on_rollout_start(self) -> None:
            if marks.has_updates:
                marks.add(self.num_timesteps)

        def _on_step(self) -> bool:
            return True

    make = SubprocVecEnv if options.variant == "sb3_subproc" else DummyVecEnv
    env = make([create] * NUM_ENVS)
    model = PPO(
        "MlpPolicy",
        env,
        learning_rate=2.5e-4,
        n_steps=UNROLL_LENGTH,
        batch_size=UNROLL_LENGTH * NUM_ENVS // 4,
        n_epochs=4,
        gamma=0.99,
        gae_lambda=0.95,
        clip_range=0.2,
        clip_range_vf=0.2,
        ent_coef=0.01,
        vf_coef=0.5,
        max_grad_norm=0.5,
        device="cpu",
        policy_kwargs={"net_arch": {"pi": [64, 64], "vf": [64, 64]}},
    )
    model.learn(options.num_env_steps, callback=Marking())
    env.close()


def _train_sample_factory(
    options: argparse.Namespace, create: Any, marks: measuring.IterationMarks
) -> None:
    """Its learner, perhaps in a process of its own, says how many steps there were."""
    from sample_factory.algo.runners.runner import AlgoObserver
    from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
    from sample_factory.envs.env_utils import register_env
    from sample_factory.train import make_runner

    class Marking(AlgoObserver):
        def on_training_step(self, runner: Any, _: Any) -> None:
            marks.add(sum(runner.env_steps.values()))

    register_env("delayed", functools.partial(_make_env, create))
    arguments = _sample_factory_arguments(options)
    parser, _ = parse_sf_args(arguments)
    _, runner = make_runner(parse_full_cfg(parser, arguments))
    runner.register_observer(Marking())
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (until the process ends)
    runner.init()
    runner.run()
    sys.stdout = sys.__stdout__


def _make_env(create: Any, *_: Any, **__: Any) -> gym.Env:
    return create()


def _sample_factory_arguments(options: argparse.Namespace) -> list[str]:
    mode = options.variant.partition("_")[2]
    num_workers = 1 if mode == "serial" else options.num_workers
    envs_per_worker = NUM_ENVS // num_workers
    num_splits = 2 if mode == "async" and envs_per_worker > 1 else 1
    return [
        "--algo=APPO",
        "--env=delayed",
        "--experiment=speed",
        f"--train_dir={tempfile.mkdtemp()}",
        "--device=cpu",
        f"--serial_mode={mode == 'serial'}",
        f"--async_rl={mode == 'async'}",
        f"--num_workers={num_workers}",
        f"--num_envs_per_worker={envs_per_worker}",
        f"--worker_num_splits={num_splits}",
        f"--batch_size={NUM_ENVS * UNROLL_LENGTH // 4}",
        "--num_batches_per_epoch=4",
        "--num_epochs=4",
        f"--rollout={UNROLL_LENGTH}",
        "--use_rnn=False",
        "--recurrence=1",
        "--gamma=0.99",
        "--gae_lambda=0.95",
        "--ppo_clip_ratio=0.2",
        "--ppo_clip_value=0.2",
        "--with_vtrace=False",
        "--value_loss_coeff=0.5",
        "--exploration_loss_coeff=0.01",
        "--max_grad_norm=0.5",
        "--learning_rate=2.5e-4",
        "--lr_schedule=constant",
        "--actor_critic_share_weights=False",
        "--encoder_mlp_layers",
        "64",
        "64",
        "--nonlinearity=tanh",
        "--normalize_input=False",
        "--normalize_returns=False",
        f"--train_for_env_steps={options.num_env_steps}",
        "--decorrelate_envs_on_one_worker=False",
        "--decorrelate_experience_max_seconds=0",
        "--save_every_sec=100000",
        "--save_milestones_sec=-1",
        "--experiment_summaries_interval=10000",
        "--heartbeat_interval=600",
        "--log_to_file=False",
    ]


if __name__ == "__main__":
    main()
