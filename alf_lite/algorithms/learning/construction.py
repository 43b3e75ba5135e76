"""What happens when the root of a training run is built, in Python as from a conf.

``PPOAlgorithm(env=env, config=config)`` takes the specs from the environment, after the
data transformers that the configuration names, the seed, the device and the number of
threads; what the algorithm declares fills the settings that were not given. An
algorithm that is part of another, or only acts in a test, is built from specs alone.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import nn

from alf_lite import nest
from alf_lite.algorithms.algorithm import Algorithm
from alf_lite.algorithms.learning.batch_loss import with_memory
from alf_lite.algorithms.learning.rank_share import become_a_rank, share_of_rank
from alf_lite.algorithms.rl_contract import RLContract
from alf_lite.config import TrainerConfig, rules
from alf_lite.config import errors as config_errors
from alf_lite.data_transformers.create_data_transformer import create_data_transformer
from alf_lite.data_transformers.data_transformer import DataTransformer
from alf_lite.environments.environment import Environment
from alf_lite.environments.specs_only_environment import RemoteEnvironment
from alf_lite.errors import ConfigError
from alf_lite.replay_buffers.replay_settings import check_replay_settings
from alf_lite.utils import random_state
from alf_lite.utils.devices import check_device
from alf_lite.utils.ranks import ranks
from alf_lite.utils.schedulers import find_schedules, scheduled
from alf_lite.utils.threads import set_num_threads

# Of the front door, not of the algorithm: a constructor need not have them.
_OPTIONAL = ("reward_spec", "is_eval")
_SPECS = ("observation_spec", "action_spec", "reward_spec")


class BuiltFrom(NamedTuple):
    """What the root of a run was given, to build it again."""

    given_config: TrainerConfig
    config: TrainerConfig  # with what the algorithm declares
    arguments: dict[str, Any]  # its own, without the environment and the specs


class ConstructorSignature:
    """``inspect.signature`` of a class: that of its constructor, not of ``__new__``."""

    def __get__(self, instance: Any, cls: type) -> inspect.Signature:
        if instance is not None:  # is called otherwise
            raise AttributeError("__signature__")
        signature = inspect.signature(cls.__init__)  # type: ignore[misc]
        return signature.replace(parameters=list(signature.parameters.values())[1:])


class RootArguments(NamedTuple):
    """What the caller gave, before confs add to it; and what a root is built with."""

    arguments: dict[str, Any]
    config: TrainerConfig  # the caller's
    whole_config: TrainerConfig  # of all ranks
    share: TrainerConfig  # of this one
    env: Environment
    is_eval: bool
    transformer: DataTransformer
    specs: dict[str, Any]


# Of an algorithm while it is built
_GIVEN, _IS_BUILT = "_given", "_is_being_built"


def look_at_arguments(
    algorithm: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Checks what the caller gave, and prepares the process where a root is built.

    Called by ``__new__``: what a conf binds is not there yet.

    Raises:
        ConfigError: if the environment, the configuration and the algorithm do not
            fit each other.
        TypeError: for a parameter that the algorithm does not have.
    """
    cls = type(algorithm)
    _check_keywords(cls, kwargs)
    env: Any = kwargs.get("env")
    given: Any = kwargs.get("config")
    _check_given(cls, args, env, given)
    if env is None:
        return
    whole_config = config = _config_for(cls, kwargs)
    is_eval = kwargs.get("is_eval", False)
    if not is_eval:
        ranks.join()
        config = share_of_rank(config)
        _prepare_process(config, env)
    transformer = create_data_transformer(
        config.data_transformer_ctor,
        env.observation_spec,
        env.reward_spec,
        training_env=None if is_eval else env,
    )
    specs = {
        "observation_spec": transformer.transformed_observation_spec,
        "action_spec": env.action_spec,
        "reward_spec": env.reward_spec,
    }
    _check_specs(cls, _named(cls, args, kwargs), specs)
    vars(algorithm)[_GIVEN] = RootArguments(
        kwargs, given, whole_config, config, env, is_eval, transformer, specs
    )


