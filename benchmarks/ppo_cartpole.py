"""Speed of PPO on CartPole-v1, one library per call.

The same work everywhere: 128 steps per environment and iteration, 4 epochs of 4
mini-batches, separate 64x64 tanh networks, Adam 2.5e-4, γ 0.99, λ 0.95, clip 0.2 (the
value too), entropy 0.01, value 0.5, gradient norm 0.5, normalised advantages.

    python benchmarks/ppo_cartpole.py --library=sb3

prints one JSON line. ``benchmarks/run.py`` compares several libraries.
"""

from __future__ import annotations

import argparse

# isort: off
import measuring  # first: it sets the number of threads
import alf_lite_training
import bare_ppo
import peers
# isort: on

UNROLL_LENGTH = 128
LIBRARIES = (
    "alf_lite",
    "alf_lite_compile",
    "alf_lite_native",
    "alf_lite_native_compile",
    "sb3",
    "cleanrl",
    "leanrl",
    "leanrl_compile",
    "bare_eager",
    "bare_tight",
)


def main() -> None:
    options = measuring.parse_options(__doc__, LIBRARIES, num_env_steps=60_000)
    measuring.register_counted_environments()
    measuring.counter.start(UNROLL_LENGTH * options.num_envs)
    if options.library.startswith("alf_lite"):
        _train_alf_lite(options)
    elif options.library == "sb3":
        _train_sb3(options)
    elif options.library.startswith("bare"):
        bare_ppo.run_bare(
            measuring.CART_POLE,
            options.num_envs,
            options.num_env_steps,
            tight=options.library == "bare_tight",
        )
    else:
        _run_script(options)
    measuring.report("ppo_cartpole", options)


def _train_alf_lite(options: argparse.Namespace) -> None:
    mode = "native" if "native" in options.library else "sync"
    bindings = [
        f"TrainerConfig.num_env_steps = {options.num_env_steps}",
        f"TrainerConfig.compile = {'compile' in options.library}",
        f"NUM_ENVIRONMENTS = {options.num_envs}",
        f"MINI_BATCH_SIZE = {UNROLL_LENGTH * options.num_envs // 4}",
        f"create_environment.vectorization_mode = '{mode}'",
    ]
    alf_lite_training.train("ppo_cartpole.gin", bindings)


def _train_sb3(options: argparse.Namespace) -> None:
    peers.run_sb3(
        "PPO",
        measuring.CART_POLE,
        options.num_envs,
        options.num_env_steps,
        learning_rate=2.5e-4,
        n_steps=UNROLL_LENGTH,
        batch_size=UNROLL_LENGTH * options.num_envs // 4,
        n_epochs=4,
        gamma=0.99,
        gae_lambda=0.95,
        clip_range=0.2,
        clip_range_vf=0.2,
        ent_coef=0.01,
        vf_coef=0.5,
        max_grad_norm=0.5,
        policy_kwargs={"net_arch": {"pi": [64, 64], "vf": [64, 64]}},
    )


def _run_script(options: argparse.Namespace) -> None:
    arguments = [
        f"--env-id={measuring.CART_POLE}",
        f"--total-timesteps={options.num_env_steps}",
        f"--num-envs={options.num_envs}",
        f"--num-steps={UNROLL_LENGTH}",
        "--learning-rate=2.5e-4",
        "--no-anneal-lr",
        "--num-minibatches=4",
        "--update-epochs=4",
        "--ent-coef=0.01",
        "--no-cuda",
    ]
    edit = peers.edit_cleanrl
    if options.library.startswith("leanrl"):
        edit = peers.edit_leanrl_discrete
        if options.library == "leanrl_compile":
            arguments.append("--compile")
    peers.run_script(options.script, arguments, edit)


if __name__ == "__main__":
    main()
