"""Configuration: the ``configurable`` decorator and the settings of a training run."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from alf_lite.config.async_conflicts import async_conflicts
from alf_lite.config.decorator import configurable, configurable_enum, keep_scope
from alf_lite.config.offline_conflicts import offline_conflicts
from alf_lite.config.registry import note_used
from alf_lite.config.replay_conflicts import replay_conflicts
from alf_lite.config.values import (
    UNSET,
    declared,
    field_problems,
    ranged,
)
from alf_lite.errors import ConfigError

__all__ = [
    "DefaultSettings",
    "TrainerConfig",
    "configurable",
    "configurable_enum",
    "default_settings",
    "keep_scope",
]


class DefaultSettings(NamedTuple):
    """What a conf gets that leaves a setting out: how the algorithm is published.

    An algorithm says so in its class attribute ``default_settings``.
    """

    # Of TrainerConfig
    unroll_length: float = 8
    num_updates_per_train_iter: int = 1
    mini_batch_size: int | None = None
    mini_batch_length: int | None = None
    replay_buffer_length: int = 100_000
    initial_collect_steps: int = 0
    initial_random_policy: bool = False
    # Of create_environment
    num_parallel_environments: int = 1
    # Of Adam, which trains where no optimizer is given; None: one must be given
    lr: float | None = None
    gradient_clipping: float | None = None


def default_settings(algorithm_ctor: Any) -> DefaultSettings:
    """What the class of an algorithm declares; a function declares nothing."""
    if isinstance(algorithm_ctor, functools.partial):
        algorithm_ctor = algorithm_ctor.func
    return getattr(algorithm_ctor, "default_settings", DefaultSettings())


@configurable
@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    """How one run trains. An iteration is one unroll and the updates that follow it.

    Fields that are ``declared`` take what the algorithm declares where they are not
    given, see :class:`DefaultSettings`.

    Raises:
        ConfigError: naming every field whose value is of the wrong type or out of
            range, and fields that contradict each other.
    """

    # What is trained, and where it is written
    root_dir: str = ""  # directory of the run; --root_dir sets it
    algorithm_ctor: Callable[..., Any] | None = None  # the algorithm's class
    data_transformer_ctor: Callable[..., Any] | Sequence[Callable[..., Any]] | None = (
        None  # one or several, applied in this order
    )
    hook_ctors: Sequence[Callable[..., Any]] = ()  # of hooks of the training loop
    random_seed: int | None = ranged(None, at_least=0, at_most=2**32 - 1)
    # ↑ None: chosen by the trainer and written to the log

    # How long; the first that is reached ends the run, and the Trainer needs one
    num_iterations: int = ranged(0, at_least=0)  # iterations; 0: no limit
    num_env_steps: int = ranged(0, at_least=0)  # of all environments; 0: no limit

    # Unroll
    unroll_length: float = declared(
        at_least=0, at_most=10_000_000
    )  # steps per environment and iteration
    unroll_with_grad: bool = False  # losses may reach back into rollout_step
    overwrite_policy_output: bool = False  # store the action that the environment says
    # ↑ was executed (``prev_action``) in place of the policy's, as of scripted experts
    use_rollout_state: bool = False  # train from the stored state, not from zeros

    # Unroll in other processes
    async_unroll: bool = False  # workers unroll while this process trains
    num_unroll_workers: int = ranged(
        1, at_least=1, at_most=1_000
    )  # each with environments of its own
    max_unroll_length: int = ranged(
        0, at_least=0, at_most=10_000_000
    )  # with unroll_length = 0: take what
    # ↑ is there, at most so many steps per environment and iteration
    unroll_queue_size: int = ranged(
        4, at_least=1, at_most=10_000
    )  # finished unrolls of a worker that
    # ↑ may wait for training
    unroll_step_interval: float = ranged(
        0.0, at_least=0
    )  # seconds between two steps of
    # ↑ an environment at least, as for a robot
    unroll_parameter_update_period: int = ranged(1, at_least=1)  # iterations
    max_policy_lag: int | None = ranged(None, at_least=0)  # iterations that parameters
    # ↑ which acted may be older than those trained; None: on-policy 1, else no limit
    samples_per_insert: float | None = ranged(None, above=0)  # with unroll_length = 0:
    # ↑ windows trained on per step collected; workers and trainer wait for each other
    max_worker_restarts: int = ranged(3, at_least=0)  # of all workers, over the run
    worker_timeout_seconds: float = ranged(300.0, above=0)  # without any step

    # Update
    temporally_independent_train_step: bool | None = None  # None: if it has no state
    num_updates_per_train_iter: int = declared(
        at_least=1, at_most=10_000_000
    )  # on-policy: epochs
    mini_batch_size: int | None = declared(
        at_least=1, at_most=10_000_000
    )  # sequences; None: all
    # ↑ off-policy: windows; None: one for each environment
    mini_batch_length: int | None = declared(
        at_least=1, at_most=1_000_000
    )  # steps; None: unroll's

    burn_in_length: int = ranged(0, at_least=0)  # first steps only build up the state

    # Replay, for off-policy algorithms
    replay_buffer_length: int = declared(at_least=1)  # steps per environment
    initial_collect_steps: int = declared(at_least=0)  # of all environments, untrained
    initial_random_policy: bool = declared()  # act uniformly while collecting them
    priority_replay: bool = False  # draw by |δ|; options: PriorityOptions
    updates_per_draw: int | None = ranged(None, at_least=1)  # updates whose windows are
    # ↑ drawn at once; None: 1 with priority_replay, else all of an iteration
    whole_replay_buffer_training: bool = False  # passes over the whole buffer
    clear_replay_buffer: bool = False  # after every whole_replay_buffer_training
    checkpoint_replay_buffer: bool | None = None  # without, a resumed run collects anew
    # ↑ with the trained policy; None: if its steps take at most
    checkpoint_replay_buffer_gb: float = ranged(1.0, above=0)  # so many 10⁹ bytes

    # Offline data, for off-policy algorithms
    offline_buffer_dir: str | Sequence[str] | None = None  # one or several sources
    offline_buffer_length: int | None = ranged(None, at_least=1)  # newest of each
    rl_train_after_update_steps: int = ranged(0, at_least=0)  # iterations of offline
    # ↑ training before the first step in the environment
    rl_train_every_update_steps: int = ranged(1, at_least=1)  # own steps are trained in
    # ↑ every so many iterations after that, offline data alone in the others
    mixing_ratios: Sequence[float] | None = None  # of own steps, then of each source;
    # ↑ None: half own steps, the other half alike
    source_loss_weights: Sequence[float] | None = None  # in the same order; None: 1

    # Evaluation, in environments of its own
    evaluate: bool = False  # at the end of the run, and every eval_interval
    evaluation_buffer_dir: str | Sequence[str] | None = None  # held-out data, on which
    # ↑ the loss is evaluated at the same times; without evaluate it finds the best
    eval_interval: int = ranged(0, at_least=0)  # iterations; 0: only at the end
    num_eval_episodes: int = ranged(
        10, at_least=1, at_most=10_000_000
    )  # episodes per evaluation
    num_eval_environments: int = ranged(
        1, at_least=1, at_most=100_000
    )  # stepped side by side
    epsilon_greedy: float = ranged(0.0, at_least=0, at_most=1)  # 0 mode, 1 sample
    early_stop_return: float | None = ranged(None)  # stop at this mean return

    # Checkpoints
    num_checkpoints: int = ranged(10, at_least=0)  # over the run; 0: only at the end
    keep_checkpoints: int = ranged(3, at_least=1)  # newest; the best one stays too

    # Summaries
    summary_interval: int = ranged(50, at_least=1)  # iterations
    summarize_first_interval: bool = True  # every iteration of the first interval
    summaries_flush_secs: float = ranged(10, above=0)  # seconds
    metric_min_buffer_size: int = ranged(
        100, at_least=1, at_most=10_000_000
    )  # episodes averaged over
    debug_summaries: bool = False  # histograms of what is trained on
    summarize_grads_and_vars: bool = False  # histograms of every parameter
    summarize_action_distributions: bool = False  # histograms of their parameters

    # Execution
    compile: bool = False  # torch.compile the act and the update functions
    device: str = "cpu"  # of the networks: cpu, cuda, cuda:1, mps
    precision: Literal["float32", "bfloat16"] = "float32"  # of hidden layers in updates
    num_threads: int = ranged(
        1, at_least=1, at_most=1_024
    )  # of torch; small networks need one
    check_finite: bool = True  # stop at the first NaN or infinite loss

    def __post_init__(self) -> None:
        self._take_declared()
        problems = field_problems(self)
        if "device" not in problems and not re.fullmatch(
            r"(cpu|cuda|mps|xpu)(:\d+)?", self.device
        ):
            problems["device"] = (
                f"got {self.device!r}, expected cpu, cuda, cuda:1 or mps"
            )
        lines = [f"{name}: {problem}" for name, problem in problems.items()]
        lines += [
            text
            for fields, text in self._conflicts()
            if problems.keys().isdisjoint(fields)
        ]
        if lines:
            raise ConfigError("TrainerConfig cannot be used.\n  " + "\n  ".join(lines))

    def _take_declared(self) -> None:
        """Sets the fields that were not given to what the algorithm declares."""
        settings = default_settings(self.algorithm_ctor)
        taken = {
            field.name: getattr(settings, field.name)
            for field in dataclasses.fields(self)
            if getattr(self, field.name) is UNSET
        }
        for name, value in taken.items():
            object.__setattr__(self, name, value)  # it is frozen
        note_used(type(self), taken)

    def _conflicts(self) -> list[tuple[set[str], str]]:
        """The fields of every conflict, and what to do about it."""
        conflicts: list[tuple[set[str], str]] = []
        conflicts += async_conflicts(self)
        conflicts += replay_conflicts(self)
        conflicts += offline_conflicts(self, self.offline_sources)
        if not self.evaluate:
            unread = {
                "eval_interval": self.eval_interval != 0
                and not self.evaluation_sources,
                "early_stop_return": self.early_stop_return is not None,
            }
            conflicts += [
                (
                    {"evaluate", name},
                    f"{name} is {getattr(self, name)!r} but evaluate is False: set "
                    f"evaluate = True or leave {name} out.",
                )
                for name, is_set in unread.items()
                if is_set
            ]
        return conflicts

    @property
    def offline_sources(self) -> tuple[str, ...]:
        """The paths of the offline buffers."""
        return _as_paths(self.offline_buffer_dir)

    @property
    def evaluation_sources(self) -> tuple[str, ...]:
        """The paths of the held-out data."""
        return _as_paths(self.evaluation_buffer_dir)


def _as_paths(paths: str | Sequence[str] | None) -> tuple[str, ...]:
    if paths is None:
        return ()
    return (paths,) if isinstance(paths, str) else tuple(paths)
