"""What was given to a run in Python, as statements of a conf.

A conf cannot hold every object, so that what was given in Python is noted by name in
``run.json``. A program then says what it lacks, instead of building something else
(see ``run_policy``).
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from alf_lite.algorithms.learning.construction import BuiltFrom
from alf_lite.config import (
    TrainerConfig,
    bindings,
    configurables,
    values,
)
from alf_lite.config import names as config_names
from alf_lite.config.trainer_config import UPDATE_COUNTS
from alf_lite.environments.creation import create_environment
from alf_lite.environments.environment import Environment
from alf_lite.optimizers.optimizers import Optimizer

CREATE_ENV = "create_env"
HOOKS = "hooks"
ALGORITHM = "TrainerConfig.algorithm_ctor"
# Of a config what takes part in training only.
OF_THE_LOOP = tuple(
    f"TrainerConfig.{name}" for name in ("hook_ctors", "metric_ctors", "data_metrics")
)
# What the directory and its checkpoints say.
_OF_THE_DIRECTORY = ("root_dir", "random_seed")


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
    writer = ConfWriter()
    left_out = []
    for name in given_in_python(config, create_env, hooks, built_from):
        field = name.partition(".")[2]
        if name == CREATE_ENV:
            _write_environment(writer, create_env, env)
        elif name == HOOKS:
            left_out.append(HOOKS)
        elif name == ALGORITHM:
            _write_algorithm(writer, config.algorithm_ctor)
        else:
            writer.bind(name, getattr(config, field))
    if built_from is not None:
        target, _ = without_partials(config.algorithm_ctor)
        _write_arguments(writer, target, built_from.arguments)
    return Given(writer.statements, list(dict.fromkeys([*writer.left_out, *left_out])))


def without_partials(ctor: Any) -> tuple[Any, dict[str, Any]]:
    """What is called in the end, and with which arguments."""
    arguments: dict[str, Any] = {}
    while isinstance(ctor, functools.partial) and not ctor.args:
        arguments = {**ctor.keywords, **arguments}
        ctor = ctor.func
    return ctor, arguments


def _write_algorithm(writer: ConfWriter, ctor: Any) -> None:
    target, arguments = without_partials(ctor)
    writer.bind(ALGORITHM, target)
    if ALGORITHM in writer.statements:
        _write_arguments(writer, target, arguments)


def _write_arguments(writer: ConfWriter, ctor: Any, arguments: dict[str, Any]) -> None:
    name = importable_name(ctor)
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
        writer.left_out.append(CREATE_ENV)
        return
    defaults = inspect.signature(create_environment).parameters
    # A conf that leaves it out has as many as the algorithm declares.
    number = arguments.get("num_parallel_environments") or 1
    own = ConfWriter()
    own.bind("create_environment.num_parallel_environments", number)
    for name, value in arguments.items():
        if name != "seed" and value is not defaults[name].default:
            own.bind(f"create_environment.{name}", value)
    if own.left_out:
        writer.left_out.append(CREATE_ENV)
    writer.statements |= own.statements


def defined_here(statements: Mapping[str, str]) -> list[str]:
    """The classes and functions of this program itself that statements speak of."""
    text = " ".join([*statements, *statements.values()])
    return sorted(set(re.findall(rf"\b{config_names.MAIN}\.(\w+)", text)))


def only_from_here(statements: Mapping[str, str]) -> str:
    """Says what of a run no other program can import; empty if nothing."""
    names = defined_here(statements)
    if not names or config_names.is_guarded(config_names.this_program()):
        return ""
    return (
        f"{', '.join(names)} {is_or_are(names)} defined in this program, so that no "
        "other one can load or play this run. Move it into a module of its own, or put "
        'what a script does besides definitions below `if __name__ == "__main__":`.'
    )


def only_from_python(left_out: Sequence[str]) -> str:
    """Says that no conf can build a run again, or not what trains in it."""
    what = f"a conf cannot say what {', '.join(left_out)} {is_or_are(left_out)}"
    if left_out == [HOOKS]:
        return (
            f"This run can be resumed only from Python, not by the command line: {what}"
            ". Give them as TrainerConfig.hook_ctors, classes and functions at the top "
            "level of a module that can be imported."
        )
    and_played = "" if {HOOKS, *OF_THE_LOOP}.issuperset(left_out) else " and played"
    return (
        f"This run can be resumed{and_played} only from Python, not by the command "
        f"line: {what}. Use classes and functions at the top level of a module that "
        "can be imported, and environments made by create_environment."
    )


def given_in_python(
    config: TrainerConfig,
    create_env: Callable[..., Any],
    hooks: Sequence[Any],
    built_from: BuiltFrom | None = None,
) -> list[str]:
    """Names of what the conf of this process does not say of a run.

    A setting that an algorithm may declare is said by no default.
    """
    unset = (built_from.given_config if built_from else config).left_unset
    names = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        said = bindings.bound_value(TrainerConfig, field.name, field.default)
        is_none = field.name in UPDATE_COUNTS and value is None  # another one is given
        if field.name not in (*_OF_THE_DIRECTORY, *unset) and not is_none:
            names += [f"TrainerConfig.{field.name}"] * (value != said)
    if create_env is not create_environment:
        names.append(CREATE_ENV)
    return names + ([HOOKS] if hooks else [])


# Statements of a conf


class ConfWriter:
    """Statements that build the same again, and what no conf can say.

    Attributes:
        statements: ``"PPOAlgorithm.gamma"`` → its value as a conf writes it.
        left_out: the parameters whose values are lambdas, objects or otherwise without
            a name that another process can find.
    """

    def __init__(self) -> None:
        self.statements: dict[str, str] = {}
        self.left_out: list[str] = []

    def bind(self, key: str, value: Any) -> None:
        """Notes the value of a parameter, ``scope/Name.parameter``."""
        statements: dict[str, str] = {}
        text = self._expression(key.rpartition(".")[2], value, statements)
        if text is None:
            self.left_out.append(key)
            return
        self.statements |= {**statements, key: text}

    def _expression(
        self, scope: str, value: Any, statements: dict[str, str]
    ) -> str | None:
        """The value as a conf writes it; None if it cannot be written."""
        value = values.as_number(value)
        if bindings.is_literal(value):
            return repr(value)
        if isinstance(value, list | tuple | Mapping):
            return self._container(scope, value, statements)
        if isinstance(value, functools.partial) and not value.args:
            return self._reference(scope, value.func, value.keywords, statements)
        if inspect.isclass(value) or inspect.isroutine(value):
            name = importable_name(value)
            return None if name is None else f"@{name}"
        if isinstance(value, Optimizer):
            arguments = value.arguments()
        elif dataclasses.is_dataclass(value):
            names = [field.name for field in dataclasses.fields(value)]
            arguments = {name: getattr(value, name) for name in names}
        else:
            return None
        reference = self._reference(scope, type(value), arguments, statements)
        return None if reference is None else f"{reference}()"

    def _container(
        self, scope: str, value: Any, statements: dict[str, str]
    ) -> str | None:
        is_mapping = isinstance(value, Mapping)
        named = dict(value) if is_mapping else dict(enumerate(value))
        items = {
            key: self._expression(f"{scope}_{key}", item, statements)
            for key, item in named.items()
        }
        if None in items.values() or not all(map(bindings.is_literal, items)):
            return None
        if is_mapping:
            return f"{{{', '.join(f'{key!r}: {items[key]}' for key in items)}}}"
        return f"[{', '.join(filter(None, items.values()))}]"

    def _reference(
        self,
        scope: str,
        target: Any,
        arguments: Mapping[str, Any],
        statements: dict[str, str],
    ) -> str | None:
        name = importable_name(target)
        if name is None:
            return None
        for parameter, value in arguments.items():
            text = self._expression(f"{scope}_{parameter}", value, statements)
            if text is None:
                return None
            statements[f"{scope}/{name}.{parameter}"] = text
        return f"@{scope}/{name}"


def importable_name(target: Any) -> str | None:
    """What a conf calls a class or function; None if nothing finds it by a name."""
    selector = configurables.selector_of(target)
    module = getattr(target, "__module__", None)
    if module not in sys.modules:
        return None
    if selector is not None and module.startswith("alf_lite."):
        return configurables.short_name(selector)
    # torch.tanh says that it is _VariableFunctionsClass.tanh.
    for name in (getattr(target, "__qualname__", ""), getattr(target, "__name__", "")):
        found: Any = sys.modules[module]
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is target:
            return f"{module}.{name}"
    return None


def is_or_are(names: Sequence[str]) -> str:
    """The verb after a list of names."""
    return "is" if len(names) == 1 and list(names) != [HOOKS] else "are"