def through_front_door(constructor: Callable[..., None]) -> Callable[..., None]:
    """A constructor of an algorithm, which completes a root if it is the outermost.

    It gets the specs and the configuration of a root; nothing else runs after the
    constructors of subclasses, which may add to what those of their bases built.
    """

    @functools.wraps(constructor)
    def construct(self: Any, *args: Any, **kwargs: Any) -> None:
        state = vars(self)
        if _IS_BUILT in state:  # by the constructor of a subclass
            constructor(self, *args, **kwargs)
            return
        given: RootArguments | None = state.pop(_GIVEN, None)
        state[_IS_BUILT] = True
        try:
            if given is not None:
                env = None if given.is_eval else given.env
                kwargs = {**_named(type(self), args, kwargs), **given.specs}
                args, kwargs = (), {**kwargs, "env": env, "config": given.share}
            constructor(self, *args, **_without_unknown(type(self), kwargs))
        finally:
            del state[_IS_BUILT]
        if given is not None:
            _complete_root(self, given)
        else:
            self.follow_progress(self.progress)

    return construct


def _complete_root(algorithm: Any, given: RootArguments) -> None:
    own_arguments = _own_arguments(given.arguments)
    algorithm.built_from = BuiltFrom(given.config, given.whole_config, own_arguments)
    config, transformer, is_eval = given.share, given.transformer, given.is_eval
    if not is_eval:
        algorithm.check_children()
        _check_settings(algorithm, config, given.env, transformer)
    algorithm.data_transformer = transformer
    algorithm.to(config.device)
    algorithm.follow_progress(algorithm.progress)
    if not is_eval:
        given.env.bind(algorithm)
        _check_schedules(algorithm, config)
        become_a_rank(algorithm)


def counted_config(
    config: TrainerConfig | None,
    is_on_policy: bool | None,
    env: Environment | None,
    name: str,
) -> TrainerConfig | None:
    """The configuration, its updates counted as the kind of the algorithm has it.

    Raises:
        ConfigError: if ``is_on_policy`` is none of the two kinds, nor None.
    """
    if not isinstance(is_on_policy, bool | None):
        raise ConfigError(
            f"{name}: is_on_policy must be True or False, got {is_on_policy!r}. True "
            "trains on every unroll and drops it, False trains from a replay buffer, "
            "and None leaves it to the parent."
        )
    if config is None or is_on_policy is None:
        return config
    num_environments = None if env is None else env.batch_size * ranks.size
    return config.counted(is_on_policy, num_environments)


def create_algorithm(
    config: TrainerConfig, env: Environment, *, is_eval: bool = False
) -> Any:
    """The RLAlgorithm that ``config.algorithm_ctor`` builds.

    Args:
        config: names the algorithm, the data transformers and the device.
        env: gives the specs; the algorithm trains in it unless ``is_eval``.
        is_eval: build only what acting needs.

    Raises:
        ConfigError: if ``algorithm_ctor`` is not set or builds something else, or the
            data transformers or the settings do not fit the environment or the
            algorithm.
    """
    if config.algorithm_ctor is None:
        raise ConfigError(
            "TrainerConfig.algorithm_ctor is not set. Name an algorithm in the conf, "
            "such as: TrainerConfig.algorithm_ctor = @PPOAlgorithm"
        )
    if inspect.isclass(config.algorithm_ctor):
        _check_class(config.algorithm_ctor)
    algorithm = config.algorithm_ctor(env=env, config=config, is_eval=is_eval)
    _check_class(type(algorithm))
    return algorithm


def _check_class(built: type) -> None:
    if not issubclass(built, RLContract):
        raise ConfigError(
            "TrainerConfig.algorithm_ctor must build an RLAlgorithm, such as "
            f"@PPOAlgorithm, got a {built.__name__}"
        )


