"""Speed of PPO on CartPole-v1, one library per call.

The same work everywhere: 128 steps per environment and iteration, 4 epochs of 4
mini-batches, separate 64x64 tanh networks, Adam 2.5e-4, γ 0.99, λ 0.95, clip 0.2 (the
value too), entropy 0.01, value 0.5, gradient norm 0.5, normalised advantages.

``--hidden_sizes 256 256`` are other networks, as are ``--activation=elu --layer_norm
--dict`` of ``network_variants.py``; ``--env=Acrobot-v1`` is another task. With
``--sequence_length=16`` the first hidden layer is an LSTM, and alf_lite trains it on
sequences of 16 steps; Stable-Baselines3 (sb3-contrib) always takes the parts of an
unroll that belong to one episode, of up to 128 steps.

    python benchmarks/ppo_cartpole.py --library=sb3

prints one JSON line. ``benchmarks/run.py`` compares several libraries.
"""

from __future__ import annotations

import argparse
from typing import Any

# isort: off
import measuring  # first: it sets the number of threads
import alf_lite_training
import bare_ppo
import network_variants
import peers
# isort: on

UNROLL_LENGTH = 128
DEFAULT_SIZES: dict[str, Any] = {
    "env": "CartPole-v1",
    "hidden_sizes": (64, 64),
    "sequence_length": 0,
    **network_variants.ENCODER,
}
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
    options = measuring.parse_options(
        __doc__, LIBRARIES, num_env_steps=60_000, **DEFAULT_SIZES
    )
    network_variants.check(options)
    if options.sequence_length:
        measuring.refuse(options, **network_variants.ENCODER)
    if options.dict:
        measuring.refuse(options, env=DEFAULT_SIZES["env"])
    measuring.register_counted_environments()
    measuring.counter.start(UNROLL_LENGTH * options.num_envs)
    if options.library.startswith("alf_lite"):
        _train_alf_lite(options)
    elif options.library == "sb3":
        _train_sb3(options)
    elif options.library.startswith("bare"):
        measuring.refuse(options, **DEFAULT_SIZES)
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
    length = options.sequence_length or 1
    bindings = [
        f"create_environment.env_name = 'Counted{options.env}'",
        f"TrainerConfig.num_env_steps = {options.num_env_steps}",
        f"TrainerConfig.compile = {'compile' in options.library}",
        f"NUM_ENVIRONMENTS = {options.num_envs}",
        f"TrainerConfig.mini_batch_length = {length}",
        f"MINI_BATCH_SIZE = {UNROLL_LENGTH * options.num_envs // 4 // length}",
        f"create_environment.vectorization_mode = '{mode}'",
        *network_variants.bindings(
            options, ("ActorDistributionNetwork", "ValueNetwork")
        ),
    ]
    for network in ("ActorDistributionNetwork", "ValueNetwork"):
        if options.sequence_length:
            bindings += [
                f"{network}.fc_layer_params = ()",
                f"{network}.encoding_network_ctor = @LSTMEncodingNetwork",
            ]
        else:
            bindings.append(f"{network}.fc_layer_params = {options.hidden_sizes}")
    if options.sequence_length:
        bindings += [
            f"LSTMEncodingNetwork.hidden_size = {options.hidden_sizes[:1]}",
            f"LSTMEncodingNetwork.post_fc_layer_params = {options.hidden_sizes[1:]}",
        ]
    alf_lite_training.train("ppo_cartpole.gin", bindings)


def _train_sb3(options: argparse.Namespace) -> None:
    if options.sequence_length:
        size, *layers = options.hidden_sizes
        network: dict[str, Any] = {
            "package": "sb3_contrib",
            "policy": "MlpLstmPolicy",
            "policy_kwargs": {"lstm_hidden_size": size, "net_arch": layers},
        }
    else:
        network = network_variants.sb3_arguments(options, options.hidden_sizes, "tanh")
    peers.run_sb3(
        "RecurrentPPO" if options.sequence_length else "PPO",
        network_variants.env_id(options, f"Counted{options.env}"),
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
        **network,
    )


def _run_script(options: argparse.Namespace) -> None:
    arguments = [
        f"--env-id=Counted{options.env}",
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
    measuring.refuse(options, sequence_length=0, **network_variants.ENCODER)
    edit = peers.edit_cleanrl
    if options.library.startswith("leanrl"):
        measuring.refuse(options, env="CartPole-v1")  # its agent has two actions
        edit = peers.edit_leanrl_discrete
        if options.library == "leanrl_compile":
            arguments.append("--compile")
    peers.run_script(
        options.script,
        arguments,
        lambda source: peers.resize(edit(source), 64, options.hidden_sizes),
    )


if __name__ == "__main__":
    main()
