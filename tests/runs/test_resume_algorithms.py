"""Real algorithms in real environments resume to the bit, wherever they stopped."""

from __future__ import annotations

import functools
import importlib.util

import pytest

from alf_lite.algorithms.actor_critic_algorithm import ActorCriticAlgorithm
from alf_lite.algorithms.alphazero_algorithm import AlphaZeroAlgorithm
from alf_lite.algorithms.awac_algorithm import AwacAlgorithm
from alf_lite.algorithms.cql_algorithm import CqlAlgorithm
from alf_lite.algorithms.cql_dqn_algorithm import CqlDqnAlgorithm
from alf_lite.algorithms.ddpg_algorithm import DdpgAlgorithm
from alf_lite.algorithms.dqfd_algorithm import DqfdAlgorithm
from alf_lite.algorithms.dqn_algorithm import DqnAlgorithm
from alf_lite.algorithms.impala_algorithm import ImpalaAlgorithm
from alf_lite.algorithms.iql_algorithm import IqlAlgorithm
from alf_lite.algorithms.parts.tree_search import TreeSearch
from alf_lite.algorithms.ppo_algorithm import PPOAlgorithm
from alf_lite.algorithms.sac_algorithm import SacAlgorithm
from alf_lite.algorithms.td3_algorithm import Td3Algorithm
from alf_lite.algorithms.td3_bc_algorithm import Td3BcAlgorithm
from alf_lite.config import files as config_files
from alf_lite.data_transformers.frame_stacker import FrameStacker
from alf_lite.data_transformers.hindsight import HindsightExperienceTransformer
from alf_lite.data_transformers.normalizing_transformers import (
    ObservationNormalizer,
    RewardNormalizer,
)
from alf_lite.datasets.writing import write_source
from alf_lite.distributions.exploration import OrnsteinUhlenbeckNoise
from alf_lite.environments.creation import create_environment
from alf_lite.games.board_games import Nim
from alf_lite.games.game_environment import BothSeatsEnvironment
from alf_lite.networks.actor_networks import ActorDistributionNetwork
from alf_lite.networks.recurrent_networks import LSTMEncodingNetwork
from alf_lite.networks.value_networks import QNetwork, ValueNetwork
from alf_lite.optimizers.optimizers import Adam
from alf_lite.testing.goal_environment import PointGoalEnv
from alf_lite.tools.collector import NumSteps, RandomPolicy, collect
from alf_lite.utils.schedulers import LinearScheduler
from tests.algorithms.agent_toys import full_agent
from tests.trainers.run_comparison import (
    Dies,
    Stops,
    assert_same_run,
    differences,
    learned_state,
)


def with_optimizer(algorithm_class, **kwargs):
    """A constructor that builds a new optimizer each time, as a conf does."""

    def build(*args, **more):
        schedule = LinearScheduler(((0.0, 0.01), (1.0, 0.0)))
        optimizer = Adam(lr=schedule, gradient_clipping=0.5)
        return algorithm_class(*args, optimizer=optimizer, **kwargs, **more)

    return build


RECURRENT = {
    "actor_network_ctor": functools.partial(
        ActorDistributionNetwork, encoding_network_ctor=LSTMEncodingNetwork
    ),
    "value_network_ctor": functools.partial(
        ValueNetwork, encoding_network_ctor=LSTMEncodingNetwork
    ),
}
NORMALIZE = {"data_transformer_ctor": [ObservationNormalizer, RewardNormalizer]}
MINI_BATCHES = {
    "num_updates_per_train_iter": 2,
    "mini_batch_length": 1,
    "mini_batch_size": 8,
}
REPLAY = {
    "checkpoint_replay_buffer": True,
    "replay_buffer_length": 25,  # goes round within the run
    "initial_collect_steps": 50,  # more than there are before the first checkpoint
    "initial_random_policy": True,
    "mini_batch_length": 2,
    "mini_batch_size": 16,
    "num_updates_per_train_iter": 2,
}
EVALUATE = {"evaluate": True, "eval_interval": 2, "num_eval_episodes": 3}


def nim(*, seed, num_parallel_environments=4):
    return BothSeatsEnvironment(num_parallel_environments, Nim((1, 2, 2)), seed=seed)


