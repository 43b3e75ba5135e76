"""What contradicts each other among the settings of a run."""

from __future__ import annotations

import dataclasses
import functools

import pytest

from alf_lite.algorithms.actor_critic_algorithm import ActorCriticAlgorithm
from alf_lite.algorithms.ddpg_algorithm import DdpgAlgorithm
from alf_lite.algorithms.dqn_algorithm import DqnAlgorithm
from alf_lite.algorithms.learning.rank_share import share_of_rank
from alf_lite.algorithms.mbrl_algorithm import MbrlAlgorithm
from alf_lite.algorithms.muzero_algorithm import MuzeroAlgorithm
from alf_lite.algorithms.ppo_algorithm import PPOAlgorithm
from alf_lite.algorithms.sac_algorithm import SacAlgorithm
from alf_lite.algorithms.td3_algorithm import Td3Algorithm
from alf_lite.algorithms.tdmpc2_algorithm import Tdmpc2Algorithm
from alf_lite.config import TrainerConfig, rules
from alf_lite.config.rule_table import ALWAYS, EFFECTS, FACTS, RULES
from alf_lite.environments.creation import create_environment
from alf_lite.errors import ConfigError
from alf_lite.networks.recurrent_networks import LSTMEncodingNetwork
from alf_lite.networks.value_networks import QNetwork
from alf_lite.optimizers import Adam
from alf_lite.utils.ranks import ranks


class OnRollout(ActorCriticAlgorithm):
    """Trains through the graph of its unroll."""

    trains_on_rollout_info = True


def config(**fields):
    return TrainerConfig(num_iterations=1, **fields)


def problem_with(**fields):
    with pytest.raises(ConfigError) as error:
        config(**fields)
    return str(error.value)


WHAT_IS_THERE = {"async_unroll": True, "unroll_length": 0, "max_unroll_length": 8}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"async_unroll": True},
        {"async_unroll": True, "unroll_length": 2.5, "num_unroll_workers": 4},
        WHAT_IS_THERE,
        {**WHAT_IS_THERE, "samples_per_insert": 0.5},
        {"async_unroll": True, "max_policy_lag": 0, "unroll_queue_size": 1},
        {"async_unroll": True, "unroll_parameter_update_period": 5},
        {"async_unroll": True, "unroll_step_interval": 0.1, "max_worker_restarts": 0},
    ],
)
def test_what_goes_together(fields):
    assert config(**fields).async_unroll == fields.get("async_unroll", False)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_unroll_workers", 2),
        ("max_unroll_length", 8),
        ("unroll_queue_size", 5),
        ("unroll_step_interval", 0.1),
        ("unroll_parameter_update_period", 2),
        ("max_policy_lag", 0),
        ("samples_per_insert", 4.0),
    ],
)
def test_a_setting_of_workers_without_workers_says_how_to_get_them(name, value):
    message = problem_with(**{name: value})
    assert (
        f"{name} is {value!r}, but async_unroll is False: set async_unroll = True or "
        f"leave {name} out"
    ) in message
    assert message.count("async_unroll") == 2  # and no other conflict


@pytest.mark.parametrize(
    ("name", "value"), [("max_worker_restarts", 0), ("worker_timeout_seconds", 10.0)]
)
def test_a_setting_of_all_processes_names_both_kinds(name, value):
    assert config(evaluate=True, async_eval=True, **{name: value})
    assert (
        f"{name} is {value!r}, but async_unroll and async_eval are False: set one of "
        f"them or leave {name} out"
    ) in problem_with(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"), [("ray_address", "a:6379"), ("ray_cpus_per_worker", 0.5)]
)
def test_settings_of_ray_need_the_engine(name, value):
    assert config(async_unroll=True, unroll_engine="ray", **{name: value})
    message = problem_with(async_unroll=True, **{name: value})
    assert f"{name} is {value!r}, but unroll_engine is 'processes': set" in message


