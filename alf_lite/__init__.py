"""alf_lite: algorithm-centric reinforcement learning.

env = alf_lite.create_environment("CartPole-v1", num_parallel_environments=8)
config = alf_lite.TrainerConfig(num_env_steps=100_000)
algorithm = alf_lite.PPOAlgorithm(env=env, config=config)
alf_lite.Trainer(algorithm, root_dir="runs/ppo").train()
alf_lite.load_policy("runs/ppo").predict(observation)
"""

from __future__ import annotations

from importlib import import_module

from alf_lite import exports

TYPE_CHECKING = False  # as in typing, which takes longer to import than all the rest
if TYPE_CHECKING:
    from typing import Any

__version__ = "0.2.0"

# Loaded when they are asked for: a program that only shows its help needs none.
_MODULES = {
    "Adam": "optimizers.optimizers",
    "Agent": "algorithms.agent",
    "TrainedPolicy": "algorithms.acting",
    "RLAlgorithm": "algorithms.rl_algorithm",
    "StepType": "data_structures",
    "TimeStep": "data_structures",
    "Trainer": "trainers.trainer",
    "TrainerConfig": "config",
    "check_env": "tools.env_check",
    "configurable": "config",
    "create_environment": "environments.creation",
    "evaluate": "policies.trained_policy",
    "export_policy": "tools.policy_export",
    "load_policy": "policies.trained_policy",
    "read_curves": "runs.curves",
    "train": "trainers.trainer",
}

__all__ = [
    "Adam",
    "Agent",
    "RLAlgorithm",
    "StepType",
    "TimeStep",
    "TrainedPolicy",
    "Trainer",
    "TrainerConfig",
    "__version__",
    "check_env",
    "configurable",
    "create_environment",
    "evaluate",
    "export_policy",
    "load_policy",
    "read_curves",
    "train",
]


def __getattr__(name: str) -> Any:
    name = exports.current_name(name)
    if name in _MODULES:
        return getattr(import_module(f"alf_lite.{_MODULES[name]}"), name)
    if name.endswith("Algorithm"):  # every file of algorithms/ is offered
        return getattr(import_module("alf_lite.algorithms"), name)
    if exports.is_module(__name__, name):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from alf_lite.config.errors import names_elsewhere

    elsewhere = names_elsewhere()["configurables"]
    name_here = elsewhere.get(name, "")
    if name_here in _MODULES or name_here.endswith("Algorithm"):
        raise AttributeError(f"alf_lite has no {name!r}. Here that is {name_here!r}.")
    raise exports.no_such_name(__name__, name, __dir__())


def __dir__() -> list[str]:
    import_module("alf_lite.algorithms")
    algorithms = exports.public_names("alf_lite.algorithms")
    return [*__all__, *(name for name in algorithms if name.endswith("Algorithm"))]
