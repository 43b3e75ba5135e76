"""Speed of our unrolls in this or in other processes, one variant per call.

    python benchmarks/async_alf_lite.py --work=cartpole --variant=async_2

prints one JSON line. ``async_training.py`` compares variants and libraries. A variant
is ``sync``, ``processes`` with a process for each environment, or ``async_N`` with N
unroll workers; ``impala_N`` is another algorithm.
"""

from __future__ import annotations

import argparse
import json
import time

# isort: off
import measuring  # first: it sets the number of threads
import alf_lite_training
import delayed_environments
# isort: on

from alf_lite.algorithms.learning.construction import create_algorithm
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.config.files import parse_config
from alf_lite.environments.creation import create_environment
from alf_lite.trainers.hooks import Hook, Training
from alf_lite.unrollers.actor_copy import create_remote_environment

NUM_ENVS = 8
UNROLL_LENGTH = 128
LEARNING_STARTS = 500
SLEEPING = ("sleeping", "ppo_slow", "sac_slow")
WORKS = ("sac", "update", "collect", "cartpole", "computing", *SLEEPING)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", choices=WORKS, required=True)
    parser.add_argument("--variant", default="sync")
    parser.add_argument("--num_env_steps", type=int, default=10_000)
    parser.add_argument("--delay", type=float, default=0.0, help="seconds per step")
    options = parser.parse_args()
    marks = measuring.IterationMarks()
    record = {}
    if options.work == "update":
        record = {"seconds": _seconds_of_update()}
    elif options.work == "collect":
        _collect(options, marks)
    elif options.work in ("sac", "sac_slow"):
        bindings = _sac_bindings(options)
        alf_lite_training.train("sac_half_cheetah.gin", bindings, [Marking(marks)])
    else:
        name, _ = _parse(options.variant)
        conf = "impala_cart_pole" if name == "impala" else "ppo_cartpole.gin"
        bindings = _on_policy_bindings(options)
        alf_lite_training.train(conf, bindings, [Marking(marks)])
    if marks.has_rates:
        record = marks.rates()
    print("\n" + json.dumps(record), flush=True)


class Marking(Hook):
    """Marks the time after every iteration that trained."""

    def __init__(self, marks: measuring.IterationMarks) -> None:
        super().__init__()
        self._marks = marks

    def after_iter(self, training: Training) -> None:
        if self._marks.has_updates:
            self._marks.add(training.algorithm.num_env_steps)


def _parse(variant: str) -> tuple[str, int]:
    """The name and the number of workers, 0 for none."""
    name, _, number = variant.partition("_")
    return name, int(number or 0)


def _env_bindings(env_name: str, **kwargs: float) -> list[str]:
    return [
        f"create_environment.env_name = '{env_name}'",
        f"create_environment.env_kwargs = {kwargs}",
    ]


def _async_bindings(num_workers: int, num_envs: int) -> list[str]:
    if num_workers == 0:
        return [f"create_environment.num_parallel_environments = {num_envs}"]
    return [
        "TrainerConfig.async_unroll = True",
        f"TrainerConfig.num_unroll_workers = {num_workers}",
        f"create_environment.num_parallel_environments = {num_envs // num_workers}",
    ]


def _sac_bindings(options: argparse.Namespace) -> list[str]:
    """One update after a step of one environment, or of eight that sleep."""
    _, num_workers = _parse(options.variant)
    is_slow = options.work == "sac_slow"
    num_envs, key = (8, "sleep_seconds") if is_slow else (1, "busy_seconds")
    return [
        *_env_bindings(delayed_environments.PENDULUM, **{key: options.delay}),
        *_async_bindings(num_workers, num_envs),
        f"TrainerConfig.updates_per_env_step = {1 / num_envs}",
        f"TrainerConfig.num_env_steps = {options.num_env_steps}",
        f"TrainerConfig.initial_collect_steps = {LEARNING_STARTS}",
        "TrainerConfig.replay_buffer_length = 100_000",
    ]


def _on_policy_bindings(options: argparse.Namespace) -> list[str]:
    """Eight environments; PPO with the sizes of ``ppo_cartpole.py``."""
    name, num_workers = _parse(options.variant)
    key = "sleep_seconds" if options.work in SLEEPING else "busy_seconds"
    bindings = [
        *_env_bindings(delayed_environments.CART_POLE, **{key: options.delay}),
        *_async_bindings(num_workers, NUM_ENVS),
        f"TrainerConfig.num_env_steps = {options.num_env_steps}",
    ]
    if name == "processes":
        bindings.append("create_environment.vectorization_mode = 'async'")
    elif name == "impala":
        bindings += ["TrainerConfig.evaluate = False", "TrainerConfig.random_seed = 0"]
    elif num_workers:
        bindings.append("PPOAlgorithm.off_policy_correction = 'vtrace'")
    return bindings


def _collect(options: argparse.Namespace, marks: measuring.IterationMarks) -> None:
    """Unrolls workers of one environment each, and does nothing else."""
    _, num_workers = _parse(options.variant)
    algorithm = _build(
        "ppo_cartpole.gin",
        [
            *_env_bindings(delayed_environments.CART_POLE, sleep_seconds=options.delay),
            *_async_bindings(num_workers, num_envs=num_workers),
            f"TrainerConfig.unroll_length = {UNROLL_LENGTH}",
            f"TrainerConfig.num_env_steps = {options.num_env_steps}",
            "PPOAlgorithm.off_policy_correction = 'vtrace'",
        ],
    )
    for _ in range(options.num_env_steps // (UNROLL_LENGTH * num_workers)):
        algorithm.unroll(UNROLL_LENGTH)
        marks.add(algorithm.num_env_steps)
    algorithm.finish_train()


def _seconds_of_update() -> float:
    """The processor's time for one iteration of SAC without its environment steps."""
    options = argparse.Namespace(variant="sync", delay=0.0, num_env_steps=10_000)
    algorithm = _build("sac_half_cheetah.gin", _sac_bindings(options))
    algorithm.unroll(LEARNING_STARTS)
    algorithm.set_training(True)
    for num_updates in (50, 200):  # the first ones are warm-up
        begin = time.process_time()
        for _ in range(num_updates):
            algorithm.train_from_replay_buffer()
        seconds = (time.process_time() - begin) / num_updates
    algorithm.finish_train()
    return seconds


def _build(conf: str, bindings: list[str]) -> RLAlgorithm:
    parse_config(str(measuring.HERE / conf), bindings)
    config = TrainerConfig()
    if config.async_unroll:
        env = create_remote_environment(config, create_environment, seed=0)
        algorithm = create_algorithm(config, env)
        env.release()
    else:
        algorithm = create_algorithm(config, create_environment(seed=0))
    algorithm.setup_training()
    algorithm.reset_environment(0)
    return algorithm


if __name__ == "__main__":
    main()
