"""Which settings of a run go together, and where each has an effect: all of it.

A new setting is a field of TrainerConfig and a row here, or a word in ``ALWAYS``. Rows
are asked by :mod:`alf_lite.config.rules`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple


class Effect(NamedTuple):
    """Where settings have an effect; elsewhere they are refused if they are set."""

    fields: str
    condition: Callable[..., Any]
    otherwise: str  # goes on "name is value, but " and before " or leave name out."


class Rule(NamedTuple):
    """What cannot be; the text says what is wrong and what to do."""

    wrong: Callable[..., Any]  # what it returns is {found} in the text
    text: str


# What becomes known after the fields of TrainerConfig.
FACTS = {
    # Before anything is built
    "trainer": {"by_trainer", "can_build_environments"},
    "ranks": {"num_ranks"},
    "environment": {"is_of_workers"},
    # Of the root of a run that trains; ``acting`` is the algorithm that acts.
    "algorithm": {
        *("algorithm", "acting", "on_policy", "has_state", "corrects_policy_lag"),
        *("has_train_step", "trains_on_rollout_info", "unrolls_with_grad"),
        *("tells_action_distribution", "tells_priority", "transforms_replayed_steps"),
        *("has_memory", "num_bootstrap_steps", "normalizes_advantages"),
        *("adapts_learning_rate", "needs_successors", "needs_rollout_info"),
        *("explores_by_epsilon", "limits_kl"),
        "all_environments",  # their number, on all ranks
    },
    "hooks": {
        *("hooks_of_environments", "learns_reward_weights"),
        *("num_snapshots", "takes_snapshots"),
    },
    "schedules": {"algorithm", "schedules", "schedule_of_share", "slopes_in_loss"},
    # Of one rank
    "replay": {"num_environments", "num_history_steps", "windows"},
}

# What has an effect in every run, whatever else is set.
ALWAYS = (
    "algorithm_ctor random_seed root_dir hook_ctors device cuda_graphs num_threads "
    "check_finite overwrite_policy_output evaluate num_checkpoints "
    "keep_checkpoints summary_interval summarize_first_interval summary_axis "
    "summaries_flush_secs metric_ctors metric_min_buffer_size debug_summaries "
    "summarize_grads_and_vars"
)

EFFECTS = (
    Effect(
        "unroll_engine num_unroll_workers max_unroll_length unroll_queue_size "
        "unroll_step_interval unroll_parameter_update_period max_policy_lag "
        "samples_per_insert",
        lambda async_unroll: async_unroll,
        "async_unroll is False: set async_unroll = True",
    ),
    Effect(
        "max_worker_restarts worker_timeout_seconds",
        lambda async_unroll, async_eval: async_unroll or async_eval,
        "async_unroll and async_eval are False: set one of them",
    ),
    Effect(
        "ray_address ray_cpus_per_worker",
        lambda unroll_engine: unroll_engine == "ray",
        "unroll_engine is {unroll_engine!r}: set unroll_engine = 'ray'",
    ),
    Effect(
        "offline_buffer_length mixing_ratios source_loss_weights "
        "rl_train_after_update_steps rl_train_every_update_steps",
        lambda offline_buffer_dir: offline_buffer_dir,
        "offline_buffer_dir names no source: set it",
    ),
    Effect(
        "early_stop_return async_eval num_eval_episodes num_eval_environments",
        lambda evaluate: evaluate,
        "evaluate is False: set evaluate = True",
    ),
    Effect(
        "eval_interval",
        lambda evaluate, evaluation_buffer_dir: evaluate or evaluation_buffer_dir,
        "evaluate is False: set evaluate = True",
    ),
    Effect(
        "data_metrics",
        lambda evaluation_buffer_dir: evaluation_buffer_dir,
        "evaluation_buffer_dir names no source: set it",
    ),
    Effect(
        "check_finite_interval",
        lambda check_finite: check_finite,
        "check_finite is False: set check_finite = True",
    ),
    Effect(
        "updates_per_env_step",
        lambda unroll_length: unroll_length,
        "unroll_length is 0, so that an iteration has any number of steps: set "
        "num_updates_per_train_iter instead",
    ),
    Effect(
        "clear_replay_buffer",
        lambda whole_replay_buffer_training: whole_replay_buffer_training,
        "it clears after whole_replay_buffer_training, which is False: set both",
    ),
    Effect(
        "updates_per_draw",
        lambda whole_replay_buffer_training: not whole_replay_buffer_training,
        "whole_replay_buffer_training takes everything at once: set that to False",
    ),
    Effect(
        "checkpoint_replay_buffer_gb",
        lambda checkpoint_replay_buffer: checkpoint_replay_buffer is None,
        "checkpoint_replay_buffer is {checkpoint_replay_buffer}, whatever its size: "
        "leave that out",
    ),
    # Where it is known what is trained
    Effect(
        "priority_replay initial_collect_steps initial_random_policy updates_per_draw "
        "replay_buffer_length whole_replay_buffer_training checkpoint_replay_buffer_gb",
        lambda on_policy: not on_policy,
        "{algorithm} is on-policy and has no replay buffer: use an off-policy "
        "algorithm",
    ),
    Effect(
        "unroll_parameter_update_period",
        lambda on_policy: not on_policy,
        "{algorithm} is on-policy, and its workers get new parameters in every "
        "iteration: use an off-policy algorithm",
    ),
    Effect(
        "mixing_ratios source_loss_weights rl_train_after_update_steps "
        "rl_train_every_update_steps",
        lambda on_policy: not on_policy,
        "{algorithm} is on-policy, and only parts of it learn from recorded steps, "
        "from all sources alike: use an off-policy algorithm",
    ),
    Effect(
        "evaluation_buffer_dir",
        lambda on_policy: not on_policy,
        "{algorithm} is on-policy: its loss cannot be evaluated on recorded steps. Use "
        "an off-policy algorithm",
    ),
    Effect(
        "epochs",
        lambda on_policy, whole_replay_buffer_training: (
            on_policy or whole_replay_buffer_training
        ),
        "{algorithm} is off-policy: set TrainerConfig.num_updates_per_train_iter "
        "instead",
    ),
    Effect(
        "updates_per_env_step",
        lambda on_policy: not on_policy,
        "{algorithm} is on-policy: set TrainerConfig.epochs instead",
    ),
    Effect(
        "unroll_episodes unroll_with_grad",
        lambda on_policy: on_policy,
        "{algorithm} is off-policy and trains on stored steps of any episode: use an "
        "on-policy algorithm",
    ),
    Effect(
        "unroll_with_grad",
        lambda has_train_step, trains_on_rollout_info: (
            trains_on_rollout_info or not has_train_step
        ),
        "{acting} has a train_step, whose info calc_loss takes, not that of "
        "rollout_step: use an algorithm without one",
    ),
    Effect(
        "mini_batch_size mini_batch_length burn_in_length gradient_accumulation "
        "precision compile temporally_independent_train_step",
        lambda unrolls_with_grad: not unrolls_with_grad,
        "the loss of {acting} goes back through the graph of the whole unroll: use an "
        "algorithm with a train_step",
    ),
    Effect(
        "burn_in_length use_rollout_state",
        lambda has_state: has_state,
        "{algorithm} has no memory that steps could build up or begin with: use "
        "networks with memory,",
    ),
    Effect(
        "summarize_action_distributions",
        lambda tells_action_distribution: tells_action_distribution,
        "{algorithm} tells no action_distribution in training: set its attribute "
        "tells_action_distribution = True if the info of its train_step has it,",
    ),
    Effect(
        "epsilon_greedy",
        lambda explores_by_epsilon: explores_by_epsilon,
        "{acting} takes its best action in every evaluation (explores_by_epsilon is "
        "False): use another algorithm,",
    ),
    Effect(
        "priority_replay",
        lambda tells_priority: tells_priority,
        "{acting} tells no priority of windows: use another off-policy algorithm,",
    ),
    Effect(
        "offline_buffer_dir evaluation_buffer_dir",
        lambda needs_rollout_info: not needs_rollout_info,
        "{acting} trains on what its rollout_step stores, which recorded steps lack: "
        "use another off-policy algorithm,",
    ),
)


def _update_counts(
    epochs: int | None,
    num_updates_per_train_iter: int | None,
    updates_per_env_step: float | None,
) -> str:
    """Those that are given, if they are several."""
    given = [name for name, value in locals().items() if value is not None]
    return " and ".join(given) if len(given) > 1 else ""


def _unroll_length_for_rate(
    on_policy: bool,
    updates_per_env_step: float | None,
    unroll_length: float,
    all_environments: int,
) -> int:
    """The least that makes whole updates if the given one does not; else 0."""
    if on_policy or updates_per_env_step is None or not unroll_length:
        return 0
    per_step = updates_per_env_step * all_environments
    number = per_step * unroll_length
    if math.isclose(number, max(1, round(number)), rel_tol=1e-6):
        return 0
    return Fraction(per_step).limit_denominator(1_000_000).denominator


def _wrong_ratios(
    mixing_ratios: Sequence[float] | None, offline_buffer_dir: Any
) -> str:
    problem = _wrong_weights(mixing_ratios, offline_buffer_dir)
    if problem or mixing_ratios is None or not offline_buffer_dir:
        return problem
    if abs(sum(mixing_ratios) - 1) > 1e-6:
        return f", whose sum is {sum(mixing_ratios):g}, expected 1"
    return ": no offline data would be trained" if mixing_ratios[0] == 1 else ""


def _wrong_weights(
    source_loss_weights: Sequence[float] | None, offline_buffer_dir: Any
) -> str:
    """What is wrong with one number per source, own steps first."""
    if source_loss_weights is None or not offline_buffer_dir:
        return ""
    is_one = isinstance(offline_buffer_dir, str)
    expected = 2 if is_one else 1 + len(offline_buffer_dir)
    if len(source_loss_weights) != expected:
        return f": expected {expected} numbers, one for own steps and one per source"
    return ", expected numbers of at least 0" if min(source_loss_weights) < 0 else ""


def _length_for_memory(
    on_policy: bool,
    has_memory: bool,
    use_rollout_state: bool,
    burn_in_length: int,
    mini_batch_length: int | None,
    num_bootstrap_steps: int,
) -> int:
    """The shortest windows that train a memory, if nothing does; else 0."""
    begins_with_one = on_policy or use_rollout_state or burn_in_length
    least = num_bootstrap_steps + 2
    is_short = mini_batch_length is not None and mini_batch_length < least
    return least if has_memory and is_short and not begins_with_one else 0


def _normalizes_single_steps(
    normalizes_advantages: bool,
    all_environments: int,
    unroll_length: float,
    unroll_episodes: int | None,
    mini_batch_size: int | None,
    mini_batch_length: int | None,
) -> bool:
    """Whether advantages are normalized by those of mini-batches of one step."""
    is_one = all_environments * unroll_length == 1 and not unroll_episodes
    has_one = is_one or mini_batch_size == mini_batch_length == 1
    return normalizes_advantages and has_one


def _compares_single_updates(
    adapts_learning_rate: bool,
    limits_kl: bool,
    epochs: int | None,
    num_updates_per_train_iter: int | None,
    all_environments: int,
    unroll_length: float,
    unroll_episodes: int | None,
    mini_batch_size: int | None,
    mini_batch_length: int | None,
) -> str:
    """What looks at the updates on an unroll, if there is one."""
    num_passes = max(epochs or 1, num_updates_per_train_iter or 1)
    num_steps = all_environments * unroll_length
    length = mini_batch_length or unroll_length
    is_whole = mini_batch_size is None or (
        num_steps < 2 * mini_batch_size * length and not unroll_episodes
    )
    if num_passes > 1 or not is_whole:
        return ""
    return "desired_kl" * adapts_learning_rate or "target_kl" * limits_kl


RULES = (
    Rule(
        _update_counts,
        "{found} are set, and each says how many updates an iteration makes: epochs "
        "for on-policy algorithms, one of the others for off-policy ones.",
    ),
    Rule(
        lambda burn_in_length, mini_batch_length: (
            mini_batch_length is not None and burn_in_length >= mini_batch_length
        ),
        "burn_in_length={burn_in_length} leaves nothing of a "
        "mini_batch_length={mini_batch_length} to train on: make it shorter.",
    ),
    # Unrolls
    Rule(
        lambda async_unroll, unroll_length: not async_unroll and unroll_length == 0,
        "unroll_length: got 0, expected a value > 0. With async_unroll and a "
        "max_unroll_length, 0 takes whatever was collected meanwhile.",
    ),
    Rule(
        lambda async_unroll, unroll_length, max_unroll_length: (
            async_unroll and (unroll_length == 0) != (max_unroll_length > 0)
        ),
        "unroll_length = 0 takes whatever the workers have finished, at most "
        "max_unroll_length steps per environment and iteration: set both, or neither. "
        "They are {unroll_length} and {max_unroll_length}.",
    ),
    Rule(
        lambda async_unroll, unroll_length, samples_per_insert: (
            async_unroll and unroll_length and samples_per_insert is not None
        ),
        "samples_per_insert={samples_per_insert} decides how much is unrolled per "
        "iteration, and so does unroll_length={unroll_length}: set unroll_length = 0 "
        "and max_unroll_length, or leave samples_per_insert out.",
    ),
    Rule(
        lambda async_unroll, unroll_episodes: async_unroll and unroll_episodes,
        "unroll_episodes={unroll_episodes} begins all episodes anew in each iteration, "
        "which workers of async_unroll do not: set one of them.",
    ),
    Rule(
        lambda async_unroll, unroll_with_grad: async_unroll and unroll_with_grad,
        "unroll_with_grad needs the graph of rollout_step, which stays in the worker "
        "with async_unroll: set one of them.",
    ),
    Rule(
        lambda async_unroll, max_policy_lag, unroll_length: (
            async_unroll and max_policy_lag is not None and unroll_length == 0
        ),
        "max_policy_lag has the trainer wait for unrolls that would become too old, "
        "and unroll_length = 0 never waits: set one of them.",
    ),
    Rule(
        lambda async_unroll, max_policy_lag, unroll_parameter_update_period: (
            async_unroll
            and max_policy_lag is not None
            and unroll_parameter_update_period > 1
        ),
        "max_policy_lag needs new parameters in every iteration: leave "
        "unroll_parameter_update_period out.",
    ),
    # Replay
    Rule(
        lambda priority_replay, whole_replay_buffer_training: (
            priority_replay and whole_replay_buffer_training
        ),
        "priority_replay draws by priority, whole_replay_buffer_training takes "
        "everything: set one of them.",
    ),
    Rule(
        lambda samples_per_insert, whole_replay_buffer_training: (
            samples_per_insert is not None and whole_replay_buffer_training
        ),
        "samples_per_insert counts the windows that are drawn, "
        "whole_replay_buffer_training takes everything: set one of them.",
    ),
    Rule(
        lambda offline_buffer_dir, whole_replay_buffer_training: (
            offline_buffer_dir and whole_replay_buffer_training
        ),
        "whole_replay_buffer_training takes all own steps, those of offline_buffer_dir "
        "are mixed in by windows: set one of them.",
    ),
    Rule(
        lambda num_env_steps, initial_collect_steps: (
            0 < num_env_steps <= initial_collect_steps
        ),
        "initial_collect_steps={initial_collect_steps} are collected before training, "
        "but the run ends after num_env_steps={num_env_steps}: nothing would be "
        "trained. Collect less, or run longer.",
    ),
    Rule(_wrong_ratios, "mixing_ratios is {mixing_ratios!r}{found}."),
    Rule(_wrong_weights, "source_loss_weights is {source_loss_weights!r}{found}."),
    Rule(
        lambda early_stop_patience, eval_interval: (
            early_stop_patience is not None and not eval_interval
        ),
        "early_stop_patience={early_stop_patience} counts evaluations, and there is "
        "only the one at the end: set eval_interval.",
    ),
    Rule(
        lambda early_stop_return, evaluate, eval_interval: (
            early_stop_return is not None and evaluate and not eval_interval
        ),
        "early_stop_return={early_stop_return} ends a run after an evaluation, and "
        "there is only the one at its end: set eval_interval.",
    ),
    # Before anything is built
    Rule(
        lambda by_trainer, num_iterations, num_env_steps: (
            by_trainer and not (num_iterations or num_env_steps)
        ),
        "TrainerConfig.num_iterations and num_env_steps are both 0, the run would "
        "never end: set at least one of them.",
    ),
    Rule(
        lambda evaluate, can_build_environments: (
            evaluate and not can_build_environments
        ),
        "TrainerConfig.evaluate needs environments of its own, and nothing says how to "
        "build them: give Trainer a create_env, or build the environment with "
        "create_environment(env_ctor=...).",
    ),
    Rule(
        lambda num_ranks, unroll_length: num_ranks > 1 and unroll_length == 0,
        "TrainerConfig.unroll_length is 0, so that training takes what unroll workers "
        "have finished; the {num_ranks} ranks of a run would not agree when to train. "
        "Set unroll_length, or train with one rank.",
    ),
    Rule(
        lambda async_unroll, is_of_workers: async_unroll and not is_of_workers,
        "TrainerConfig.async_unroll: the workers build environments of their own. Use "
        "alf_lite.Trainer(config, root_dir, create_env=...), where create_env builds "
        "those of one worker, or async_unroll = False.",
    ),
    # What is trained
    Rule(
        _unroll_length_for_rate,
        "TrainerConfig.updates_per_env_step={updates_per_env_step} makes no whole "
        "number of updates in an iteration of unroll_length={unroll_length} in "
        "{all_environments} environments. Set unroll_length = {found}, or "
        "num_updates_per_train_iter in its place.",
    ),
    Rule(
        lambda on_policy, transforms_replayed_steps, data_transformer_ctor: (
            on_policy and transforms_replayed_steps
        ),
        "TrainerConfig.data_transformer_ctor has a transformer of replayed steps, but "
        "{algorithm} is on-policy and replays none. Use an off-policy algorithm.",
    ),
    Rule(
        lambda on_policy, checkpoint_replay_buffer: (
            on_policy and checkpoint_replay_buffer
        ),
        "TrainerConfig.checkpoint_replay_buffer is True, but {algorithm} is on-policy "
        "and has no replay buffer: leave it out, or use an off-policy algorithm.",
    ),
    Rule(
        lambda on_policy, unroll_length: (
            on_policy and (unroll_length == 0 or unroll_length != int(unroll_length))
        ),
        "TrainerConfig.unroll_length={unroll_length}, but {algorithm} is on-policy and "
        "trains on every unroll: expected a whole number of steps",
    ),
    Rule(
        lambda on_policy, burn_in_length, unroll_length, unroll_episodes: (
            on_policy and burn_in_length >= unroll_length > 0 and not unroll_episodes
        ),
        "TrainerConfig.burn_in_length={burn_in_length} leaves nothing of an unroll of "
        "unroll_length={unroll_length} to train on: make it shorter.",
    ),
    Rule(
        lambda on_policy, mini_batch_length, unroll_length: (
            on_policy and mini_batch_length and unroll_length % mini_batch_length
        ),
        "TrainerConfig.mini_batch_length={mini_batch_length} must divide the "
        "unroll_length={unroll_length}, which {algorithm} cuts into such sequences.",
    ),
    Rule(
        lambda on_policy, mini_batch_length, needs_successors: (
            on_policy and mini_batch_length and needs_successors
        ),
        "TrainerConfig.mini_batch_length={mini_batch_length}: calc_loss of {acting} "
        "needs the step after each one, and the last ones of sequences that an unroll "
        "is cut into have none. Leave it out.",
    ),
    Rule(
        _normalizes_single_steps,
        "{acting} normalizes advantages by those of the mini-batch, which makes 0 of a "
        "single step: the policy would learn nothing. Set mini_batch_size and "
        "unroll_length to 2 or more, or {acting}.normalize_advantages = False.",
    ),
    Rule(
        _compares_single_updates,
        "{acting}.{found} measures between two updates on the same unroll how far they "
        "have moved the policy, and there is one update: nothing, whatever it does. "
        "Set TrainerConfig.epochs to more, or a smaller mini_batch_size.",
    ),
    Rule(
        _length_for_memory,
        "TrainerConfig.mini_batch_length={mini_batch_length} trains one step of each "
        "window, from an empty memory, so that {algorithm} never learns what to "
        "remember. Set it to {found} or more, or use_rollout_state = True, or both.",
    ),
    Rule(
        lambda unrolls_with_grad, epochs, num_updates_per_train_iter: (
            unrolls_with_grad and max(epochs or 1, num_updates_per_train_iter or 1) > 1
        ),
        "TrainerConfig.epochs is more than 1, but the graph of the unroll, which the "
        "loss of {acting} goes back through, is there for one update: leave it out.",
    ),
    Rule(
        lambda async_unroll, unrolls_with_grad: async_unroll and unrolls_with_grad,
        "TrainerConfig.async_unroll: the loss of {acting} needs the graph of "
        "rollout_step, which stays in the worker. Use ImpalaAlgorithm, or "
        "async_unroll = False.",
    ),
    Rule(
        lambda async_unroll, on_policy, max_policy_lag, corrects_policy_lag: (
            async_unroll
            and on_policy
            and max_policy_lag != 0
            and not corrects_policy_lag
        ),
        "TrainerConfig.async_unroll: {algorithm} is on-policy and does not correct for "
        "actions of older parameters. Set TrainerConfig.max_policy_lag = 0, or use "
        "ImpalaAlgorithm, or PPOAlgorithm with its off_policy_correction.",
    ),
    Rule(
        lambda compile, schedules: compile and " and ".join(schedules),
        "TrainerConfig.compile: {algorithm} has a schedule of {found}, for whose every "
        "value the loss would be compiled anew. Leave one of them out.",
    ),
    Rule(
        lambda compile, slopes_in_loss: compile and " and ".join(slopes_in_loss),
        "TrainerConfig.compile: {found} of {algorithm} puts the slope of a network "
        "into the loss, which torch.compile cannot differentiate. Set compile = False, "
        "or leave it out.",
    ),
    Rule(
        lambda schedule_of_share, num_iterations, num_env_steps: (
            schedule_of_share and not (num_iterations or num_env_steps)
        ),
        "TrainerConfig.num_iterations and num_env_steps are 0, but {algorithm} has "
        "{schedule_of_share}, which follows the share of the run that is done. Set one "
        'of them, or give it another progress_type, such as "env_steps".',
    ),
    Rule(
        lambda async_unroll, hooks_of_environments: (
            async_unroll and " and ".join(hooks_of_environments)
        ),
        "TrainerConfig.async_unroll: the environments are in other processes, where "
        "{found} cannot change them. Leave one of them out.",
    ),
    Rule(
        lambda learns_reward_weights, early_stop_return, early_stop_patience: (
            learns_reward_weights
            and (early_stop_return is not None or early_stop_patience is not None)
        ),
        "TrainerConfig.early_stop_return and early_stop_patience compare returns, and "
        "LagrangianRewardWeights weighs them anew all the time. Use the hook EarlyStop "
        'with a part of the reward: EarlyStop.score = "AverageReturn/0".',
    ),
    Rule(
        lambda num_snapshots, takes_snapshots: (
            num_snapshots > 1 and not takes_snapshots
        ),
        "num_snapshots of the environment is {num_snapshots}, but nothing takes any "
        "after the first one. Set TrainerConfig.hook_ctors = [@League], or "
        "num_snapshots = 1 for games against the policy that the run begins with.",
    ),
    # How it replays
    Rule(
        lambda windows, mini_batch_length: mini_batch_length is None,
        "TrainerConfig.mini_batch_length is not set. Off-policy training draws windows "
        "of that many steps: 2 for one-step targets, n + 1 for n steps.",
    ),
    Rule(
        lambda replay_buffer_length, mini_batch_length, num_history_steps: (
            replay_buffer_length < (mini_batch_length or 0) + num_history_steps
        ),
        "TrainerConfig.replay_buffer_length={replay_buffer_length} is too short: a "
        "window is mini_batch_length={mini_batch_length} steps, and the data "
        "transformers read {num_history_steps} steps before it",
    ),
    Rule(
        lambda replay_buffer_length, initial_collect_steps, num_environments: (
            num_environments * replay_buffer_length < initial_collect_steps
            and num_environments * replay_buffer_length
        ),
        "TrainerConfig.replay_buffer_length={replay_buffer_length} is too short: "
        "initial_collect_steps={initial_collect_steps} must be stored before training "
        "begins, and {num_environments} environments hold {found}. Make it longer or "
        "collect less.",
    ),
    Rule(
        lambda windows: ", ".join(
            source for source, (ratio, count) in windows.items() if ratio and not count
        ),
        "TrainerConfig.mixing_ratios: no window of a batch would be of {found}, which "
        "would never be trained. Raise its ratio or TrainerConfig.mini_batch_size.",
    ),
)
