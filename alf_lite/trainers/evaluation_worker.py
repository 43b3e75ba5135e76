"""What evaluates, here or in a process of its own, and how that process is served."""

from __future__ import annotations

import dataclasses
import logging
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import reduction
from typing import Any, NamedTuple, NoReturn

import gin
import torch

from alf_lite.algorithms.learning.construction import create_algorithm
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.config import shipping as config_shipping
from alf_lite.config.bindings import evaluation_scope
from alf_lite.data_structures import TimeStep
from alf_lite.environments.environment import Environment
from alf_lite.errors import ConfigError
from alf_lite.metrics.episode_metric import EpisodeMetric, build_episode_metrics
from alf_lite.policies.evaluator import EpisodeRecording, EvalResult, evaluate
from alf_lite.processes.child_main import Parent, StopRequested
from alf_lite.processes.shared_memory import SharedMemory
from alf_lite.tensor_specs import TensorSpec

_logger = logging.getLogger(__name__)

READY, STEPS, RESULT = b"r", b"s", b"e"  # first bytes of what the process says
COUNTS = struct.Struct("=qq")  # steps, episodes
_TELL_SECONDS = 0.5  # between two numbers of steps


class EvalRequest(NamedTuple):
    """Which evaluation is wanted."""

    iterations: int  # of training: whose policy it is
    env_steps: int
    num_episodes: int
    seed: int
    progress: dict[str, float]  # what schedules read
    predict_epsilon: float  # which hooks may change
    video_path: str | None = None  # of a video, if one is wanted


class EvalParts(NamedTuple):
    """What an evaluation needs."""

    env: Environment
    algorithm: RLAlgorithm
    metrics: Sequence[EpisodeMetric]
    recording: EpisodeRecording | None

    def play(
        self,
        num_episodes: int,
        seed: int,
        on_step: Callable[[TimeStep], None],
        video_path: str | None,
    ) -> EvalResult:
        """Evaluates, and records if there is a path for it; logs why it cannot."""
        result = evaluate(
            self.algorithm,
            self.env,
            num_episodes,
            seed=seed,
            on_step=on_step,
            metrics=self.metrics,
        )
        if video_path is None or self.recording is None:
            return result
        try:
            video = self.recording.record(
                self.algorithm, self.env, result, video_path, on_step
            )
        except ConfigError as error:  # training is worth more than a video
            _logger.error("There is no video of this evaluation: %s", error)
            return result
        return result._replace(video=video)


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
        recording: of videos, if any are wanted.
    """

    config: TrainerConfig
    algorithm_ctor: Any
    data_transformer_ctor: Any
    metric_ctors: Any
    create_env: Callable[..., Environment]
    seed: int
    recording: EpisodeRecording | None = None

    def __call__(self) -> EvalParts:
        config = dataclasses.replace(
            self.config,
            algorithm_ctor=self.algorithm_ctor,
            data_transformer_ctor=self.data_transformer_ctor,
        )
        env = create_eval_env(config, self.create_env, self.seed, self.recording)
        algorithm = create_algorithm(config, env, is_eval=True)
        metrics = build_episode_metrics(self.metric_ctors)
        return EvalParts(env, algorithm, metrics, self.recording)


def create_eval_env(
    config: TrainerConfig,
    create_env: Callable[..., Environment],
    seed: int,
    recording: EpisodeRecording | None,
) -> Environment:
    """The environments of an evaluation.

    Raises:
        ConfigError: if they cannot be stepped, or drawn and are to be recorded.
    """
    drawing = {} if recording is None else {"render_mode": "rgb_array"}
    with evaluation_scope():
        env = create_env(
            num_parallel_environments=config.num_eval_environments, seed=seed, **drawing
        )
    if not env.can_step:
        env.close()
        raise ConfigError(
            f"TrainerConfig.evaluate is True, but {env.name} cannot be "
            "stepped: there are no returns without an environment. Set "
            "evaluate = False and leave early_stop_return out; "
            "evaluation_buffer_dir evaluates on held-out data."
        )
    if env.has_negative_discounts:
        env.close()
        raise ConfigError(
            f"TrainerConfig.evaluate is True, but in {env.name} the policy plays both "
            "sides: how good it is cannot be seen.\nGive it opponents: "
            "evaluation/create_environment.env_ctor = @BattleEnvironment"
        )
    if recording is not None:  # before hours of training, not after
        env.reset(seed)
        recording.check(env)
    return env


# The process


class EvalWorkerSettings(NamedTuple):
    """What the process must know."""

    recipe: bytes
    specs: dict[str, TensorSpec]  # of what is in the shared memory


def serve(settings: EvalWorkerSettings, trainer: Parent) -> NoReturn:
    """Evaluates until the trainer ends or has enough.

    Args:
        settings: what to build.
        trainer: first sends the descriptor of the shared memory.
    """
    torch.set_num_threads(1)
    memory = policy_memory(settings.specs)
    trainer.attach(memory)
    tensors = dict(zip(settings.specs, memory.tensors(), strict=True))
    arrived = config_shipping.load_for("what evaluations are made of", settings.recipe)
    with gin.config_scope(arrived.config_scope or None):
        parts: EvalParts = arrived.value()
    algorithm = parts.algorithm
    wanted = algorithm.state_dict().keys()
    missing = sorted(wanted - tensors.keys())
    if missing:
        raise ConfigError(
            f"the algorithm of the evaluation has {missing[0]}, the one in training "
            "does not: both must be built alike"
        )
    used = reduction.ForkingPickler.dumps(config_shipping.export_config_use())
    trainer.send(READY + bytes(used))
    try:
        while True:
            request: EvalRequest = reduction.ForkingPickler.loads(trainer.receive())
            algorithm.load_state_dict({name: tensors[name] for name in wanted})
            algorithm.progress.load_state_dict(request.progress)
            algorithm.predict_epsilon = request.predict_epsilon
            result = parts.play(
                request.num_episodes, request.seed, _Teller(trainer), request.video_path
            )
            result = result._replace(
                iterations=request.iterations,
                env_steps=request.env_steps,
                losses={},  # the default cannot be pickled
            )
            trainer.send(RESULT + bytes(reduction.ForkingPickler.dumps(result)))
    except StopRequested:
        parts.env.close()
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
            counts = COUNTS.pack(self._num_steps, self._num_episodes)
            self._trainer.send(STEPS + counts)


def policy_memory(specs: Mapping[str, TensorSpec]) -> SharedMemory:
    """Where the policy is handed over."""
    return SharedMemory(
        list(specs.values()), "the policy for evaluations", "Use a smaller network."
    )