def test_a_default_that_is_spelt_out_is_no_conflict():
    spelt_out = config(
        num_unroll_workers=1, max_policy_lag=None, worker_timeout_seconds=300.0
    )
    assert spelt_out == config()


# The table

FIELDS = {field.name for field in dataclasses.fields(TrainerConfig)}
ROWS = (*RULES, *EFFECTS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[-1][:40])
def test_every_row_reads_what_is_known_in_one_stage(row):
    names = rules.names_of(row)
    assert any(names <= FIELDS | facts for facts in [set(), *FACTS.values()]), names


def test_every_field_has_a_row_or_always_an_effect():
    judged = {name for row in EFFECTS for name in row.fields.split()}
    in_rows = judged.union(*map(rules.names_of, ROWS))
    always = set(ALWAYS.split())
    assert judged | always <= FIELDS
    assert not judged & always
    assert in_rows | always >= FIELDS


WORKERS = {"async_unroll": True}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_eval_episodes": 20}, "num_eval_episodes is 20, but evaluate is False"),
        ({"num_eval_environments": 2}, "but evaluate is False: set evaluate = True"),
        (
            {"check_finite": False, "check_finite_interval": 1},
            "check_finite_interval is 1, but check_finite is False",
        ),
        (
            {"whole_replay_buffer_training": True, "updates_per_draw": 2},
            "updates_per_draw is 2, but whole_replay_buffer_training takes everything",
        ),
        (
            {
                **WHAT_IS_THERE,
                "samples_per_insert": 2.0,
                "whole_replay_buffer_training": True,
            },
            "samples_per_insert counts the windows that are drawn",
        ),
        (
            {
                **WHAT_IS_THERE,
                "updates_per_env_step": 2.0,
                "algorithm_ctor": DqnAlgorithm,
            },
            "updates_per_env_step is 2.0, but unroll_length is 0",
        ),
        ({"unroll_engine": "ray"}, "unroll_engine is 'ray', but async_unroll"),
        (
            {"unroll_length": 0},
            "unroll_length: got 0, expected a value > 0. With async",
        ),
        ({**WORKERS, "unroll_length": 0}, "They are 0 and 0."),
        (
            {**WORKERS, "unroll_length": 4, "max_unroll_length": 8},
            "set both, or neither. They are 4 and 8.",
        ),
        (
            {**WORKERS, "unroll_length": 4, "samples_per_insert": 2.0},
            "samples_per_insert=2.0 decides how much is unrolled per iteration, and so "
            "does unroll_length=4",
        ),
        (
            {**WORKERS, "unroll_with_grad": True},
            "unroll_with_grad needs the graph of rollout_step",
        ),
        (
            {**WORKERS, "max_policy_lag": 2, "unroll_parameter_update_period": 3},
            "max_policy_lag needs new parameters in every iteration",
        ),
        ({**WHAT_IS_THERE, "max_policy_lag": 1}, "unroll_length = 0 never waits"),
        # Out of range
        ({**WORKERS, "unroll_engine": "rya"}, "unroll_engine: got 'rya'"),
        ({**WORKERS, "num_unroll_workers": 0}, "num_unroll_workers: got 0, expected"),
        ({**WORKERS, "max_policy_lag": -1}, ">= 0"),
        ({**WORKERS, "samples_per_insert": 0}, "> 0"),
    ],
)
def test_a_setting_that_cannot_be_or_has_no_effect_is_refused(fields, message):
    assert message in problem_with(**fields)