CASES = {
    "dqn": (
        "CartPole-v1",
        with_optimizer(
            DqnAlgorithm,
            rollout_epsilon_greedy=LinearScheduler(((0.0, 1.0), (1.0, 0.1))),
        ),
        {**REPLAY, "priority_replay": True},
    ),
    "dqn on frame stacks": (
        "CartPole-v1",
        with_optimizer(DqnAlgorithm),
        {
            **REPLAY,
            "data_transformer_ctor": [FrameStacker, ObservationNormalizer],
            "priority_replay": True,
        },
    ),
    "sac with normalizers": (
        "Pendulum-v1",
        with_optimizer(SacAlgorithm),
        {**REPLAY, **NORMALIZE, **EVALUATE},
    ),
    "sac, a step in some iterations": (
        "Pendulum-v1",
        with_optimizer(SacAlgorithm),
        {**REPLAY, "unroll_length": 2.5, "initial_collect_steps": 8},
    ),
    "ddpg with hindsight": (
        PointGoalEnv,
        with_optimizer(DdpgAlgorithm, exploration_noise_ctor=OrnsteinUhlenbeckNoise),
        {**REPLAY, "data_transformer_ctor": [HindsightExperienceTransformer]},
    ),
    "td3": ("Pendulum-v1", with_optimizer(Td3Algorithm), REPLAY),
    "a2c": ("CartPole-v1", with_optimizer(ActorCriticAlgorithm), {}),
    "ppo": ("CartPole-v1", with_optimizer(PPOAlgorithm), MINI_BATCHES),
    "ppo with normalizers": (
        "Pendulum-v1",
        with_optimizer(PPOAlgorithm),
        {**MINI_BATCHES, **NORMALIZE, **EVALUATE},
    ),
    "recurrent ppo": ("CartPole-v1", with_optimizer(PPOAlgorithm, **RECURRENT), {}),
    "recurrent a2c with normalizers": (
        "CartPole-v1",
        with_optimizer(ActorCriticAlgorithm, **RECURRENT),
        NORMALIZE,
    ),
    "impala": ("CartPole-v1", with_optimizer(ImpalaAlgorithm), {}),
    "alphazero": (
        nim,
        with_optimizer(
            AlphaZeroAlgorithm,
            game=Nim((1, 2, 2)),
            search=TreeSearch(4, "puct"),
            rollout_temperature=LinearScheduler(((0.0, 1.0), (1.0, 0.1))),
            n_step=1,
        ),
        {**REPLAY, "initial_random_policy": False, "create_env": nim},
    ),
    "agent, off-policy": (
        "CartPole-v1",
        full_agent(
            functools.partial(
                DqnAlgorithm,
                q_network_ctor=functools.partial(
                    QNetwork, encoding_network_ctor=LSTMEncodingNetwork
                ),
            )
        ),
        {**REPLAY, **EVALUATE, "use_rollout_state": True},
    ),
    "agent, recurrent ppo": (
        "CartPole-v1",
        full_agent(
            functools.partial(PPOAlgorithm, **RECURRENT),
            extrinsic_reward_weight=((0.0, 1.0), (1.0, 0.0)),
        ),
        {"mini_batch_length": None},
    ),
} | {
    algorithm.__name__: (
        "CartPole-v1" if algorithm is CqlDqnAlgorithm else "Pendulum-v1",
        with_optimizer(algorithm),
        {**REPLAY, "initial_collect_steps": 8},
    )
    for algorithm in (
        AwacAlgorithm,
        CqlAlgorithm,
        CqlDqnAlgorithm,
        IqlAlgorithm,
        Td3BcAlgorithm,
    )
}


OPTIONS = {
    "dqn": (
        "PriorityOptions.initial_priority = 3.0",
        "PriorityOptions.beta = @LinearScheduler()",
        "LinearScheduler.schedule = ((0.0, 0.4), (1.0, 1.0))",
        "SamplingOptions.max_use = 7",
        "SamplingOptions.max_staleness = 3",
    ),
    "dqn on frame stacks": ("PriorityOptions.on_device = True",),
    "sac with normalizers": (
        "StorageOptions.storage = 'memmap'",
        "SamplingOptions.recent_data_ratio = 0.25",
    ),
}


