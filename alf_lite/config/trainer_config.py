"""The settings of a training run, and what an algorithm declares of them."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from alf_lite.config import rules
from alf_lite.config.bindings import bound_value, note_used, value_in_force
from alf_lite.config.configurables import configurable
from alf_lite.config.values import UNSET, as_in_a_conf, declared, field_problems, ranged
from alf_lite.errors import ConfigError

# How many updates an iteration makes: the one that is given, or else declared.
UPDATE_COUNTS = ("epochs", "updates_per_env_step", "num_updates_per_train_iter")


class DefaultSettings(NamedTuple):
    """What a conf gets that leaves a setting out: how the algorithm is published.

    An algorithm says so in its class attribute ``default_settings``.
    """

    # Of TrainerConfig; the third holds where neither of the first two is declared
    epochs: int | None = None
    updates_per_env_step: float | None = None
    num_updates_per_train_iter: int | None = 1
    unroll_length: float = 8
    mini_batch_size: int | None = None
    mini_batch_length: int | None = None  # of one-step targets: n_step makes it longer
    replay_buffer_length: int = 100_000
    initial_collect_steps: int = 0
    initial_random_policy: bool = False
    use_rollout_state: bool = False
    burn_in_length: int = 0
    priority_replay: bool = False
    # Of the algorithm, where its n_step is None
    n_step: int = 1
    # Of create_environment
    num_parallel_environments: int = 1
    # Of Adam, which trains where no optimizer is given; None: one must be given
    lr: float | Sequence[tuple[float, float]] | None = None
    gradient_clipping: float | None = None
    eps: float = 1e-8
    # Of PriorityOptions
    priority_alpha: float = 0.6
    priority_beta: float = 0.4


def default_settings(algorithm_ctor: Any) -> DefaultSettings:
    """What the class of an algorithm declares; a function declares nothing.

    A class with an attribute ``settings_of`` declares what the class does that the
    parameter of this name is, as it is given or bound. Windows are as long as its
    ``n_step`` needs.
    """
    given: dict[str, Any] = {}
    while isinstance(algorithm_ctor, functools.partial):
        given = {**algorithm_ctor.keywords, **given}
        algorithm_ctor = algorithm_ctor.func
    parameter = getattr(algorithm_ctor, "settings_of", None)
    if parameter is not None:
        return default_settings(
            given.get(parameter) or bound_value(algorithm_ctor, parameter)
        )
    settings = getattr(algorithm_ctor, "default_settings", DefaultSettings())
    n_step = given.get("n_step", value_in_force(algorithm_ctor, "n_step"))
    n_step = settings.n_step if n_step is None else n_step
    if settings.mini_batch_length is None or not isinstance(n_step, int):
        return settings
    length = settings.mini_batch_length + max(n_step, 1) - 1
    return settings._replace(mini_batch_length=length)


@configurable
@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    """How one run trains. An iteration is one unroll and the updates that follow it.

    Fields that are ``declared`` take what the algorithm declares where they are not
    given, see :class:`DefaultSettings`. docs/settings.md lists all fields by the
    groups below.

    Raises:
        ConfigError: naming every field whose value is of the wrong type or out of
            range, and fields that contradict each other.
    """

    # --- Run: what is trained, for how long, on what
    # Class of the algorithm
    algorithm_ctor: Callable[..., Any] | None = None
    # One data transformer or several, applied in this order
    data_transformer_ctor: Callable[..., Any] | Sequence[Callable[..., Any]] | None = (
        None
    )
    # Iterations after which the run ends; 0: no limit
    num_iterations: int = ranged(0, at_least=0)
    # Steps of all environments after which it ends; 0: no limit. A Trainer needs one
    num_env_steps: int = ranged(0, at_least=0)
    # Of all that is drawn; None: chosen by the trainer and written to the log
    random_seed: int | None = ranged(None, at_least=0, at_most=2**32 - 1)
    # Directory of the run; --root_dir sets it
    root_dir: str = ""
    # Hooks of the training loop
    hook_ctors: Sequence[Callable[..., Any]] = ()
    # Where the networks are: cpu, cuda, cuda:1, mps
    device: str = "cpu"
    # Numbers of hidden layers in updates
    precision: Literal["float32", "bfloat16"] = "float32"
    # torch.compile acting and updating, where that is faster: not off-policy on a CPU
    compile: bool = False
    # On a GPU: act and update each as one CUDA graph, once they were captured
    cuda_graphs: bool = False
    # Threads of torch; small networks need one
    num_threads: int = ranged(1, at_least=1, at_most=1_024)
    # Stop at the first NaN or infinite loss
    check_finite: bool = True
    # On a GPU: updates between two looks at that; 1: at each, and waits for the GPU
    check_finite_interval: int = ranged(100, at_least=1)

    # --- Unroll: how steps are collected
    # Steps per environment and iteration; 0: as max_unroll_length says
    unroll_length: float = declared(at_least=0, at_most=10_000_000)
    # On-policy: whole episodes per iteration, in unrolls of that length; None: not
    unroll_episodes: int | None = ranged(None, at_least=1, at_most=1_000_000)
    # On-policy, without a train_step: the loss reaches back into rollout_step
    unroll_with_grad: bool = False
    # Train from the stored state, not from zeros
    use_rollout_state: bool = declared()
    # Store the action that the environment executed, as of scripted experts
    overwrite_policy_output: bool = False

    # --- Asynchronous unroll: workers collect while this process trains
    # Unroll in other processes; without it, the rest of this group has no meaning
    async_unroll: bool = False
    # What the workers are: processes of this machine, or actors of Ray on any
    unroll_engine: Literal["processes", "ray"] = "processes"
    # Of a cluster of Ray, host:port; None: RAY_ADDRESS, or a Ray of this machine
    ray_address: str | None = None
    # CPUs that Ray keeps for each worker
    ray_cpus_per_worker: float = ranged(1.0, at_least=0)
    # Processes or actors, each with environments of its own
    num_unroll_workers: int = ranged(1, at_least=1, at_most=1_000)
    # With unroll_length = 0: take what is there, at most so many steps
    max_unroll_length: int = ranged(0, at_least=0, at_most=10_000_000)
    # Finished unrolls of a worker that may wait for training
    unroll_queue_size: int = ranged(4, at_least=1, at_most=10_000)
    # Seconds between two steps of an environment at least, as for a robot
    unroll_step_interval: float = ranged(0.0, at_least=0)
    # Iterations between two sets of parameters for the workers
    unroll_parameter_update_period: int = ranged(1, at_least=1)
    # Iterations that acting parameters may be behind; None: 1 on-policy, else any
    max_policy_lag: int | None = ranged(None, at_least=0)
    # With unroll_length = 0: windows trained on per step; the faster side waits
    samples_per_insert: float | None = ranged(None, above=0)
    # Workers that are replaced over the run, all together; so is that of async_eval
    max_worker_restarts: int = ranged(3, at_least=0)
    # Seconds without any step after which a worker has failed
    worker_timeout_seconds: float = ranged(300.0, above=0)

    # --- Updates: what is trained on, how often
    # On-policy: passes over each unroll
    epochs: int | None = declared(at_least=1, at_most=10_000_000)
    # Off-policy: gradient updates per iteration; on-policy ALF's name of epochs
    num_updates_per_train_iter: int | None = declared(at_least=1, at_most=10_000_000)
    # In place of it: updates per step of any environment, whole ones per iteration
    updates_per_env_step: float | None = declared(above=0, at_most=10_000)
    # On-policy: sequences, None: all; off-policy: windows, None: one per environment
    mini_batch_size: int | None = declared(at_least=1, at_most=10_000_000)
    # Steps of a sequence or window; None: those of an unroll
    mini_batch_length: int | None = declared(at_least=1, at_most=1_000_000)
    # Parts that the batch of an update is cut into, for want of memory
    gradient_accumulation: int = ranged(1, at_least=1, at_most=10_000)
    # First steps of each that only build up the state of recurrent networks
    burn_in_length: int = declared(at_least=0)
    # Train all steps of a batch in one call; None: if the algorithm has no state
    temporally_independent_train_step: bool | None = None

    # --- Replay, of off-policy algorithms
    # Steps that are stored per environment
    replay_buffer_length: int = declared(at_least=1)
    # Steps of all environments before training begins
    initial_collect_steps: int = declared(at_least=0)
    # Act uniformly while collecting them
    initial_random_policy: bool = declared()
    # Draw by |δ|; options: PriorityOptions
    priority_replay: bool = declared()
    # Updates drawn at once; None: 1 with priorities or recent_data_ratio, else all
    updates_per_draw: int | None = ranged(None, at_least=1)
    # Each update is a pass over the whole buffer
    whole_replay_buffer_training: bool = False
    # Forget what whole_replay_buffer_training has passed over
    clear_replay_buffer: bool = False
    # Whether it is saved, or a resumed run collects anew; None: up to the next size
    checkpoint_replay_buffer: bool | None = None
    # 10⁹ bytes up to which it is saved unasked
    checkpoint_replay_buffer_gb: float = ranged(1.0, above=0)

    # --- Offline data, for off-policy algorithms
    # One or several sources; without it, the rest of this group has no meaning
    offline_buffer_dir: str | Sequence[str] | None = None
    # Newest steps of each source that are used; None: all
    offline_buffer_length: int | None = ranged(None, at_least=1)
    # Iterations of offline training before the first step in the environment
    rl_train_after_update_steps: int = ranged(0, at_least=0)
    # After that, own steps are trained in every so many iterations
    rl_train_every_update_steps: int = ranged(1, at_least=1)
    # Shares of own steps and of each source; None: half own, the other half alike
    mixing_ratios: Sequence[float] | None = None
    # Weights of their losses in the same order; None: 1
    source_loss_weights: Sequence[float] | None = None

    # --- Evaluation, in environments of its own
    # At the end of the run, and every eval_interval
    evaluate: bool = False
    # Iterations between two evaluations; 0: only at the end
    eval_interval: int = ranged(0, at_least=0)
    # Episodes per evaluation
    num_eval_episodes: int = ranged(10, at_least=1, at_most=10_000_000)
    # Environments that are stepped side by side for it
    num_eval_environments: int = ranged(1, at_least=1, at_most=100_000)
    # 0: the mode of the policy; 1: a sample of it
    epsilon_greedy: float = ranged(0.0, at_least=0, at_most=1)
    # Evaluate in a process of its own while training goes on
    async_eval: bool = False
    # Stop at this mean return
    early_stop_return: float | None = ranged(None)
    # Stop after so many evaluations in a row without a better one
    early_stop_patience: int | None = ranged(None, at_least=1)
    # Held-out data for the loss; without evaluate it finds the best checkpoint
    evaluation_buffer_dir: str | Sequence[str] | None = None
    # Numbers of one's own on that data: functions of the algorithm and a batch
    data_metrics: Sequence[Callable[..., Any]] = ()

    # --- Checkpoints
    # Checkpoints over the run; 0: only at the end
    num_checkpoints: int = ranged(10, at_least=0)
    # Newest ones that stay; the best one stays too
    keep_checkpoints: int = ranged(3, at_least=1)

    # --- Summaries
    # Iterations between two summaries
    summary_interval: int = ranged(50, at_least=1)
    # Summaries in every iteration of the first interval, 100 at most
    summarize_first_interval: bool = True
    # Steps of TensorBoard's curves; None: env_steps, iterations after offline training
    summary_axis: Literal["env_steps", "iterations"] | None = None
    # Seconds between two writes to the disk
    summaries_flush_secs: float = ranged(10, above=0)
    # Metrics of one's own, in training and in evaluations: EpisodeMetrics
    metric_ctors: Sequence[Callable[..., Any]] = ()
    # Episodes that metrics average over
    metric_min_buffer_size: int = ranged(100, at_least=1, at_most=10_000_000)
    # Histograms of what is trained on
    debug_summaries: bool = False
    # Histograms of every parameter
    summarize_grads_and_vars: bool = False
    # Histograms of the parameters of the policy's distributions
    summarize_action_distributions: bool = False

    def __post_init__(self) -> None:
        self._take_declared()
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if (plain := as_in_a_conf(value)) is not value:
                object.__setattr__(self, field.name, plain)
        problems = field_problems(self)
        if "device" not in problems and not (
            re.fullmatch(r"(cpu|cuda|mps|xpu)(:\d+)?", self.device)
            or _is_of_another_backend(self.device)
        ):
            problems["device"] = (
                f"got {self.device!r}, expected cpu, cuda, cuda:1 or mps"
            )
        lines = [f"{name}: {problem}" for name, problem in problems.items()]
        lines += rules.problems(self, {}, problems)
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
        given = [n for n in UPDATE_COUNTS if getattr(self, n) not in (UNSET, None)]
        declared_ones = [n for n in UPDATE_COUNTS if getattr(settings, n) is not None]
        amount = [*given, *declared_ones][:1]
        taken |= {n: None for n in UPDATE_COUNTS if n in taken and n not in amount}
        for name, value in taken.items():
            object.__setattr__(self, name, value)  # it is frozen
        object.__setattr__(self, "_taken", tuple(taken))
        note_used(type(self), taken)

    def counted(
        self, is_on_policy: bool, num_environments: int | None
    ) -> TrainerConfig:
        """This config with the number of passes or updates per iteration as one number.

        On-policy it is ``epochs``, off-policy ``num_updates_per_train_iter``.

        Args:
            is_on_policy: whether the algorithm is.
            num_environments: that it trains in; None if it only acts.
        """
        number: float = self.num_updates_per_train_iter or self.epochs or 1
        rate = self.updates_per_env_step
        if not is_on_policy and rate is not None:
            steps = self.unroll_length * (num_environments or 1)
            number = max(1, round(rate * steps))  # whole, where it is trained
        wanted = "epochs" if is_on_policy else "num_updates_per_train_iter"
        amounts: dict[str, Any] = dict.fromkeys(UPDATE_COUNTS) | {wanted: number}
        return dataclasses.replace(self, **amounts)

    def sets(self, name: str) -> bool:
        """Whether a field differs from its default, and from what is declared.

        False as long as it is not known which algorithm declares it.
        """
        value, default = getattr(self, name), self.__dataclass_fields__[name].default
        if default is not UNSET:
            return value != default
        declared_by = (default_settings(self.algorithm_ctor), DefaultSettings())
        return callable(self.algorithm_ctor) and value not in (
            None,
            *(getattr(settings, name) for settings in declared_by),
        )

    @property
    def num_updates(self) -> int:
        """What a :meth:`counted` config says: passes or updates per iteration."""
        return self.epochs or self.num_updates_per_train_iter or 1

    @property
    def left_unset(self) -> tuple[str, ...]:
        """The fields that were not given and that an algorithm declares."""
        return vars(self)["_taken"]

    def declared_for(self, algorithm_ctor: Callable[..., Any]) -> TrainerConfig:
        """The settings of ``algorithm_ctor``, for one that names no algorithm.

        Fields that were not given take what that algorithm declares.

        Raises:
            ConfigError: if all are given, as by ``dataclasses.replace``.
        """
        if self.algorithm_ctor is not None:
            return self
        if not self.left_unset:
            name = getattr(algorithm_ctor, "__name__", "...")
            raise ConfigError(
                "TrainerConfig: dataclasses.replace has fixed what an algorithm "
                f"declares, such as unroll_length = {self.unroll_length}. Write "
                "TrainerConfig(...) anew, or name the algorithm in the first one: "
                f"algorithm_ctor={name}."
            )
        unset: dict[str, Any] = dict.fromkeys(self.left_unset, UNSET)
        return dataclasses.replace(self, algorithm_ctor=algorithm_ctor, **unset)

    @property
    def offline_sources(self) -> tuple[str, ...]:
        """The paths of the offline buffers."""
        return _as_paths(self.offline_buffer_dir)

    @property
    def evaluation_sources(self) -> tuple[str, ...]:
        """The paths of the held-out data."""
        return _as_paths(self.evaluation_buffer_dir)


def _is_of_another_backend(device: str) -> bool:
    """Whether a package has brought this device to torch."""
    import torch

    name = torch._C._get_privateuse1_backend_name()
    return name != "privateuseone" and device.partition(":")[0] == name


def _as_paths(paths: str | Sequence[str] | None) -> tuple[str, ...]:
    if paths is None:
        return ()
    return (paths,) if isinstance(paths, str) else tuple(paths)
