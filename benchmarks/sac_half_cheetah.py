"""Speed of SAC on HalfCheetah-v5, one library per call.

The same work everywhere: one environment, 1000 random steps, then one update after each
step with 256 transitions; separate 256x256 ReLU networks for the actor and two critics,
Adam 3e-4, γ 0.99, τ 0.005, a learnt temperature, a replay buffer of a million steps.
``--hidden_size=512`` and ``--batch_size=1024`` are other sizes.

    python benchmarks/sac_half_cheetah.py --library=sb3

prints one JSON line. ``benchmarks/run.py`` compares several libraries.
"""

from __future__ import annotations

import argparse

# isort: off
import measuring  # first: it sets the number of threads
import alf_lite_training
import bare_sac
import peers
import sac_peers
# isort: on

LEARNING_STARTS = 1000
SB3_PACKAGES = {"sb3": "stable_baselines3", "sbx": "sbx"}
DEFAULT_SIZES = {"hidden_size": 256, "batch_size": 256}
LIBRARIES = (
    "alf_lite",
    "alf_lite_bf16",
    "alf_lite_compile",
    "sb3",
    "sbx",
    "cleanrl",
    "tianshou",
    "torchrl",
    "bare",
    "bare_bf16",
)


def main() -> None:
    options = measuring.parse_options(
        __doc__, LIBRARIES, num_env_steps=4_000, num_envs=None, **DEFAULT_SIZES
    )
    measuring.register_counted_environments()
    # Turns take about as long whatever the sizes are.
    work = options.batch_size * options.hidden_size**2
    steps = min(100, max(5, 100 * 256**3 // work))
    measuring.counter.start(steps_per_iteration=steps, learning_starts=LEARNING_STARTS)
    _train(options)
    measuring.report("sac_half_cheetah", options)


def _train(options: argparse.Namespace) -> None:
    env_id, num_env_steps = measuring.HALF_CHEETAH, options.num_env_steps
    layers = (options.hidden_size, options.hidden_size)
    if options.library.startswith("alf_lite"):
        precision = "bfloat16" if "bf16" in options.library else "float32"
        bindings = [
            f"TrainerConfig.num_env_steps = {num_env_steps}",
            f"TrainerConfig.initial_collect_steps = {LEARNING_STARTS}",
            f"TrainerConfig.compile = {'compile' in options.library}",
            f"TrainerConfig.precision = '{precision}'",
            f"TrainerConfig.mini_batch_size = {options.batch_size}",
            f"SquashedActorNetwork.fc_layer_params = {layers}",
            f"CriticNetwork.joint_fc_layer_params = {layers}",
        ]
        alf_lite_training.train("sac_half_cheetah.gin", bindings)
    elif options.library in SB3_PACKAGES:
        _train_sb3(options, layers)
    elif options.library == "cleanrl":
        measuring.refuse(options, **DEFAULT_SIZES)
        arguments = [
            f"--env-id={env_id}",
            f"--total-timesteps={num_env_steps}",
            f"--learning-starts={LEARNING_STARTS}",
            "--policy-lr=3e-4",
            "--q-lr=3e-4",
            "--no-cuda",
        ]
        peers.run_script(options.script, arguments)
    elif options.library.startswith("bare"):
        bfloat16 = options.library == "bare_bf16"
        bare_sac.HIDDEN_SIZE = options.hidden_size
        bare_sac.BATCH_SIZE = options.batch_size
        bare_sac.run_bare(env_id, num_env_steps, LEARNING_STARTS, bfloat16)
    else:
        measuring.refuse(options, **DEFAULT_SIZES)
        run = getattr(sac_peers, f"run_{options.library}")
        run(env_id, num_env_steps, LEARNING_STARTS)


def _train_sb3(options: argparse.Namespace, layers: tuple[int, ...]) -> None:
    peers.run_sb3(
        "SAC",
        measuring.HALF_CHEETAH,
        1,
        options.num_env_steps,
        package=SB3_PACKAGES[options.library],
        learning_rate=3e-4,
        buffer_size=1_000_000,
        learning_starts=LEARNING_STARTS,
        batch_size=options.batch_size,
        tau=0.005,
        gamma=0.99,
        train_freq=1,
        gradient_steps=1,
        policy_kwargs={"net_arch": list(layers)},
    )


if __name__ == "__main__":
    main()