def settings_of(case, **more):
    env, algorithm_ctor, config = CASES[case]
    return {
        "algorithm_ctor": algorithm_ctor,
        "create_env": creates(env),
        "unroll_length": 8,
        "num_iterations": 7,
        "num_checkpoints": 3,
        **config,
        **more,
    }


def creates(env, **options):
    """A ``create_env`` of short episodes, which end somewhere within an unroll."""
    named = {"env_name": env} if isinstance(env, str) else {"env_ctor": env}

    def create(*, seed, num_parallel_environments=4):
        return create_environment(
            **named,
            num_parallel_environments=num_parallel_environments,
            seed=seed,
            max_episode_steps=19,
            **options,
        )

    return create


def assert_resumes(train, tmp_path, caplog, settings):
    train("straight", **settings)
    train("resumed", hooks=[Stops(1)], **settings)
    train("resumed", hooks=[Stops(4)], **settings)
    with pytest.raises(KeyboardInterrupt):
        train("resumed", hooks=[Dies(6)], **settings)
    assert train("resumed", **settings).iterations == 7
    assert_same_run(tmp_path / "straight", tmp_path / "resumed")
    assert "New episodes" not in caplog.text


# Made of the same parts as others.
SLOW = {
    *("AwacAlgorithm", "CqlAlgorithm", "CqlDqnAlgorithm", "Td3BcAlgorithm"),
    *("td3", "ppo", "a2c", "IqlAlgorithm", "ppo with normalizers", "recurrent ppo"),
    *("recurrent a2c with normalizers", "sac, a step in some iterations"),
}


@pytest.mark.ci
@pytest.mark.parametrize(
    "case",
    [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in CASES],
)
def test_stopped_anywhere_and_resumed_equals_uninterrupted(
    train, tmp_path, caplog, case
):
    config_files.parse_config(None, OPTIONS.get(case, ()))
    settings = settings_of(case)
    assert_resumes(train, tmp_path, caplog, settings)
    # Nor does it matter how often somebody looks.
    alone = {name: value for name, value in settings.items() if name not in EVALUATE}
    train("alone", **{**alone, "summary_interval": 1000, "num_checkpoints": 0})
    expected, got = (learned_state(tmp_path / run) for run in ("straight", "alone"))
    assert differences(expected, got, "") == []


@pytest.mark.ci
def test_with_recorded_steps_beside_own_ones(train, tmp_path, caplog):
    path = tmp_path / "data.replay"
    env = creates("CartPole-v1")(seed=1)
    steps = collect(env, RandomPolicy(env), NumSteps(64))
    write_source(steps, env, path, "alf_lite")
    settings = settings_of(
        "dqn",
        algorithm_ctor=with_optimizer(DqfdAlgorithm),
        offline_buffer_dir=str(path),
        rl_train_after_update_steps=2,
    )
    assert_resumes(train, tmp_path, caplog, settings)


def needs(module):
    missing = importlib.util.find_spec(module) is None
    return pytest.mark.skipif(missing, reason=f"without {module}")


@pytest.mark.ci
@pytest.mark.parametrize(
    ("case", "env", "options"),
    [
        pytest.param(
            "ppo",
            "CartPole-v1",
            {"vectorization_mode": "async"},
            marks=pytest.mark.slow,
        ),
        pytest.param("ppo", "LunarLander-v3", {}, marks=needs("Box2D")),
        pytest.param(
            "sac with normalizers",
            "HalfCheetah-v5",
            {},
            marks=[needs("mujoco"), pytest.mark.slow],
        ),
        pytest.param(
            "dqn",
            "ALE/Pong-v5",
            {"env_kwargs": {"obs_type": "ram"}},
            marks=[needs("ale_py"), pytest.mark.slow],
        ),
    ],
)
def test_environments_of_all_suites_resume(train, tmp_path, caplog, case, env, options):
    settings = settings_of(case, create_env=creates(env, **options))
    assert_resumes(train, tmp_path, caplog, settings)
