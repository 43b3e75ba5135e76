"""What a trainer is given: what is trained, in which environments, for how long."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import math
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from alf_lite import fast
from alf_lite.algorithms.learning.construction import create_algorithm
from alf_lite.algorithms.learning.rank_share import share_of_rank
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.config import TrainerConfig, default_settings, rules
from alf_lite.config import files as config_files
from alf_lite.config.bindings import note_used
from alf_lite.data_transformers.normalizing_transformers import RewardNormalizer
from alf_lite.data_transformers.single_step_transformers import RewardTransformer
from alf_lite.environments.creation import EnvironmentsOfRun, create_environment
from alf_lite.environments.environment import Environment
from alf_lite.environments.specs_only_environment import RemoteEnvironment
from alf_lite.environments.torch_vector_env import TorchVectorEnv
from alf_lite.errors import ConfigError
from alf_lite.runs import rebuilding
from alf_lite.trainers.hooks import Hook
from alf_lite.unrollers.actor_copy import create_remote_environment
from alf_lite.utils import random_state
from alf_lite.utils.progress import Limits
from alf_lite.utils.ranks import ranks

_logger = logging.getLogger(__name__)

# Of a run that is compiled: code is made for half a minute and more.
_MIN_COMPILED_ITERATIONS = 100
# Multiplications of the largest layer in one update, below which threads only wait.
_MIN_THREADED_WORK = 2**22
# Of the environment, and of what is collected there.
_OF_OWN_STEPS = (
    "unroll_length",
    "initial_collect_steps",
    "initial_random_policy",
    "replay_buffer_length",
    "rl_train_every_update_steps",
)


class RunPlan:
    """What was given to a :class:`Trainer`, checked, and built when it trains.

    Args:
        what: see :class:`Trainer`, as for the others.
        root_dir: see there.
        hooks: see there.
        create_env: see there.

    Attributes:
        config: of the run; with a seed and an absolute ``root_dir`` when it trains.
        root_dir: of the run; empty if nothing is to be kept.
        limits: of the run.
        create_env: builds environments.
        given: what of it the conf of this process does not say.
        seed: of the run.

    Raises:
        ConfigError: if it cannot be trained.
    """

    def __init__(
        self,
        what: TrainerConfig | RLAlgorithm,
        root_dir: str | os.PathLike[str] | None,
        hooks: Sequence[Hook],
        create_env: Callable[..., Environment] | None,
    ) -> None:
        _check_root_dir(root_dir)
        self._algorithm = _checked_algorithm(what)
        env = built_from = None
        if isinstance(what, TrainerConfig):
            self.config = what
        else:
            env, built_from = what.env, what.built_from
            assert built_from is not None
            self.config = built_from.config
        self.root_dir = os.fspath(root_dir or self.config.root_dir)
        self.limits = Limits(self.config.num_iterations, self.config.num_env_steps)
        create_env = create_env or _create_env_as(env)
        is_unknown = env is not None and env.created_with is None
        rules.check(
            self.config,
            "trainer",
            by_trainer=True,
            can_build_environments=not is_unknown
            or create_env is not create_environment,
        )
        unset = (built_from.given_config if built_from else self.config).left_unset
        # Another config may have been made since.
        note_used(TrainerConfig, {name: getattr(self.config, name) for name in unset})
        self.given = rebuilding.what_was_given(
            self.config, create_env, hooks, built_from, env
        )
        if self.root_dir and built_from is not None:
            left_out, statements = self.given.left_out, self.given.statements
            said = [rebuilding.only_from_python(left_out)] if left_out else []
            said += filter(None, [rebuilding.only_from_here(statements)])
            for line in said:
                _logger.warning("%s", line)
        self._of_run = EnvironmentsOfRun()
        if create_env is create_environment:
            defaults = default_settings(self.config.algorithm_ctor)
            # Unroll workers act on the CPU.
            device = "cpu" if self.config.async_unroll else self.config.device
            self._of_run = EnvironmentsOfRun(
                defaults.num_parallel_environments, device=device
            )
            create_env = functools.partial(create_env, of_run=self._of_run)
        self.create_env = create_env

    @property
    def seed(self) -> int:
        assert self.config.random_seed is not None, "it is drawn with the first build"
        return self.config.random_seed

    @property
    def eval_config(self) -> TrainerConfig:
        """The config by which another process builds the algorithm for evaluations."""
        algorithm = self._algorithm
        if algorithm is None:
            return self.config
        assert algorithm.built_from is not None, algorithm
        arguments = algorithm.built_from.arguments
        ctor = functools.partial(type(algorithm), **arguments)
        return dataclasses.replace(self.config, algorithm_ctor=ctor)

    def advise(self, algorithm: RLAlgorithm, iterations: int, env_steps: int) -> None:
        """Says once which settings cannot be fast, or have no effect.

        Args:
            algorithm: set up for training.
            iterations: of the run so far.
            env_steps: of the run so far.
        """
        env, left = algorithm.env, [math.inf]
        if self.limits.num_iterations:
            left.append(self.limits.num_iterations - iterations)
        num_environments = ranks.size * (env.batch_size if env else 1)
        num_env_steps = self.config.unroll_length * num_environments
        if self.limits.num_env_steps and num_env_steps:
            left.append((self.limits.num_env_steps - env_steps) / num_env_steps)
        for line in (
            *slow_settings(self.config, min(left), algorithm),
            *idle_settings(self.config),
            *idle_parts(algorithm),
        ):
            _logger.warning("%s", line)

    def _to_go_on(self, algorithm: RLAlgorithm) -> str:
        """What to write to train on from where an algorithm ended."""
        build = f"new = {type(algorithm).__name__}(env=new_env, config=config)"
        if self.root_dir:
            return (
                f"{build} with a config that has a larger limit, and Trainer(new, "
                f"{self.root_dir!r}).train() resumes the run."
            )
        return (
            f"{build}, then new.load_state_dict(algorithm.state_dict()) keeps what "
            "was learned, and Trainer(new).train(). A run with a root_dir is resumed."
        )

    def build_algorithm(self, stack: contextlib.ExitStack) -> RLAlgorithm:
        """The algorithm that was given, or the one that the configuration describes.

        Args:
            stack: closes what was built.
        """
        if self.config.random_seed is None:
            seed = ranks.broadcast_data(random_state.new_seed())
            self.config = dataclasses.replace(self.config, random_seed=seed)
        algorithm = self._algorithm
        if algorithm is not None:
            if algorithm.is_finished:
                raise ConfigError(
                    f"{algorithm.name} has been trained to its end, and its "
                    f"environment is closed. To go on: {self._to_go_on(algorithm)}"
                )
            stack.callback(algorithm.finish_train)
            return algorithm
        own_seed = ranks.seed_of(self.seed)
        random_state.seed_everything(own_seed)
        env_seed = random_state.derive_seed(own_seed, "environments")
        env: Environment
        if self.config.async_unroll:  # what is known of those of the workers
            config = share_of_rank(self.config)
            env = create_remote_environment(config, self.create_env, env_seed)
        elif ranks.size > 1 and _is_divided(self.create_env):
            of_run = self._of_run._replace(num_ranks=ranks.size)
            env = self.create_env(seed=env_seed, of_run=of_run)
        else:
            env = self.create_env(seed=env_seed)
        stack.callback(env.close)
        algorithm = create_algorithm(self.config, env)
        stack.callback(algorithm.finish_train)
        if isinstance(env, RemoteEnvironment):
            env.release()
        return algorithm


def _is_divided(create_env: Callable[..., Environment]) -> bool:
    """Whether it builds the environments of the whole run, unless told otherwise."""
    while isinstance(create_env, functools.partial):
        create_env = create_env.func
    return create_env is create_environment


@contextlib.contextmanager
def trainable(
    what: str | os.PathLike[str] | TrainerConfig | RLAlgorithm,
    gin_params: Sequence[str],
    seed: int | None,
) -> Iterator[TrainerConfig | RLAlgorithm]:
    """What a :class:`Trainer` takes, of what ``train`` was given.

    In the block a conf is the configuration of the process.
    """
    if isinstance(what, str | os.PathLike):
        parameters = [*gin_params]
        if seed is not None:
            parameters.append(f"TrainerConfig.random_seed = {seed}")
        with config_files.own_config():
            config_files.parse_config(os.fspath(what), parameters)
            with config_files.gin_errors():
                config = TrainerConfig()
            yield config
        return
    if gin_params:
        raise ConfigError("gin_params override a conf: change the config instead")
    if seed is not None:
        if not isinstance(what, TrainerConfig):
            raise ConfigError("seed: an algorithm has that of its TrainerConfig")
        what = dataclasses.replace(what, random_seed=seed)
    yield what


def idle_settings(config: TrainerConfig) -> Iterator[str]:
    """What is said in one line of settings that are without effect.

    It is no error: a conf that has all of it is made one without by a setting or two,
    such as the device; one of recorded steps by ending before the first own one.
    """
    if config.sets("initial_random_policy") and not config.initial_collect_steps:
        yield (
            "TrainerConfig.initial_random_policy has no effect: it acts for "
            "initial_collect_steps, which are 0. Set them."
        )
    if config.sets("check_finite_interval") and config.device.startswith("cpu"):
        yield (
            "TrainerConfig.check_finite_interval has no effect: on a CPU every update "
            "is looked at. Leave it out, or train on a GPU."
        )
    after = config.rl_train_after_update_steps
    given = [name for name in _OF_OWN_STEPS if config.sets(name)]
    if given and 0 < config.num_iterations <= after:
        yield (
            f"TrainerConfig.num_iterations={config.num_iterations} ends the run before "
            f"its first own step (rl_train_after_update_steps={after}): without effect "
            f"is what is set of {', '.join(given)}."
        )


def idle_parts(algorithm: RLAlgorithm) -> Iterator[str]:
    """What is said in one line of each optimizer or transformer without effect."""
    for name, optimizer in algorithm.optimizers():
        if not optimizer.parameters:
            yield (
                f"{algorithm.name}: {type(optimizer).__name__} of {name!r} trains "
                "nothing, since other optimizers take every parameter: leave it out."
            )
    if algorithm.rl_algorithm.uses_rewards:
        return
    for part in algorithm.data_transformer.modules():
        if isinstance(part, RewardTransformer | RewardNormalizer):
            yield (
                f"{algorithm.name}: {type(part).__name__} has no effect: the algorithm "
                "looks at no reward of a step. Leave it out."
            )


def slow_settings(
    config: TrainerConfig, num_iterations: float, algorithm: RLAlgorithm
) -> Iterator[str]:
    """What makes the run slower than it need be, one line each.

    Args:
        config: of the run.
        num_iterations: that it still has, about.
        algorithm: set up for training.
    """
    if config.compile and num_iterations < _MIN_COMPILED_ITERATIONS:
        yield (
            f"TrainerConfig.compile takes half a minute and more, and this run has "
            f"only {math.ceil(num_iterations)} iterations: leave it out."
        )
    elif config.compile and _takes_shortcuts(config, algorithm):
        yield (
            f"TrainerConfig.compile: on a CPU the losses of {algorithm.name} are "
            "computed in numpy, up to 1.25 times as fast as compiled. Set compile = "
            "False; it pays for images and LSTMs."
        )
    parameters = list(algorithm.parameters())
    size = max((p.numel() for p in parameters), default=0)
    work = size * _rows_of_an_update(config, algorithm)
    is_dense = all(p.ndim < 4 for p in parameters)  # no images
    on_cpu = algorithm.device.type == "cpu"
    if config.num_threads > 1 and on_cpu and is_dense and work < _MIN_THREADED_WORK:
        yield (
            f"TrainerConfig.num_threads is {config.num_threads}, but the networks are "
            f"small (at most {size:,} weights in a layer): threads wait for each other "
            "longer than they work. Set num_threads = 1."
        )
    yield from _slow_environments(algorithm)


def _takes_shortcuts(config: TrainerConfig, algorithm: RLAlgorithm) -> bool:
    """Whether updates would, which those of compiled runs do not."""
    on_cpu = algorithm.device.type == "cpu" and config.num_threads == 1
    return on_cpu and fast.computes_loss_of(algorithm)


def _slow_environments(algorithm: RLAlgorithm) -> Iterator[str]:
    env = algorithm.env
    if isinstance(env, TorchVectorEnv) and env.device != algorithm.device:
        yield (
            f"{env.name} is on {env.device}, but the networks are on "
            f"{algorithm.device}: every step is copied. Name no device for it."
        )
    if env is None or env.batch_size > 1 or not env.can_step:
        return
    usual = algorithm.rl_algorithm.default_settings.num_parallel_environments
    if (env.created_with or {}).get("vectorization_mode") == "async":
        yield (
            "create_environment.vectorization_mode is 'async' with one environment: "
            "its process only adds to each step. Leave it out, or take more of them."
        )
    elif algorithm.on_policy and usual > 1:
        yield (
            f"{algorithm.name} trains in one environment. A step of {usual} takes "
            "hardly longer than that of one: set "
            f"create_environment.num_parallel_environments = {usual}."
        )


def _rows_of_an_update(config: TrainerConfig, algorithm: RLAlgorithm) -> float:
    """About how many time steps go through the networks at once."""
    num_environments = 1 if algorithm.env is None else algorithm.env.batch_size
    length = config.mini_batch_length or config.unroll_length
    return length * (config.mini_batch_size or num_environments) / ranks.size


def _checked_algorithm(what: Any) -> RLAlgorithm | None:
    """The algorithm that was given; None for a configuration."""
    if isinstance(what, TrainerConfig):
        return None
    if not isinstance(what, RLAlgorithm):
        shown = what.__name__ if isinstance(what, type) else repr(what)
        raise ConfigError(
            f"Trainer: expected an algorithm or a TrainerConfig, got {shown}. Write "
            "Trainer(PPOAlgorithm(env=env, config=config), root_dir)."
        )
    if what.env is None or what.built_from is None:
        raise ConfigError(
            f"{what.name} was built without an environment to train in. Write "
            f"{type(what).__name__}(env=env, config=config)."
        )
    return what


def _check_root_dir(root_dir: Any) -> None:
    if root_dir is not None and not isinstance(root_dir, str | os.PathLike):
        hint = " Name it: create_env=..." if callable(root_dir) else ""
        raise ConfigError(
            f"Trainer: root_dir must be the path of a directory, got {root_dir!r}."
            f"{hint}"
        )


def _create_env_as(env: Environment | None) -> Callable[..., Environment]:
    """What builds environments as ``env`` was built."""
    if env is None or env.created_with is None:
        return create_environment
    return functools.partial(
        create_environment,
        **{k: v for k, v in env.created_with.items() if k != "seed"},
    )
