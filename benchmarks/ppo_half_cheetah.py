"""Speed of PPO on HalfCheetah-v5, one library per call.

The same work everywhere: one environment, 2048 steps per iteration, 10 epochs of 32
mini-batches, separate 64x64 tanh networks, Adam 3e-4, γ 0.99, λ 0.95, clip 0.2 (the
value too), gradient norm 0.5, normalised observations, rewards and advantages.

    python benchmarks/ppo_half_cheetah.py --library=sb3

prints one JSON line. ``benchmarks/run.py`` compares several libraries.
"""

from __future__ import annotations

import argparse

# isort: off
import measuring  # first: it sets the number of threads
import alf_lite_training
import peers
# isort: on

UNROLL_LENGTH = 2048
LIBRARIES = (
    "alf_lite",
    "alf_lite_compile",
    "sb3",
    "cleanrl",
    "leanrl",
    "leanrl_compile",
)


def main() -> None:
    options = measuring.parse_options(
        __doc__, LIBRARIES, num_env_steps=16_384, num_envs=1
    )
    measuring.register_counted_environments()
    measuring.counter.start(UNROLL_LENGTH)
    if options.library.startswith("alf_lite"):
        bindings = [
            f"TrainerConfig.num_env_steps = {options.num_env_steps}",
            f"TrainerConfig.compile = {'compile' in options.library}",
        ]
        alf_lite_training.train("ppo_half_cheetah.gin", bindings)
    elif options.library == "sb3":
        _train_sb3(options)
    else:
        _run_script(options)
    measuring.report("ppo_half_cheetah", options)


def _train_sb3(options: argparse.Namespace) -> None:
    peers.run_sb3(
        "PPO",
        measuring.HALF_CHEETAH,
        options.num_envs,
        options.num_env_steps,
        normalize=True,
        learning_rate=3e-4,
        n_steps=UNROLL_LENGTH,
        batch_size=64,
        n_epochs=10,
        gamma=0.99,
        gae_lambda=0.95,
        clip_range=0.2,
        clip_range_vf=0.2,
        ent_coef=0.0,
        vf_coef=0.5,
        max_grad_norm=0.5,
        policy_kwargs={"net_arch": {"pi": [64, 64], "vf": [64, 64]}},
    )


def _run_script(options: argparse.Namespace) -> None:
    # The defaults of both scripts are the sizes above.
    arguments = [
        f"--env-id={measuring.HALF_CHEETAH}",
        f"--total-timesteps={options.num_env_steps}",
        "--no-anneal-lr",
        "--no-cuda",
    ]
    edit = peers.edit_cleanrl
    if options.library.startswith("leanrl"):
        edit = peers.edit_leanrl
        if options.library == "leanrl_compile":
            arguments.append("--compile")
    peers.run_script(options.script, arguments, edit)


if __name__ == "__main__":
    main()
