"""What builds a run again: its conf, unless it was built in Python.

A conf cannot hold every object, so that what was given in Python is noted by name in
``run.json``. A program then says what it lacks, instead of building something else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from alf_lite.algorithms.learning.construction import BuiltFrom
from alf_lite.config import DefaultSettings, TrainerConfig, default_settings
from alf_lite.config import files as config_files
from alf_lite.config.trainer_config import UPDATE_COUNTS
from alf_lite.config.writing import ConfWriter, importable_name
from alf_lite.environments.creation import create_environment
from alf_lite.environments.environment import Environment
from alf_lite.errors import ConfigError
from alf_lite.optimizers.optimizers import Optimizer
from alf_lite.trainers.run_directory import USER_CONFIG, RunDirectory

GIVEN_IN_PYTHON = "given_in_python"  # the entry of run.json

_CREATE_ENV = "create_env"
_HOOKS = "hooks"
_ALGORITHM = "TrainerConfig.algorithm_ctor"
_EXAMPLES = {
    _ALGORITHM: "TrainerConfig.algorithm_ctor = @PPOAlgorithm",
    _CREATE_ENV: 'create_environment.env_name = "CartPole-v1"',
}
# What the directory and its checkpoints say.
_OF_THE_DIRECTORY = ("root_dir", "random_seed")

TO_TRAIN = "alf_lite.trainers.trainer.Trainer(config, root_dir, ...).train()"
TO_PLAY = (
    "alf_lite.trainers.player.play(root_dir, num_episodes, config=config, "
    "create_env=create_env)"
)
TO_PREDICT = "alf_lite.load_policy(root_dir, config=config)"
TO_COLLECT = (
    "alf_lite.trainers.run_policy.build_policy(config, env, load_policy_checkpoint("
    'root_dir, "latest")), whose AlgorithmPolicy alf_lite.trainers.collector.collect '
    "takes"
)


class Given(NamedTuple):
    """What was given in Python, and not by the conf of this process."""

    statements: dict[str, str]  # what a conf can say of it
    left_out: list[str]  # the names of the rest


def what_was_given(
    config: TrainerConfig,
    create_env: Callable[..., Any],
    hooks: Sequence[Any] = (),
    built_from: BuiltFrom | None = None,
    env: Environment | None = None,
) -> Given:
    """What was given in Python, as far as possible as statements of a conf.

    Args:
        config: of the run.
        create_env: builds its environments.
        hooks: of the trainer.
        built_from: what an algorithm was built from that was given to the trainer.
        env: that this algorithm trains in.
    """
    writer = ConfWriter(_recipe)
    left_out = []
    for name in given_in_python(config, create_env, hooks, built_from):
        field = name.partition(".")[2]
        if name == _CREATE_ENV:
            _write_environment(writer, create_env, env)
        elif name == _HOOKS:
            left_out.append(_HOOKS)
        elif name == _ALGORITHM:
            _write_algorithm(writer, config.algorithm_ctor)
        else:
            writer.bind(name, getattr(config, field))
    if built_from is not None:
        _write_arguments(writer, _algorithm_name(config), built_from.arguments)
    return Given(writer.statements, list(dict.fromkeys([*writer.left_out, *left_out])))


def _algorithm_name(config: TrainerConfig) -> str:
    return importable_name(_without_partials(config.algorithm_ctor)[0]) or ""


def _without_partials(ctor: Any) -> tuple[Any, dict[str, Any]]:
    """What is called in the end, and with which arguments."""
    arguments: dict[str, Any] = {}
    while isinstance(ctor, functools.partial) and not ctor.args:
        arguments = {**ctor.keywords, **arguments}
        ctor = ctor.func
    return ctor, arguments


def _write_algorithm(writer: ConfWriter, ctor: Any) -> None:
    target, arguments = _without_partials(ctor)
    writer.bind(_ALGORITHM, target)
    if _ALGORITHM in writer.statements:
        _write_arguments(writer, importable_name(target) or "", arguments)


def _write_arguments(writer: ConfWriter, name: str, arguments: dict[str, Any]) -> None:
    for parameter, value in arguments.items():
        writer.bind(f"{name}.{parameter}" if name else parameter, value)


def _write_environment(
    writer: ConfWriter, create_env: Callable[..., Any], env: Environment | None
) -> None:
    arguments = None if env is None else env.created_with
    if arguments is None and isinstance(create_env, functools.partial):
        positional = ("env_name", "num_parallel_environments")
        if create_env.func is create_environment and len(create_env.args) <= 2:
            given = dict(zip(positional, create_env.args, strict=False))
            arguments = {**given, **create_env.keywords}
    if arguments is None:
        writer.left_out.append(_CREATE_ENV)
        return
    defaults = inspect.signature(create_environment).parameters
    own = ConfWriter(_recipe)
    for name, value in arguments.items():
        if name != "seed" and value is not defaults[name].default:
            own.bind(f"create_environment.{name}", value)
    if own.left_out:
        writer.left_out.append(_CREATE_ENV)
    writer.statements |= own.statements


def _recipe(value: Any) -> tuple[Callable[..., Any], dict[str, Any]] | None:
    """How objects of the library that confs build are built again."""
    return (type(value), value.arguments()) if isinstance(value, Optimizer) else None


def only_from_python(left_out: Sequence[str]) -> str:
    """Says that no conf can build a run again."""
    return (
        "This run can be resumed and played only from Python, not by the command line: "
        f"a conf cannot say what {', '.join(left_out)} {_is_or_are(left_out)}. Use "
        "classes and functions at the top level of a module that can be imported, and "
        "environments made by create_environment."
    )


def given_in_python(
    config: TrainerConfig,
    create_env: Callable[..., Any],
    hooks: Sequence[Any],
    built_from: BuiltFrom | None = None,
) -> list[str]:
    """Names of what the conf of this process does not say of a run."""
    try:
        with config_files.gin_errors():
            said: Any = TrainerConfig()
    except ConfigError:  # it says too little even for that
        said = None
    unset = (built_from.given_config if built_from else config).left_unset
    names = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        default = getattr(said, field.name, field.default)
        if (
            field.name not in _OF_THE_DIRECTORY
            and value != default
            and field.name not in unset
            and not _is_declared(field.name, config, said)
        ):
            names.append(f"TrainerConfig.{field.name}")
    if create_env is not create_environment:
        names.append(_CREATE_ENV)
    return names + ([_HOOKS] if hooks else [])


def _is_declared(name: str, *configs: TrainerConfig | None) -> bool:
    """Whether a field has in each config what the algorithm of that declares."""
    if name in UPDATE_COUNTS and getattr(configs[0], name) is None:
        return True  # another one is given, or declared
    return name in DefaultSettings._fields and all(
        getattr(config, name) == getattr(default_settings(config.algorithm_ctor), name)
        for config in configs
        if config is not None
    )


def run_conf(
    root_dir: str | Path, parameters: Sequence[str], in_python: str
) -> str | None:
    """The path of the conf of a run; None if that is empty.

    Args:
        root_dir: of the run.
        parameters: bindings that are given beside the conf.
        in_python: how to do in Python what is wanted. Where that is not to train on,
            what only training needs may be missing.

    Raises:
        ConfigError: if there is no run; or naming what was given in Python and is not
            among the parameters, and what to do.
    """
    directory = RunDirectory(root_dir)
    lines = map(str.strip, directory.read_user_config().splitlines())
    is_empty = all(not line or line.startswith("#") for line in lines)
    names = _noted(directory) or ([_ALGORITHM] if is_empty else [])
    if in_python != TO_TRAIN:
        names = [name for name in names if name in _EXAMPLES or _is_of_policy(name)]
    if in_python == TO_PREDICT:
        names = [name for name in names if name != _CREATE_ENV]
    missing = [name for name in names if not _is_bound(name, parameters)]
    if missing:
        examples = [_EXAMPLES[name] for name in missing if name in _EXAMPLES]
        shown = " ".join(f"--gin_param='{one}'" for one in examples)
        raise ConfigError(
            f"{directory.path}: this run was built in Python and {USER_CONFIG} does "
            f"not say what {', '.join(missing)} {_is_or_are(missing)}. In Python: "
            f"{in_python}, with what the run was built with. Or give it here, as in "
            f"{shown or '--gin_param=...'}"
        )
    return None if is_empty else str(directory.path / USER_CONFIG)


def _noted(directory: RunDirectory) -> list[str]:
    with contextlib.suppress(ValueError, TypeError, KeyError):
        names = json.loads(directory.read_run_file() or "")[GIVEN_IN_PYTHON]
        return [name for name in names if isinstance(name, str)]
    return []  # written by an older version, or by hand


def _is_of_policy(name: str) -> bool:
    """Whether it is a parameter of the algorithm."""
    return "." in name and not name.startswith(
        ("TrainerConfig.", "create_environment.")
    )


def _is_bound(name: str, parameters: Sequence[str]) -> bool:
    bound = [parameter.partition("=")[0].strip() for parameter in parameters]
    if name == _CREATE_ENV:
        return any(one.startswith("create_environment.env_") for one in bound)
    return {_HOOKS: "TrainerConfig.hook_ctors"}.get(name, name) in bound


def _is_or_are(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"
