"""Speed of PPO on 1, 8, 32 and 128 CartPoles, in turn, in one run.

    python benchmarks/scaling_envs.py --peer_python=PEERS/bin/python

An unroll stays at 128 steps per environment with 4 epochs of 4 mini-batches, so the
mini-batches grow with the number of environments.
"""

from __future__ import annotations

import argparse

import run

# Number of environments -> environment steps, for several seconds each.
SIZES = {1: 15_360, 8: 61_440, 32: 122_880, 128: 262_144}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    run.add_peer_arguments(parser)
    options = parser.parse_args()
    peers = run.find_peers(options)
    for num_envs, num_env_steps in SIZES.items():
        sizes = {"num_envs": num_envs, "num_env_steps": num_env_steps}
        records = run.compare(
            "ppo_cartpole", options.libraries, options.rounds, peers, sizes
        )
        print(f"\nPPO on {num_envs} CartPoles, {options.rounds} rounds\n")
        print(run.table(records, options.libraries[-1]), flush=True)


if __name__ == "__main__":
    main()
