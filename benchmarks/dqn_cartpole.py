"""Speed of DQN on CartPole-v1, one library per call.

The same work everywhere: one environment, 1000 steps without training, then one update
with 128 transitions after every tenth step; a ReLU network 120-84, Adam 2.5e-4, γ 0.99,
a target network that is copied every 500 steps, ε from 1 to 0.05 over half of the run,
a replay buffer of 10 thousand steps. ``alf_lite_vector`` and ``sb3_vector`` take the
ten steps between two updates in ten environments at once, one step in each;
``alf_lite_vector_native`` in gymnasium's own vector of ten. Other networks are those of
``network_variants.py``: ``--activation=elu --layer_norm --dueling --dict``.

    python benchmarks/dqn_cartpole.py --library=sb3

prints one JSON line. ``benchmarks/run.py`` compares several libraries.
"""

from __future__ import annotations

import argparse

# isort: off
import measuring  # first: it sets the number of threads
import alf_lite_training
import bare_dqn
import gymnasium as gym
import network_variants
import peers
# isort: on

LEARNING_STARTS = 1000
STEPS_PER_UPDATE = 10
STEPS_PER_TARGET_UPDATE = 500
BATCH_SIZE, CAPACITY = 128, 10_000
LEARNING_RATE, GAMMA = 2.5e-4, 0.99
LIBRARIES = (
    "alf_lite",
    "alf_lite_compile",
    "alf_lite_vector",
    "alf_lite_vector_native",
    "sb3",
    "sb3_vector",
    "cleanrl",
    "tianshou",
    "bare",
    "bare_numpy",
)


def main() -> None:
    options = measuring.parse_options(
        __doc__,
        LIBRARIES,
        num_env_steps=30_000,
        num_envs=None,
        **network_variants.Q_NETWORK,
    )
    network_variants.check(options)
    measuring.register_counted_environments()
    measuring.counter.start(steps_per_iteration=500, learning_starts=LEARNING_STARTS)
    num_envs = STEPS_PER_UPDATE if "_vector" in options.library else 1
    mode = "native" if "native" in options.library else "sync"
    if options.library.startswith("alf_lite"):
        bindings = [
            f"TrainerConfig.num_env_steps = {options.num_env_steps}",
            f"TrainerConfig.initial_collect_steps = {LEARNING_STARTS}",
            f"TrainerConfig.compile = {'compile' in options.library}",
            f"TrainerConfig.unroll_length = {STEPS_PER_UPDATE // num_envs}",
            f"create_environment.num_parallel_environments = {num_envs}",
            f"create_environment.vectorization_mode = '{mode}'",
            *network_variants.bindings(options, ("QNetwork",)),
        ]
        alf_lite_training.train("dqn_cartpole.gin", bindings)
    elif options.library.startswith("sb3"):
        _train_sb3(options, num_envs)
    else:
        measuring.refuse(options, **network_variants.Q_NETWORK)
        _train_another(options)
    measuring.report("dqn_cartpole", options)


def _train_another(options: argparse.Namespace) -> None:
    if options.library == "cleanrl":
        # The defaults of the script are the sizes above.
        arguments = [
            f"--env-id={measuring.CART_POLE}",
            f"--total-timesteps={options.num_env_steps}",
            f"--learning-starts={LEARNING_STARTS}",
            "--no-cuda",
        ]
        peers.run_script(options.script, arguments)
    elif options.library == "tianshou":
        _train_tianshou(options.num_env_steps)
    else:
        bare_dqn.run_bare(
            measuring.CART_POLE,
            options.num_env_steps,
            LEARNING_STARTS,
            acts_in_numpy=options.library == "bare_numpy",
        )


def _train_sb3(options: argparse.Namespace, num_envs: int) -> None:
    peers.run_sb3(
        "DQN",
        network_variants.env_id(options),
        num_envs,
        options.num_env_steps,
        learning_rate=LEARNING_RATE,
        buffer_size=CAPACITY,
        learning_starts=LEARNING_STARTS,
        batch_size=BATCH_SIZE,
        gamma=GAMMA,
        train_freq=STEPS_PER_UPDATE // num_envs,
        gradient_steps=1,
        target_update_interval=STEPS_PER_TARGET_UPDATE,
        exploration_fraction=0.5,
        exploration_final_eps=0.05,
        **network_variants.sb3_arguments(options, (120, 84), "relu"),
    )


def _train_tianshou(num_env_steps: int) -> None:
    """With ε = 0.1, because a schedule is up to the user here."""
    from tianshou.algorithm import DQN
    from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.utils.net.common import Net

    policy = DiscreteQLearningPolicy(
        model=Net(state_shape=(4,), action_shape=2, hidden_sizes=[120, 84]),
        action_space=gym.spaces.Discrete(2),
        eps_training=0.1,
    )
    algorithm = DQN(
        policy=policy,
        optim=AdamOptimizerFactory(lr=LEARNING_RATE),
        gamma=GAMMA,
        is_double=False,
        target_update_freq=STEPS_PER_TARGET_UPDATE // STEPS_PER_UPDATE,
    )
    peers.train_tianshou(
        algorithm,
        measuring.CART_POLE,
        num_env_steps,
        learning_starts=LEARNING_STARTS,
        steps_per_update=STEPS_PER_UPDATE,
        batch_size=BATCH_SIZE,
        buffer_size=CAPACITY,
    )


if __name__ == "__main__":
    main()
