"""Speed of PPO on images, one library per call.

The same work everywhere: environments of four stacked frames of 84x84 bytes that cost
nothing themselves (those of dqn_frames.py), 32 steps per environment and iteration, 2
epochs of 4 mini-batches, the convolutions of Mnih et al. 2015 with 512 units for the
policy and as many for the value, Adam 2.5e-4, γ 0.99, λ 0.95, clip 0.1, entropy 0.01,
value 0.5, gradient norm 0.5, normalised advantages.

``sb3_shared`` has one network for both, its default, and so about half of the work.

    python benchmarks/ppo_frames.py --library=sb3

prints one JSON line. ``benchmarks/run.py`` compares several libraries.
"""

from __future__ import annotations

# isort: off
import measuring  # first: it sets the number of threads
import alf_lite_training
import peers
# isort: on

UNROLL_LENGTH, EPOCHS, MINI_BATCHES = 32, 2, 4
LIBRARIES = ("alf_lite", "alf_lite_compile", "sb3", "sb3_shared")


def main() -> None:
    options = measuring.parse_options(
        __doc__, LIBRARIES, num_env_steps=4_096, device="cpu"
    )
    measuring.register_counted_environments()
    measuring.counter.start(UNROLL_LENGTH * options.num_envs)
    mini_batch_size = UNROLL_LENGTH * options.num_envs // MINI_BATCHES
    if options.library.startswith("alf_lite"):
        bindings = [
            f"create_environment.num_parallel_environments = {options.num_envs}",
            f"TrainerConfig.num_env_steps = {options.num_env_steps}",
            f"TrainerConfig.mini_batch_size = {mini_batch_size}",
            f"TrainerConfig.compile = {'compile' in options.library}",
            f"TrainerConfig.device = '{options.device}'",
        ]
        alf_lite_training.train("ppo_frames.gin", bindings)
    else:
        peers.run_sb3(
            "PPO",
            measuring.FRAMES,
            options.num_envs,
            options.num_env_steps,
            policy="CnnPolicy",
            device=options.device,
            learning_rate=2.5e-4,
            n_steps=UNROLL_LENGTH,
            batch_size=mini_batch_size,
            n_epochs=EPOCHS,
            gamma=0.99,
            gae_lambda=0.95,
            clip_range=0.1,
            ent_coef=0.01,
            vf_coef=0.5,
            max_grad_norm=0.5,
            policy_kwargs={"share_features_extractor": options.library == "sb3_shared"},
        )
    measuring.report("ppo_frames", options)


if __name__ == "__main__":
    main()
