"""Checks an environment: ``alf_lite check_env CartPole-v1``, ``my_module.MyEnv``."""

from __future__ import annotations

import ast
import json
from typing import Any

from absl.flags import FlagValues

from alf_lite.bin import recorded_steps_flags
from alf_lite.bin.program import Flag, Program
from alf_lite.errors import ConfigError

FLAGS = (
    Flag(
        "env",
        "The environment: an id of gymnasium, module:id, or the class or function "
        "my_module.MyEnv that makes one.",
        default=[],
    ),
    Flag("conf", "In place of env: the environment of this conf, with its wrappers."),
    Flag(
        "gin_param",
        "A setting that overrides the conf: 'create_environment.wrappers = []'.",
        default=[],
    ),
    Flag(
        "arg",
        "An argument of its constructor: --arg=size=5, --arg=name=text.",
        default=[],
    ),
    Flag(
        "wrapper",
        "A class or function that is called with the environment: "
        "gymnasium.wrappers.FlattenObservation.",
        default=[],
    ),
    Flag(
        "max_episode_steps",
        "The time limit, in place of that of the id. 0 for none.",
        kind=int,
        low=0,
    ),
    Flag(
        "seconds", "How long each speed is measured; 0 for none.", default=1.0, low=0.0
    ),
    Flag("json", "Print one JSON object.", default=False),
)


def check_env(values: FlagValues) -> int:
    """Prints the report; returns 1 if something is wrong."""
    if values.conf or values.gin_param:
        env, settings = _of_conf(values)
    else:
        if len(values.env) != 1:
            raise ConfigError(
                "expected one environment, such as CartPole-v1; got "
                f"{', '.join(values.env) or 'none'}"
            )
        (env,) = values.env
        settings = dict(map(_argument, values.arg))
        if recorded_steps_flags.PYTHON_NAME.fullmatch(env):
            env = _imported(env)
    settings["wrappers"] = [
        *settings.get("wrappers", ()),
        *map(_imported, values.wrapper),
    ]
    if values.max_episode_steps is not None:
        settings["max_episode_steps"] = values.max_episode_steps

    from alf_lite.tools import env_check

    report = env_check.check_env(env, seconds=values.seconds, **settings)
    print(json.dumps(report.as_json()) if values.json else report)
    return 0 if report.is_usable else 1


def _of_conf(values: FlagValues) -> tuple[Any, dict[str, Any]]:
    """What the conf builds, and how."""
    if values.env or values.arg:
        raise ConfigError("env and --arg are those of the conf: give one of both")
    from alf_lite.config import files as config_files
    from alf_lite.environments.creation import create_environment

    config_files.parse_config(values.conf, values.gin_param)
    with config_files.gin_errors():
        env = create_environment(num_parallel_environments=1)
    config_files.warn_of_unused_parameters()
    created = env.created_with
    env.close()
    assert created is not None, env
    if created["vectorization_mode"] == "envpool":
        raise ConfigError(
            "the conf trains in a pool of EnvPool; what is checked are single "
            "environments of gymnasium"
        )
    settings = {name: created[name] for name in ("wrappers", "max_episode_steps")}
    settings |= created["env_kwargs"] or {}
    return created["env_ctor"] or created["env_name"], settings


def _argument(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not (name.isidentifier() and equals):
        raise ConfigError(f"--arg={text}: expected name=value, such as --arg=size=5")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value  # a text without quotes


def _imported(name: str) -> Any:
    """The class or function of this name; modules of this folder are found, too."""
    from alf_lite.config import names

    return names.import_target(name)


PROGRAM = Program(
    name="check_env",
    summary="Tells what is wrong with an environment, and what its steps cost.",
    examples=(
        "CartPole-v1",
        "my_module.MyEnv --arg=size=5 --max_episode_steps=200",
        "minigrid:MiniGrid-Empty-5x5-v0 --wrapper=minigrid.wrappers.ImgObsWrapper",
        "--conf=ppo_pong",
        "CartPole-v1 --json",
    ),
    flags=FLAGS,
    run=check_env,
    prints_result=True,
    operand="env",
)

main = PROGRAM.main


if __name__ == "__main__":
    raise SystemExit(main())
