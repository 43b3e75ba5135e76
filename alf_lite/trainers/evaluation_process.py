"""Evaluations in a process of their own, while training goes on.

The policy is handed over in shared memory, which only the trainer writes and only
while the other side waits for a request. Results come back by a pipe.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import time
from collections.abc import Callable, Mapping
from multiprocessing import reduction

import torch
from torch import Tensor

from alf_lite.config import TrainerConfig
from alf_lite.config import shipping as config_shipping
from alf_lite.environments.environment import Environment
from alf_lite.errors import AlfLiteError, WorkerError
from alf_lite.policies.evaluator import EpisodeRecording, EvalResult
from alf_lite.processes.child_main import error_of
from alf_lite.processes.child_process import ChildDiedError, ChildGroup, start_server
from alf_lite.tensor_specs import TensorSpec
from alf_lite.trainers import evaluation_worker
from alf_lite.trainers.evaluation_worker import (
    COUNTS,
    READY,
    RESULT,
    STEPS,
    EvalRecipe,
    EvalRequest,
    EvalWorkerSettings,
    policy_memory,
)
from alf_lite.unrollers.actor_copy import config_in_worker

_logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.02  # between two looks at the pipe while training goes on
_START_SECONDS = 60.0  # at least, until the environments are built
_START_LOOK_SECONDS = 1.0  # between two looks at that
# Fields of the recipe that a conf binds: references with a scope cannot be pickled.
_BOUND_FIELDS = {
    name: f"TrainerConfig.{name}"
    for name in ("algorithm_ctor", "data_transformer_ctor", "metric_ctors")
}


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
        recording: of videos, if any are wanted.

    Raises:
        ConfigError: if something cannot be sent to another process.
    """

    def __init__(
        self,
        config: TrainerConfig,
        create_env: Callable[..., Environment],
        env_seed: int,
        policy: Mapping[str, Tensor],
        recording: EpisodeRecording | None = None,
    ) -> None:
        recipe = EvalRecipe(
            config=dataclasses.replace(
                config_in_worker(config),
                evaluate=True,
                num_eval_environments=config.num_eval_environments,
            ),
            algorithm_ctor=config.algorithm_ctor,
            data_transformer_ctor=config.data_transformer_ctor,
            metric_ctors=config.metric_ctors,
            create_env=create_env,
            seed=env_seed,
            recording=recording,
        )
        what = "TrainerConfig.async_eval: what evaluations are made of"
        dumped = config_shipping.dump_for(what, recipe, _BOUND_FIELDS)
        specs = {name: TensorSpec.from_tensor(t) for name, t in policy.items()}
        self._settings = EvalWorkerSettings(dumped, specs)
        self._timeout = config.worker_timeout_seconds
        self._max_restarts, self._num_restarts = config.max_worker_restarts, 0
        self._memory = policy_memory(specs)
        self._descriptor = self._memory.create()
        start_server([evaluation_worker.__name__])
        self._processes = ChildGroup(
            evaluation_worker.serve, name="evaluation", method="forkserver"
        )
        self._request: bytes | None = None  # that has no result yet
        self._looked_at = -1.0
        # Of the evaluation that goes on, as far as is known.
        self.num_steps = self.num_episodes = 0
        self._start()

    @property
    def is_free(self) -> bool:
        """Whether there is no evaluation that goes on."""
        return self._request is None

    def wait_until_ready(self) -> None:
        """Returns when everything is built there.

        Raises:
            EnvError, ConfigError, WorkerError: if it cannot be.
        """
        while not self._is_ready:
            self.poll(_START_LOOK_SECONDS)

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
        pause, self._looked_at = now - self._looked_at, now
        for _, has_message in self._processes.wait(timeout):
            try:
                result = self._receive(has_message)
            except ChildDiedError as error:
                self._replace(error)
                break
            if result is not None:
                return result
        self._check_time(pause)
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
        self._has_more_time = False  # than it has, since it said something last

    def _send_request(self) -> None:
        if self._is_ready and self._request is not None:
            self._processes.children[0].send(self._request)

    def _receive(self, has_message: bool) -> EvalResult | None:
        """Reads what the process says; a result if it is one."""
        process = self._processes.children[0]
        if not (has_message or process.connection.poll(0)):
            raise ChildDiedError(process)
        message = process.receive()
        self._alive_at, self._has_more_time = time.monotonic(), False
        kind, content = message[:1], message[1:]
        if kind == STEPS:
            self.num_steps, self.num_episodes = COUNTS.unpack(content)
        elif kind == READY:
            config_shipping.import_config_use(reduction.ForkingPickler.loads(content))
            self._is_ready = True
            self._send_request()
        elif kind == RESULT:
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

    def _check_time(self, pause: float) -> None:
        """Finds a process that has something to do and says nothing.

        Args:
            pause: seconds since this process listened last.
        """
        if self._request is None and self._is_ready:
            return
        allowed = self._timeout
        if not self._is_ready:
            allowed = max(allowed, _START_SECONDS)
        now = time.monotonic()
        if now - self._alive_at <= allowed:
            return
        # This process was not here to listen; perhaps both were stopped, as by Ctrl-Z.
        may_be_late = pause > allowed and not self._has_more_time
        if may_be_late or self._processes.wait(0):
            self._alive_at, self._has_more_time = now, may_be_late
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
