"""Trains as one rank of several, with what only one of them was given.

torchrun ... rank_program.py WHAT ARGUMENTS...
"""

from __future__ import annotations

import os
import signal
import sys

import gymnasium

from alf_lite.bin import train
from alf_lite.trainers.hooks import Hook
from alf_lite.utils.ranks import ranks


class Cart(gymnasium.Wrapper):
    """CartPole, which the second rank cannot have."""

    def __init__(self) -> None:
        if os.environ["RANK"] == "1":
            raise FileNotFoundError("no cart on this machine")
        super().__init__(gymnasium.make("CartPole-v1"))


class Kills(Hook):
    """Kills the second rank in its first life, after some checkpoints."""

    on_all_ranks = True

    def after_iter(self, training) -> None:
        is_first_life = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        if is_first_life and ranks.index == 1 and training.run.iterations == 3:
            os.kill(os.getpid(), signal.SIGKILL)


class Raises(Hook):
    on_all_ranks = True

    def after_iter(self, training) -> None:
        if ranks.index == 1:
            raise ZeroDivisionError("a bug of the second rank")


ONLY_OF_ONE = {
    "conf": ["--gin_param=PPOAlgorithm.gamma = 0.9"],
}
OF_ALL = {
    "environment": ["--gin_param=create_environment.env_ctor = @rank_program.Cart"],
    "kill": ["--gin_param=TrainerConfig.hook_ctors = [@rank_program.Kills]"],
    "bug": ["--gin_param=TrainerConfig.hook_ctors = [@rank_program.Raises]"],
}

if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    arguments += OF_ALL.get(what, [])
    if os.environ["RANK"] == "1":
        arguments += ONLY_OF_ONE.get(what, [])
    sys.exit(train.main(arguments))
