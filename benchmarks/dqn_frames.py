"""Speed of DQN on images, one library per call.

The same work everywhere: one environment of four stacked frames of 84x84 bytes that
costs nothing itself, 1000 steps without training, then one update with 32 transitions
after every fourth step; the network of Mnih et al. 2015, Adam 1e-4, γ 0.99, a target
network that is copied every 1000 steps, ε from 1 to 0.01 over a tenth of the run, a
replay buffer of 5 thousand steps.

    python benchmarks/dqn_frames.py --library=sb3

prints one JSON line. ``benchmarks/run.py`` compares several libraries.
"""

from __future__ import annotations

# isort: off
import measuring  # first: it sets the number of threads
import alf_lite_training
import peers
# isort: on

LEARNING_STARTS = 1000
STEPS_PER_UPDATE, STEPS_PER_TARGET_UPDATE = 4, 1000
BATCH_SIZE, CAPACITY = 32, 5_000
LEARNING_RATE, GAMMA = 1e-4, 0.99
LIBRARIES = ("alf_lite", "alf_lite_compile", "sb3", "cleanrl")


def main() -> None:
    options = measuring.parse_options(
        __doc__, LIBRARIES, num_env_steps=4_000, num_envs=None, device="cpu"
    )
    measuring.register_counted_environments()
    measuring.counter.start(steps_per_iteration=100, learning_starts=LEARNING_STARTS)
    if options.library.startswith("alf_lite"):
        bindings = [
            f"TrainerConfig.num_env_steps = {options.num_env_steps}",
            f"TrainerConfig.initial_collect_steps = {LEARNING_STARTS}",
            f"TrainerConfig.compile = {'compile' in options.library}",
            f"TrainerConfig.device = '{options.device}'",
        ]
        alf_lite_training.train("dqn_frames.gin", bindings)
    elif options.library == "sb3":
        _train_sb3(options.num_env_steps, options.device)
    else:
        measuring.refuse(options, device="cpu")
        # The other defaults of the script are the sizes above.
        arguments = [
            f"--env-id={measuring.FRAMES}",
            f"--total-timesteps={options.num_env_steps}",
            f"--learning-starts={LEARNING_STARTS}",
            f"--buffer-size={CAPACITY}",
            "--no-cuda",
        ]
        peers.run_script(options.script, arguments, peers.edit_cleanrl_frames)
    measuring.report("dqn_frames", options)


def _train_sb3(num_env_steps: int, device: str) -> None:
    peers.run_sb3(
        "DQN",
        measuring.FRAMES,
        1,
        num_env_steps,
        policy="CnnPolicy",
        device=device,
        learning_rate=LEARNING_RATE,
        buffer_size=CAPACITY,
        learning_starts=LEARNING_STARTS,
        batch_size=BATCH_SIZE,
        gamma=GAMMA,
        train_freq=STEPS_PER_UPDATE,
        gradient_steps=1,
        target_update_interval=STEPS_PER_TARGET_UPDATE,
        exploration_fraction=0.1,
        exploration_final_eps=0.01,
    )


if __name__ == "__main__":
    main()
