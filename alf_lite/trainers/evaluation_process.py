"""Evaluations in a process of their own, while training goes on.

The policy is handed over in shared memory, which only the trainer writes and only
while the other side waits for a request. Results come back by a pipe.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import reduction
from typing import Any, NamedTuple, NoReturn

import gin
import torch
from torch import Tensor

from alf_lite.algorithms.learning.construction import create_algorithm
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.config import shipping as config_shipping
from alf_lite.config.conflicts import OF_ALL_PROCESSES
from alf_lite.data_structures import TimeStep
from alf_lite.environments.environment import Environment
from alf_lite.errors import AlfLiteError, ConfigError, WorkerError
from alf_lite.metrics.episode_metric import EpisodeMetric, build_episode_metrics
from alf_lite.processes.child_main import Parent, StopRequested, error_of
from alf_lite.processes.child_process import ChildDiedError, ChildGroup, start_server
from alf_lite.processes.shared_memory import SharedMemory
from alf_lite.tensor_specs import TensorSpec
from alf_lite.trainers.evaluator import EvalResult, evaluate
from alf_lite.unrollers.actor_copy import config_in_worker

_logger = logging.getLogger(__name__)

_READY, _STEPS, _RESULT = b"r", b"s", b"e"  # first bytes of what the process says
_COUNTS = struct.Struct("=qq")  # steps, episodes
_TELL_SECONDS = 0.5  # between two numbers of steps
_LOOK_SECONDS = 0.02  # between two looks at the pipe while training goes on
_START_SECONDS = 60.0  # at least, until the environments are built
# Fields of the recipe that a conf binds: references with a scope cannot be pickled.
_BOUND_FIELDS = {
    name: f"TrainerConfig.{name}"
    for name in ("algorithm_ctor", "data_transformer_ctor", "metric_ctors")
}


class EvalRequest(NamedTuple):
    """Which evaluation is wanted."""

    iterations: int  # of training: whose policy it is
    env_steps: int
    num_episodes: int
    seed: int
    progress: dict[str, float]  # what schedules read


class EvalParts(NamedTuple):
    """What an evaluation needs."""

    env: Environment
    algorithm: RLAlgorithm
    metrics: Sequence[EpisodeMetric]


@dataclasses.dataclass(frozen=True)
class EvalRecipe:
    """Builds it in the process.

    Args:
        config: of the run, without the constructors.
        algorithm_ctor: of the config.
        data_transformer_ctor: of the config.
        metric_ctors: of the config.
        create_env: called with ``num_parallel_environments`` and ``seed``.
        seed: of the environments.
    """

    config: TrainerConfig
    algorithm_ctor: Any
    data_transformer_ctor: Any
    metric_ctors: Any
    create_env: Callable[..., Environment]
    seed: int

    def __call__(self) -> EvalParts:
        config = dataclasses.replace(
            self.config,
            algorithm_ctor=self.algorithm_ctor,
            data_transformer_ctor=self.data_transformer_ctor,
        )
        env = create_eval_env(config, self.create_env, self.seed)
        algorithm = create_algorithm(config, env, is_eval=True)
        return EvalParts(env, algorithm, build_episode_metrics(self.metric_ctors))


def create_eval_env(
    config: TrainerConfig, create_env: Callable[..., Environment], seed: int
) -> Environment:
    """The environments of an evaluation; ConfigError if they cannot be stepped."""
    env = create_env(num_parallel_environments=config.num_eval_environments, seed=seed)
    if not env.can_step:
        env.close()
        raise ConfigError(
            f"TrainerConfig.evaluate is True, but {env.name} cannot be "
            "stepped: there are no returns without an environment. Set "
            "evaluate = False and leave early_stop_return out; "
            "evaluation_buffer_dir evaluates on held-out data."
        )
    return env


# The process


class _Settings(NamedTuple):
    recipe: bytes
    specs: dict[str, TensorSpec]  # of what is in the shared memory


def serve(settings: _Settings, trainer: Parent) -> NoReturn:
    """Evaluates until the trainer ends or has enough.

    Args:
        settings: what to build.
        trainer: first sends the descriptor of the shared memory.
    """
    torch.set_num_threads(1)
    memory = _policy_memory(settings.specs)
    trainer.attach(memory)
    tensors = dict(zip(settings.specs, memory.tensors(), strict=True))
    env, algorithm, metrics = _build(settings.recipe)
    wanted = algorithm.state_dict().keys()
    missing = sorted(wanted - tensors.keys())
    if missing:
        raise ConfigError(
            f"the algorithm of the evaluation has {missing[0]}, the one in training "
            "does not: both must be built alike"
        )
    used = reduction.ForkingPickler.dumps(config_shipping.export_config_use())
    trainer.send(_READY + bytes(used))
    try:
        while True:
            request: EvalRequest = reduction.ForkingPickler.loads(trainer.receive())
            algorithm.load_state_dict({name: tensors[name] for name in wanted})
            algorithm.progress.load_state_dict(request.progress)
            result = evaluate(
                algorithm,
                env,
                request.num_episodes,
                seed=request.seed,
                on_step=_Teller(trainer),
                metrics=metrics,
            )
            result = result._replace(
                iterations=request.iterations,
                env_steps=request.env_steps,
                losses={},  # the default cannot be pickled
            )
            trainer.send(_RESULT + bytes(reduction.ForkingPickler.dumps(result)))
    except StopRequested:
        env.close()
        raise


class _Teller:
    """Tells the trainer now and then how many steps have been played."""

    def __init__(self, trainer: Parent) -> None:
        self._trainer = trainer
        self._num_steps = self._num_episodes = 0
        self._told_at = time.monotonic()

    def __call__(self, time_step: TimeStep) -> None:
        self._num_steps += len(time_step.step_type)
        self._num_episodes += int(time_step.is_last().sum())
        now = time.monotonic()
        if now - self._told_at >= _TELL_SECONDS:
            self._told_at = now
            counts = _COUNTS.pack(self._num_steps, self._num_episodes)
            self._trainer.send(_STEPS + counts)


def _build(recipe: bytes) -> EvalParts:
    try:
        arrived = config_shipping.load(recipe)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            "what the evaluation is made of cannot be imported in its process: "
            f"{type(error).__name__}: {error}. Define it at the top level of a module "
            "that is installed, or that PYTHONPATH finds."
        ) from error
    with gin.config_scope(arrived.config_scope or None):
        return arrived.value()


def _policy_memory(specs: Mapping[str, TensorSpec]) -> SharedMemory:
    return SharedMemory(
        list(specs.values()), "the policy for evaluations", "Use a smaller network."
    )


# The trainer's side


def _without_process_settings(config: TrainerConfig) -> TrainerConfig:
    """What only async_eval gives a meaning to is not known there."""
    fields = dataclasses.fields(config)
    defaults: dict[str, Any] = {
        field.name: field.default for field in fields if field.name in OF_ALL_PROCESSES
    }
    return dataclasses.replace(config, **defaults)


class EvaluationProcess:
    """Starts the process, asks for one evaluation at a time, and replaces it.

    A process that dies is replaced, and the evaluation repeated, up to
    ``TrainerConfig.max_worker_restarts`` times. One that raises or is silent for
    ``worker_timeout_seconds`` ends the run with its error.

    Args:
        config: of the run.
        create_env: see ``EvalRecipe``.
        env_seed: of the environments.
        policy: state of the algorithm in training.

    Raises:
        ConfigError: if something cannot be sent to another process.
    """

    def __init__(
        self,
        config: TrainerConfig,
        create_env: Callable[..., Environment],
        env_seed: int,
        policy: Mapping[str, Tensor],
    ) -> None:
        recipe = EvalRecipe(
            config=config_in_worker(_without_process_settings(config)),
            algorithm_ctor=config.algorithm_ctor,
            data_transformer_ctor=config.data_transformer_ctor,
            metric_ctors=config.metric_ctors,
            create_env=create_env,
            seed=env_seed,
        )
        try:
            dumped = config_shipping.dump(recipe, _BOUND_FIELDS)
        except Exception as error:
            raise ConfigError(
                "TrainerConfig.async_eval: what the evaluation is made of cannot be "
                f"sent to its process: {type(error).__name__}: {error}. Use classes "
                "and functions defined at the top level of a module, or bind them in a "
                "conf."
            ) from error
        specs = {name: TensorSpec.from_tensor(t) for name, t in policy.items()}
        self._settings = _Settings(dumped, specs)
        self._timeout = config.worker_timeout_seconds
        self._max_restarts, self._num_restarts = config.max_worker_restarts, 0
        self._memory = _policy_memory(specs)
        self._descriptor = self._memory.create()
        start_server([__name__, "torch._dynamo"])
        self._processes = ChildGroup(serve, name="evaluation", method="forkserver")
        self._request: bytes | None = None  # that has no result yet
        self._looked_at = -1.0
        # Of the evaluation that goes on, as far as is known.
        self.num_steps = self.num_episodes = 0
        self._start()

    @property
    def is_free(self) -> bool:
        """Whether there is no evaluation that goes on."""
        return self._request is None

    def begin(self, request: EvalRequest, policy: Mapping[str, Tensor]) -> None:
        """Has this policy evaluated; the caller may change it afterwards."""
        assert self.is_free, request
        tensors = self._memory.tensors()
        with torch.no_grad():
            torch._foreach_copy_(tensors, [policy[n] for n in self._settings.specs])
        self._request = bytes(reduction.ForkingPickler.dumps(request))
        self.num_steps, self.num_episodes = 0, 0
        self._alive_at = time.monotonic()
        self._send_request()

    def poll(self, timeout: float = 0.0) -> EvalResult | None:
        """The result, if it has come after so many seconds.

        Raises:
            EnvError, ConfigError, WorkerError: of the process, if it raised, died once
                too often, or hangs.
        """
        now = time.monotonic()
        if not timeout and now - self._looked_at < _LOOK_SECONDS:
            return None
        self._looked_at = now
        for _, has_message in self._processes.wait(timeout):
            try:
                result = self._receive(has_message)
            except ChildDiedError as error:
                self._replace(error)
                break
            if result is not None:
                return result
        self._check_time()
        return None

    def close(self) -> None:
        """Ends the process, whatever it does."""
        self._processes.close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _start(self) -> None:
        process = self._processes.start(self._settings, 0)
        process.send_descriptor(self._descriptor)
        self._is_ready, self._alive_at = False, time.monotonic()

    def _send_request(self) -> None:
        if self._is_ready and self._request is not None:
            self._processes.children[0].send(self._request)

    def _receive(self, has_message: bool) -> EvalResult | None:
        """Reads what the process says; a result if it is one."""
        process = self._processes.children[0]
        if not (has_message or process.connection.poll(0)):
            raise ChildDiedError(process)
        message = process.receive()
        self._alive_at = time.monotonic()
        kind, content = message[:1], message[1:]
        if kind == _STEPS:
            self.num_steps, self.num_episodes = _COUNTS.unpack(content)
        elif kind == _READY:
            config_shipping.import_config_use(reduction.ForkingPickler.loads(content))
            self._is_ready = True
            self._send_request()
        elif kind == _RESULT:
            self._request = None
            return reduction.ForkingPickler.loads(content)
        else:
            error = error_of(message, self._where(), WorkerError)
            assert error is not None, message
            raise error
        return None

    def _replace(self, death: ChildDiedError) -> None:
        error = WorkerError(f"{self._where()}: {death}")
        if self._num_restarts >= self._max_restarts:
            raise error
        self._num_restarts += 1
        _logger.warning(
            "%s\nIt is replaced (%d of %d times), and the evaluation repeated.",
            error,
            self._num_restarts,
            self._max_restarts,
        )
        self._start()

    def _check_time(self) -> None:
        """Finds a process that has something to do and says nothing."""
        if self._request is None and self._is_ready:
            return
        allowed = self._timeout
        if not self._is_ready:
            allowed = max(allowed, _START_SECONDS)
        now = time.monotonic()
        if now - self._alive_at <= allowed:
            return
        if self._processes.wait(0):  # it has; this process was not here to listen
            self._alive_at = now
            return
        process = self._processes.children[0]
        error: AlfLiteError = WorkerError(
            f"{self._where()}: no step of its environments for {allowed:g} s, so it "
            "was killed. If they need longer, raise TrainerConfig."
            f"worker_timeout_seconds.{process.ask_for_stack()}"
        )
        process.kill()
        raise error

    def _where(self) -> str:
        return f"evaluation process {self._processes.children[0].pid}"
