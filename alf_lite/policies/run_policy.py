"""The conf of a run, and its policy, built from that and a checkpoint."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import tempfile
from collections.abc import Sequence
from pathlib import Path

import gin

from alf_lite.algorithms.learning.construction import create_algorithm
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.border import CHECKPOINT, border, check_types
from alf_lite.checkpoints.checkpointer import Checkpointer, LoadedCheckpoint
from alf_lite.config import TrainerConfig
from alf_lite.config import files as config_files
from alf_lite.config import names as config_names
from alf_lite.config.reader import split_statements
from alf_lite.environments.environment import Environment
from alf_lite.environments.specs_only_environment import (
    SpecsOnlyEnvironment,
    from_saved_spaces,
)
from alf_lite.errors import ConfigError
from alf_lite.runs import training_state
from alf_lite.runs.directory import GIVEN_IN_PYTHON, USER_CONFIG, RunDirectory
from alf_lite.runs.rebuilding import (
    ALGORITHM,
    CREATE_ENV,
    HOOKS,
    OF_THE_LOOP,
    importable_name,
    is_or_are,
    without_partials,
)
from alf_lite.utils.progress import Limits
from alf_lite.utils.threads import set_num_threads

_EXAMPLES = {
    ALGORITHM: "TrainerConfig.algorithm_ctor = @PPOAlgorithm",
    CREATE_ENV: 'create_environment.env_name = "CartPole-v1"',
}
TIME_LIMIT = "create_environment.max_episode_steps"
TO_TRAIN = "alf_lite.trainers.trainer.Trainer(config, root_dir, ...).train()"
TO_PLAY = (
    "alf_lite.tools.player.play(root_dir, num_episodes, config=config, "
    "create_env=create_env)"
)
TO_PREDICT = (
    "algorithm.policy() where it was trained, elsewhere alf_lite.load_policy(root_dir, "
    "config=TrainerConfig(algorithm_ctor=functools.partial(PPOAlgorithm, "
    "actor_network_ctor=...)))"
)
TO_EXPORT = "alf_lite.export_policy(root_dir, create_env=create_env)"
TO_COLLECT = (
    "alf_lite.policies.run_policy.build_policy(config, env, load_policy_checkpoint("
    'root_dir, "latest")), whose AlgorithmPolicy alf_lite.tools.collector.collect '
    "takes"
)


def run_conf(
    root_dir: str | Path,
    parameters: Sequence[str],
    in_python: str,
    config: TrainerConfig | None = None,
) -> str | None:
    """The path of the conf of a run; None if that is empty.

    Args:
        root_dir: of the run.
        parameters: bindings that are given beside the conf.
        in_python: how to do in Python what is wanted. Where that is not to train on,
            what only training needs may be missing.
        config: what is given in Python again.

    Raises:
        ConfigError: if there is no run; or naming what was given in Python and neither
            is among the parameters nor given again, and what to do.
    """
    directory = RunDirectory(root_dir)
    directory.note_modules()
    lines = map(str.strip, directory.read_user_config().splitlines())
    is_empty = all(not line or line.startswith("#") for line in lines)
    names = directory.earlier_record.get(GIVEN_IN_PYTHON)
    missing = [
        name
        for name in names or ([ALGORITHM] if is_empty else [])
        if _is_asked_for(name, in_python)
        and not (_is_bound(name, parameters) or _is_given(name, config))
    ]
    if missing:
        examples = [_EXAMPLES[name] for name in missing if name in _EXAMPLES]
        shown = " ".join(f"--gin_param='{one}'" for one in examples)
        raise ConfigError(
            f"{directory.path}: this run was built in Python and {USER_CONFIG} does "
            f"not say what {', '.join(missing)} {is_or_are(missing)}. In Python: "
            f"{in_python}, with what the run was built with. Or give it here, as in "
            f"{shown or '--gin_param=...'}"
        )
    return None if is_empty else str(directory.path / USER_CONFIG)


def _is_asked_for(name: str, in_python: str) -> bool:
    """Whether what was given in Python is needed for what is wanted."""
    if in_python == TO_TRAIN:
        return True
    is_for_acting = name in _EXAMPLES or _is_of_policy(name)
    return is_for_acting and not (in_python == TO_PREDICT and name == CREATE_ENV)


def _is_of_policy(name: str) -> bool:
    """Whether it is a parameter of the algorithm."""
    return "." in name and not name.startswith(
        ("TrainerConfig.", "create_environment.")
    )


def _is_bound(name: str, parameters: Sequence[str]) -> bool:
    bound = [parameter.partition("=")[0].strip() for parameter in parameters]
    if name == CREATE_ENV:
        return any(one.startswith("create_environment.env_") for one in bound)
    return {HOOKS: "TrainerConfig.hook_ctors"}.get(name, name) in bound


def _is_given(name: str, config: TrainerConfig | None) -> bool:
    """Whether a config says what a run was given in Python."""
    if config is None:
        return False
    ctor, arguments = without_partials(config.algorithm_ctor)
    if name in _EXAMPLES or not _is_of_policy(name):
        return name != ALGORITHM or ctor is not None
    is_own_function = ctor is not None and not inspect.isclass(ctor)
    return is_own_function or name.rpartition(".")[2] in arguments


def read_run_config(
    root_dir: str | Path,
    gin_params: Sequence[str] = (),
    in_python: str = TO_PLAY,
    config: TrainerConfig | None = None,
    *,
    with_env: bool = True,
) -> TrainerConfig:
    """Makes the configuration of a run that of this process.

    It is executed: read only runs that you trust, as you would run only programs that
    you trust.

    Args:
        root_dir: of the run.
        gin_params: override the configuration of the run.
        in_python: see :func:`run_conf`.
        config: what no conf can say of the run. What it leaves at its default is as the
            run says.
        with_env: False leaves out what only its environment and its loop need.

    Raises:
        ConfigError: if there is no run, or the configuration cannot be used or does not
            say what was given in Python.
    """
    if config is not None and gin_params:
        raise ConfigError("gin_params override a conf: change config instead")
    conf = run_conf(root_dir, gin_params, in_python, config)
    if with_env or conf is None:
        config_files.parse_config(conf, gin_params)
    else:
        _parse_what_policies_need(conf, gin_params)
    said = acting_config()
    return said if config is None else _completed(config, said)


def _completed(config: TrainerConfig, said: TrainerConfig) -> TrainerConfig:
    """A config with what the conf of a run says beside it.

    Silently left out, a transformer of the data or a parameter of the networks would
    make another policy of the same parameters.
    """
    left = {
        field.name: getattr(said, field.name)
        for field in dataclasses.fields(config)
        if field.name in config.left_unset
        or getattr(config, field.name) == field.default
    }
    ctor, arguments = without_partials(config.algorithm_ctor)
    name = None if ctor is None else importable_name(ctor)
    if name is not None:  # gin's stand-in takes what the conf binds
        ctor = gin.get_configurable(config_names.complete_name(name))
        left["algorithm_ctor"] = functools.partial(ctor, **arguments)
    return dataclasses.replace(config, **left)


def _parse_what_policies_need(conf: str, gin_params: Sequence[str]) -> None:
    """Reads the conf of a run but for what only its environment needs."""
    lines: list[str] = []
    for statement in split_statements(config_names.read_conf(Path(conf)), conf):
        if _is_needed(statement.source):
            lines += [""] * (statement.line - 1 - len(lines))  # for messages
            lines += statement.source.split("\n")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / Path(conf).name
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        try:
            config_files.parse_config(str(path), gin_params)
        except ConfigError as error:
            raise ConfigError(str(error).replace(str(path), conf)) from error


def _is_needed(statement: str) -> bool:
    """Whether a policy may need it: not what is of the environment or the loop."""
    if statement.startswith("import "):
        module = statement.split()[1].partition(".")[0]
        return config_names.is_importable(module)
    name = statement.partition("=")[0].strip().rpartition("/")[2]
    module, *names = name.split(".")
    if name == TIME_LIMIT:  # which an exported policy tells
        return True
    if module == "create_environment" or name in OF_THE_LOOP:
        return False
    # Of a class that is given in full; one of the algorithm is named elsewhere, too.
    return len(names) < 2 or config_names.is_importable(module)


def acting_config(
    device: str | None = None, epsilon_greedy: float | None = None
) -> TrainerConfig:
    """The ``TrainerConfig`` of this process, with what is given here instead.

    Raises:
        ConfigError: if it cannot be used.
    """
    with config_files.gin_errors():
        config = TrainerConfig()
    if device is not None:
        config = dataclasses.replace(config, device=device)
    if epsilon_greedy is not None:
        config = dataclasses.replace(config, epsilon_greedy=epsilon_greedy)
    set_num_threads(config.num_threads)
    return config


def load_policy_checkpoint(root_dir: str | Path, which: str | int) -> LoadedCheckpoint:
    """The part of a checkpoint that acting needs.

    Args:
        root_dir: of the run, which may be training.
        which: "latest", "best" or a step.

    Raises:
        ConfigError: if there is no run.
        CheckpointError: if there is none that can be used.
    """
    directory = RunDirectory(root_dir)
    if not directory.checkpoints.exists():
        directory.read_user_config()  # says so where there is no run
    loaded = Checkpointer(directory.checkpoints, read_only=True).load(
        which, [training_state.ALGORITHM]
    )
    with border(loaded.path, CHECKPOINT):  # it may be of somebody else
        check_types(loaded.metadata, {"env_steps": int | None})
    return loaded


def build_policy(
    config: TrainerConfig, env: Environment, loaded: LoadedCheckpoint
) -> RLAlgorithm:
    """The algorithm with the checkpointed parameters, built for acting only.

    Raises:
        ConfigError: if it cannot be built.
        CheckpointError: if the checkpoint is of another algorithm or other specs.
    """
    with config_files.gin_errors():
        trained_env = _with_all_entries(env, loaded)
        algorithm = create_algorithm(config, trained_env, is_eval=True)
    optional = algorithm.optional_entries
    left_out = _keys(trained_env) - _keys(env) - optional
    if left_out:
        raise ConfigError(
            f"{env.name} does not observe {sorted(left_out)}, which the policy of "
            f"{loaded.path} acts on. It does without {sorted(optional)}."
        )
    training_state.check_fingerprint(algorithm, loaded)
    training_state.load_policy(algorithm, loaded)
    # Schedules, such as that of the discount of a search, are where they were then
    limits = Limits(config.num_iterations, config.num_env_steps)
    env_steps = loaded.metadata.get("env_steps") or 0
    algorithm.progress.move_to(loaded.step, env_steps, limits)
    algorithm.progress.global_counter = loaded.step
    config_files.warn_of_unused_parameters()
    return algorithm


def _with_all_entries(env: Environment, loaded: LoadedCheckpoint) -> Environment:
    """``env``, or what it was in training, if it observes only a part of that now."""
    trained = environment_of_training(loaded) if _keys(env) else None
    return env if trained is None or not _keys(env) < _keys(trained) else trained


def environment_of_training(loaded: LoadedCheckpoint) -> SpecsOnlyEnvironment | None:
    """Its spaces; None if the checkpoint was written by a version without them.

    Raises:
        CheckpointError: if they are no spaces.
    """
    saved = loaded.metadata.get("environment")
    if not isinstance(saved, dict):
        return None
    with border(loaded.path, CHECKPOINT):
        return from_saved_spaces(saved)


def _keys(env: Environment) -> frozenset[str]:
    """Of a dict of observations."""
    spec = env.observation_spec
    return frozenset(spec if isinstance(spec, dict) else ())


def build_untrained(config: TrainerConfig, env: Environment) -> RLAlgorithm:
    """The algorithm as the configuration builds it, for acting only.

    It has been trained nevertheless if it names a ``checkpoint="prefix@path"``.

    Raises:
        ConfigError: if it cannot be built.
        CheckpointError: if a checkpoint that it names cannot be used.
    """
    with config_files.gin_errors():
        algorithm = create_algorithm(config, env, is_eval=True)
    algorithm.load_checkpoint_parts()
    config_files.warn_of_unused_parameters()
    return algorithm
