"""Speed of A2C on CartPole-v1, one library per call.

The same work everywhere: 10 steps per environment and iteration, one update with all
of them, separate networks of one tanh layer of 100, Adam 1e-3, γ 0.98, λ 0.95, entropy
1e-4, value 0.5, gradient norm 10.

    python benchmarks/a2c_cartpole.py --library=sb3

prints one JSON line. ``benchmarks/run.py`` compares several libraries.
"""

from __future__ import annotations

import argparse

# isort: off
import measuring  # first: it sets the number of threads
import alf_lite_training
import peers
# isort: on

UNROLL_LENGTH = 10
LIBRARIES = ("alf_lite", "alf_lite_compile", "alf_lite_native", "sb3")


def main() -> None:
    options = measuring.parse_options(__doc__, LIBRARIES, num_env_steps=40_000)
    measuring.register_counted_environments()
    measuring.counter.start(UNROLL_LENGTH * options.num_envs)
    if options.library == "sb3":
        _train_sb3(options)
    else:
        mode = "native" if "native" in options.library else "sync"
        bindings = [
            f"TrainerConfig.num_env_steps = {options.num_env_steps}",
            f"TrainerConfig.compile = {'compile' in options.library}",
            f"create_environment.num_parallel_environments = {options.num_envs}",
            f"create_environment.vectorization_mode = '{mode}'",
        ]
        alf_lite_training.train("a2c_cartpole.gin", bindings)
    measuring.report("a2c_cartpole", options)


def _train_sb3(options: argparse.Namespace) -> None:
    peers.run_sb3(
        "A2C",
        measuring.CART_POLE,
        options.num_envs,
        options.num_env_steps,
        learning_rate=1e-3,
        n_steps=UNROLL_LENGTH,
        gamma=0.98,
        gae_lambda=0.95,
        ent_coef=1e-4,
        vf_coef=0.5,
        max_grad_norm=10.0,
        use_rms_prop=False,
        policy_kwargs={"net_arch": {"pi": [100], "vf": [100]}},
    )


if __name__ == "__main__":
    main()