def _parameters(cls: type) -> dict[str, inspect.Parameter]:
    """What can be given by name; of the base classes, too, behind ``**kwargs``."""
    found: dict[str, inspect.Parameter] = {}
    for base in cls.__mro__:
        constructor = vars(base).get("__init__")
        if constructor is None:
            continue
        own = dict(inspect.signature(constructor).parameters)
        own.pop("self", None)
        found = {**own, **found}
        if not any(p.kind is p.VAR_KEYWORD for p in own.values()):
            break
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name: p for name, p in found.items() if p.kind in named}


def _own_arguments(kwargs: dict[str, Any]) -> dict[str, Any]:
    others = ("env", "config", "is_eval", *_SPECS)
    return {name: value for name, value in kwargs.items() if name not in others}


def _check_keywords(cls: type, kwargs: dict[str, Any]) -> None:
    known = _parameters(cls)
    for name, value in kwargs.items():
        if name.endswith("_ctor") and isinstance(value, nn.Module):
            built = type(value).__name__
            raise TypeError(
                f"{cls.__name__}.{name} is what builds a network, and got one that is "
                f"built. Write {name}=lambda *specs: {built}(...)."
            )
        if name in known or name in _OPTIONAL:
            continue
        raise TypeError(config_errors.unknown_argument(cls, name))


def _check_given(cls: type, args: tuple[Any, ...], env: Any, config: Any) -> None:
    """Refuses half a root, and what was put into the wrong place."""
    call = f"{cls.__name__}(env=env, config=config)"
    for value in args:
        if isinstance(value, Environment | TrainerConfig):
            raise ConfigError(
                f"{cls.__name__} was given a {type(value).__name__} in place of specs. "
                f"Name it: {call}"
            )
    if env is not None and not isinstance(env, Environment):
        raise ConfigError(
            f"{cls.__name__}: env must be an environment of alf_lite, got {env!r}. "
            "Make one: alf_lite.create_environment(env_name, num_parallel_environments)"
            ", or create_environment(env_ctor=...) from one of your own."
        )
    if config is not None and not isinstance(config, TrainerConfig):
        raise ConfigError(
            f"{cls.__name__}: config must be a TrainerConfig, got {config!r}"
        )
    if env is not None and config is None:
        raise ConfigError(
            f"{cls.__name__}: env is given but no config, which says how to train. "
            f"Write {call} with config = alf_lite.TrainerConfig(...)"
        )
    if config is not None and env is None and not args:
        raise ConfigError(
            f"{cls.__name__}: config is given but no env to train in. Write {call} "
            'with env = alf_lite.create_environment("CartPole-v1", 8)'
        )


def _config_for(cls: type, kwargs: dict[str, Any]) -> TrainerConfig:
    """The configuration with what this algorithm declares."""
    config: TrainerConfig = kwargs["config"]
    named = config.algorithm_ctor
    while isinstance(named, functools.partial):
        named = named.func
    if inspect.isclass(named) and not (
        issubclass(cls, named) or issubclass(named, cls)
    ):
        raise ConfigError(
            f"{cls.__name__} is built with a config whose algorithm_ctor is "
            f"{named.__name__}. Leave algorithm_ctor out."
        )
    # What is declared depends on these.
    names = kwargs.keys() & {getattr(cls, "settings_of", None), "n_step"}
    given = {name: kwargs[name] for name in names}
    return config.declared_for(functools.partial(cls, **given) if given else cls)


def _prepare_process(config: TrainerConfig, env: Environment) -> None:
    of_rank = "" if ranks.size == 1 else f" (for rank {ranks.index})"
    check_device(config.device, of_rank)
    is_of_workers = isinstance(env, RemoteEnvironment)
    rules.check(config, "environment", is_of_workers=is_of_workers)
    set_num_threads(config.num_threads)
    if config.random_seed is not None:
        # The same on all ranks: what is built shall be the same.
        random_state.seed_everything(config.random_seed)


