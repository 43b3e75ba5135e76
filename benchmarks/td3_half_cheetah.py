"""Speed of TD3 on HalfCheetah-v5, one library per call.

The same work everywhere: one environment, 1000 random steps, then one update after each
step with 256 transitions; separate 256x256 ReLU networks for the actor and two critics,
the actor and the targets at every second update, Adam 3e-4, γ 0.99, τ 0.005, noise of
0.1 when acting and of 0.2, at most 0.5, in targets, a replay buffer of a million steps.

    python benchmarks/td3_half_cheetah.py --library=sb3

prints one JSON line. ``benchmarks/run.py`` compares several libraries.
"""

from __future__ import annotations

import argparse

# isort: off
import measuring  # first: it sets the number of threads
import alf_lite_training
import numpy as np
import peers
# isort: on

LEARNING_STARTS = 1000
SB3_PACKAGES = {"sb3": "stable_baselines3", "sbx": "sbx"}
LIBRARIES = ("alf_lite", "alf_lite_compile", "sb3", "sbx", "cleanrl")


def main() -> None:
    options = measuring.parse_options(
        __doc__, LIBRARIES, num_env_steps=4_000, num_envs=None
    )
    measuring.register_counted_environments()
    measuring.counter.start(steps_per_iteration=100, learning_starts=LEARNING_STARTS)
    if options.library.startswith("alf_lite"):
        bindings = [
            f"TrainerConfig.num_env_steps = {options.num_env_steps}",
            f"TrainerConfig.initial_collect_steps = {LEARNING_STARTS}",
            f"TrainerConfig.compile = {'compile' in options.library}",
        ]
        alf_lite_training.train("td3_half_cheetah.gin", bindings)
    elif options.library in SB3_PACKAGES:
        _train_sb3(options)
    else:
        # The defaults of the script are the sizes above.
        arguments = [
            f"--env-id={measuring.HALF_CHEETAH}",
            f"--total-timesteps={options.num_env_steps}",
            f"--learning-starts={LEARNING_STARTS}",
            "--no-cuda",
        ]
        peers.run_script(options.script, arguments)
    measuring.report("td3_half_cheetah", options)


def _train_sb3(options: argparse.Namespace) -> None:
    from stable_baselines3.common.noise import NormalActionNoise

    peers.run_sb3(
        "TD3",
        measuring.HALF_CHEETAH,
        1,
        options.num_env_steps,
        package=SB3_PACKAGES[options.library],
        learning_rate=3e-4,
        buffer_size=1_000_000,
        learning_starts=LEARNING_STARTS,
        batch_size=256,
        tau=0.005,
        gamma=0.99,
        train_freq=1,
        gradient_steps=1,
        action_noise=NormalActionNoise(np.zeros(6), np.full(6, 0.1)),
        policy_delay=2,
        target_policy_noise=0.2,
        target_noise_clip=0.5,
        policy_kwargs={"net_arch": [256, 256]},
    )


if __name__ == "__main__":
    main()