@pytest.mark.parametrize(
    ("algorithm", "fields", "message"),
    [
        (DqnAlgorithm, {"epochs": 3}, "DqnAlgorithm is off-policy: set .*num_updates_"),
        (PPOAlgorithm, {"updates_per_env_step": 3}, "is on-policy: set .*epochs"),
        *(
            (
                DqnAlgorithm,
                {"updates_per_env_step": rate, "unroll_length": length},
                f"makes no whole number .* in 2 environments. Set unroll_length = {n},",
            )
            for rate, length, n in [(0.125, 1, 4), (0.75, 1, 2), (1.0, 0.25, 1)]
        ),
        (PPOAlgorithm, {"updates_per_draw": 2}, "is on-policy and has no replay"),
        (
            PPOAlgorithm,
            {"offline_buffer_dir": "x", "source_loss_weights": (1, 2)},
            "from all sources alike",
        ),
        (PPOAlgorithm, {"evaluation_buffer_dir": "x"}, "cannot be evaluated on"),
        (
            ActorCriticAlgorithm,
            {"burn_in_length": 8, "unroll_length": 8},
            "burn_in_length=8 leaves nothing of an unroll",
        ),
        (PPOAlgorithm, {"mini_batch_size": 1}, "the policy would learn nothing. Set"),
        (DqnAlgorithm, {"burn_in_length": 1, "mini_batch_length": 4}, "has no memory"),
        (DqnAlgorithm, {"use_rollout_state": True}, "DqnAlgorithm has no memory"),
        (OnRollout, {"mini_batch_size": 4}, "goes back through the graph of the whole"),
        (OnRollout, {"precision": "bfloat16"}, "goes back through the graph of the"),
        (OnRollout, {"epochs": 2}, "there for one update: leave it out"),
    ],
)
def test_a_setting_without_effect_on_what_is_trained_is_refused(
    algorithm, fields, message
):
    with (
        create_environment("CartPole-v1", 2) as env,
        pytest.raises(ConfigError, match=message),
    ):
        algorithm(env=env, config=config(**fields))


@pytest.mark.parametrize("unroll_length", [1, 3, 0.5])
def test_updates_per_step_are_as_many_as_they_say(unroll_length):
    rate = 1.0 if unroll_length == 0.5 else 1 / 2 / unroll_length
    fields = {"updates_per_env_step": rate, "unroll_length": unroll_length}
    with create_environment("CartPole-v1", 2) as env:
        algorithm = DqnAlgorithm(env=env, config=config(**fields))
        assert algorithm.config.num_updates == 1
        # What only acts makes none.
        eval_config = config(**{**fields, "updates_per_env_step": 0.1})
        DqnAlgorithm(env=env, config=eval_config, is_eval=True)


def test_windows_train_what_a_network_with_memory_remembers():
    network = functools.partial(QNetwork, encoding_network_ctor=LSTMEncodingNetwork)
    recurrent = functools.partial(DqnAlgorithm, q_network_ctor=network)
    with create_environment("CartPole-v1", 2) as env:
        for fields in ({}, {"mini_batch_length": 4}):
            n_step = fields.get("mini_batch_length", 2) - 1
            message = f"never learns what to remember. Set it to {n_step + 2} or more"
            with pytest.raises(ConfigError, match=message):
                recurrent(env=env, config=config(**fields), n_step=n_step)
        for fields in (
            {"mini_batch_length": 3},
            {"use_rollout_state": True},
            {"mini_batch_length": 3, "burn_in_length": 1},
        ):
            recurrent(env=env, config=config(**fields))
        DqnAlgorithm(env=env, config=config())


def test_the_share_of_a_rank_sets_nothing_that_its_workers_would_refuse(monkeypatch):
    monkeypatch.setattr(ranks, "size", 2)
    conditional = [name for row in EFFECTS for name in row.fields.split()]
    share = share_of_rank(config(algorithm_ctor=ActorCriticAlgorithm))
    assert [name for name in conditional if share.sets(name)] == []


def test_what_is_idle_without_a_switch_gets_its_default():
    given = config(evaluate=True, eval_interval=5, early_stop_return=3.0)
    switched = rules.switched(given, evaluate=False)
    assert (switched.eval_interval, switched.early_stop_return) == (0, None)
    assert given.eval_interval == 5