def _named(cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """All arguments by name."""
    if not args:
        return kwargs
    known = _parameters(cls)
    names = [name for name, p in known.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _check_specs(cls: type, arguments: dict[str, Any], specs: dict[str, Any]) -> None:
    """Refuses other specs than those of the environment."""
    for name, spec in specs.items():
        if name in arguments and not _are_equal(arguments[name], spec):
            raise ConfigError(
                f"{cls.__name__}: {name} is {arguments[name]}, but that of the "
                f"environment, after the data transformers, is {spec}. Leave {name} "
                "out: it is taken from env."
            )


def _without_unknown(cls: type, arguments: dict[str, Any]) -> dict[str, Any]:
    """Leaves out what every constructor may be given and not every one has."""
    known = _parameters(cls)
    return {
        name: value
        for name, value in arguments.items()
        if name in known or name not in _OPTIONAL
    }


def _are_equal(given: Any, spec: Any) -> bool:
    try:
        nest.assert_same_structure(given, spec)
    except (TypeError, ValueError):
        return False
    return nest.flatten(given) == nest.flatten(spec)


def _check_settings(
    algorithm: Any,
    config: TrainerConfig,
    env: Environment,
    transformer: DataTransformer,
) -> None:
    """Refuses settings that the algorithm or the environment gives no meaning."""
    acting = type(algorithm.rl_algorithm)
    has_train_step = acting.train_step is not Algorithm.train_step
    rules.check(
        algorithm.built_from.config,  # of all ranks
        "algorithm",
        algorithm=type(algorithm).__name__,
        acting=acting.__name__,
        on_policy=algorithm.on_policy,
        has_state=not nest.is_empty(algorithm.train_state_spec),
        corrects_policy_lag=algorithm.corrects_policy_lag,
        has_train_step=has_train_step,
        trains_on_rollout_info=acting.trains_on_rollout_info,
        unrolls_with_grad=algorithm.unrolls_with_grad,
        tells_action_distribution=algorithm.tells_action_distribution,
        tells_priority=acting.tells_priority,
        explores_by_epsilon=algorithm.rl_algorithm.explores_by_epsilon,
        needs_successors=acting.needs_successors,
        needs_rollout_info=acting.needs_rollout_info,
        transforms_replayed_steps=transformer.needs_replay,
        has_memory=bool(
            not nest.is_empty(algorithm.train_state_spec) and with_memory(algorithm)
        ),
        num_bootstrap_steps=algorithm.num_bootstrap_steps,
        all_environments=env.batch_size * ranks.size,
        normalizes_advantages=getattr(
            algorithm.rl_algorithm, "_normalize_advantages", False
        ),
        adapts_learning_rate=bool(
            getattr(algorithm.rl_algorithm, "_adaptive_rate", None)
        ),
        limits_kl=getattr(algorithm.rl_algorithm, "_target_kl", None) is not None,
    )
    if not algorithm.on_policy:
        check_replay_settings(config, env.batch_size, transformer.num_history_steps)
    elif not (has_train_step or algorithm.unrolls_with_grad):
        raise ConfigError(
            f"{acting.__name__} has no train_step. Write one, or set the "
            "class attribute trains_on_rollout_info = True if calc_loss takes what "
            "rollout_step returns, with its graph."
        )


def _check_schedules(algorithm: Any, config: TrainerConfig) -> None:
    """Refuses coefficients that something cannot follow, or over a run without end."""
    names = [name for m in algorithm.modules() for name in scheduled(m)]
    if algorithm.uses_episode_returns and "_gamma" in names:
        raise ConfigError(
            f"{algorithm.name}: gamma is a schedule, but returns of whole episodes are "
            "summed once. Give gamma a number, or leave the bounds by returns out."
        )
    found = (
        schedule
        for module in algorithm.modules()
        for schedule in find_schedules(vars(module).values())
        if schedule.scheduler.progress_type == "percent"
    )
    rules.check(
        config,
        "schedules",
        algorithm=algorithm.name,
        schedules=[name.strip("_") for name in names],
        slopes_in_loss=[
            name
            for module in algorithm.modules()
            if (name := getattr(module, "slope_in_loss", ""))
        ],
        schedule_of_share=next(map(repr, found), ""),
    )