def test_algorithms_without_priorities_replay_by_none():
    with create_environment("Pendulum-v1") as env:
        for algorithm in (
            MbrlAlgorithm,
            functools.partial(Tdmpc2Algorithm, episode_length=200),
        ):
            with pytest.raises(ConfigError, match="Algorithm tells no priority of win"):
                algorithm(env=env, config=config(priority_replay=True))


@pytest.mark.ci
def test_what_always_takes_its_best_action_has_no_epsilon():
    planner = functools.partial(Tdmpc2Algorithm, episode_length=200)
    given = config(epsilon_greedy=0.5)
    with create_environment("Pendulum-v1") as env:
        SacAlgorithm(env=env, config=given)
        for algorithm in (DdpgAlgorithm, Td3Algorithm, MbrlAlgorithm, planner):
            message = "epsilon_greedy is 0.5, but .*Algorithm takes its best action"
            with pytest.raises(ConfigError, match=message):
                algorithm(env=env, config=given)
            algorithm(env=env, config=given, is_eval=True)  # as play --sample asks


def test_what_a_search_found_is_not_in_recorded_steps():
    with create_environment("CartPole-v1") as env:
        for name in ("offline_buffer_dir", "evaluation_buffer_dir"):
            with pytest.raises(
                ConfigError, match=f"{name} is 'x', but MuzeroAlgorithm trains on what"
            ):
                MuzeroAlgorithm(env=env, config=config(**{name: "x"}))


def test_hooks_that_change_environments_need_them_here():
    given = config(async_unroll=True)
    facts = {"hooks_of_environments": [], "learns_reward_weights": False}
    facts |= {"num_snapshots": 2, "takes_snapshots": True}
    rules.check(given, "hooks", **facts)
    facts["hooks_of_environments"] = ["LevelReplay"]
    with pytest.raises(ConfigError, match="where LevelReplay cannot change them"):
        rules.check(given, "hooks", **facts)


def test_sequences_divide_an_unroll_before_anything_is_collected():
    fields = {"unroll_length": 100, "mini_batch_length": 30, "mini_batch_size": 8}
    with create_environment("CartPole-v1", 2) as env:
        with pytest.raises(ConfigError, match="mini_batch_length=30 must divide the"):
            PPOAlgorithm(env=env, config=config(**fields)).setup_training()
        with pytest.raises(ConfigError, match="mini_batch_length=30 must divide the"):
            PPOAlgorithm(env=env, config=config(**fields, unroll_episodes=3))
        fine = config(**fields | {"mini_batch_length": 25})
        with pytest.raises(ConfigError, match="needs the step after each one"):
            ActorCriticAlgorithm(env=env, config=fine)
        PPOAlgorithm(env=env, config=fine).setup_training()


def test_an_unroll_has_the_steps_and_the_updates_that_are_compared():
    adaptive = functools.partial(PPOAlgorithm, desired_kl=0.01, optimizer=Adam())
    with create_environment("CartPole-v1", 1) as env:
        with pytest.raises(ConfigError, match="the policy would learn nothing"):
            PPOAlgorithm(env=env, config=config(unroll_length=1))
        PPOAlgorithm(env=env, config=config(unroll_length=2))
        one = {"unroll_length": 127, "epochs": 1}  # of 64 steps
        for fields in (one, {"num_updates_per_train_iter": 1, "mini_batch_size": None}):
            with pytest.raises(ConfigError, match=r"desired_kl .* there is one update"):
                adaptive(env=env, config=config(**fields))
        with pytest.raises(ConfigError, match=r"target_kl .* there is one update"):
            PPOAlgorithm(env=env, config=config(**one), target_kl=0.01)
        for fields in ({"unroll_length": 128}, {"epochs": 2}, {"unroll_episodes": 3}):
            adaptive(env=env, config=config(**one | fields))
            PPOAlgorithm(env=env, config=config(**one | fields), target_kl=0.01)
