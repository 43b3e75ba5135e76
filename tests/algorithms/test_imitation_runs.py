"""GAIL finds its demonstrations, whichever way its RL algorithm is trained."""

from __future__ import annotations

import functools

import pytest
import torch

from alf_lite.algorithms.agent import Agent
from alf_lite.algorithms.dqn_algorithm import DqnAlgorithm
from alf_lite.algorithms.gail_reward import GailReward
from alf_lite.algorithms.ppo_algorithm import PPOAlgorithm
from alf_lite.algorithms.predictive_representation import PredictiveRepresentation
from alf_lite.config import TrainerConfig
from alf_lite.data_transformers.frame_stacker import FrameStacker
from alf_lite.data_transformers.normalizing_transformers import ObservationNormalizer
from alf_lite.datasets.loading import load_replay_buffer
from alf_lite.datasets.writing import write_source
from alf_lite.environments.creation import create_environment
from alf_lite.errors import CheckpointError, ConfigError, DataError
from alf_lite.optimizers.optimizers import Adam
from alf_lite.testing.structured_environments import CountingEnv
from alf_lite.tools.collector import NumSteps, RandomPolicy, collect
from alf_lite.trainers.dataset_evaluator import DatasetEvaluator

SETTINGS = {
    PPOAlgorithm: {"unroll_length": 6, "epochs": 2, "mini_batch_size": 4},
    DqnAlgorithm: {
        "unroll_length": 6,
        "initial_collect_steps": 0,
        "num_updates_per_train_iter": 2,
        "mini_batch_size": 8,
        "mini_batch_length": 2,
    },
}
with_both = pytest.mark.parametrize("algorithm", SETTINGS, ids=lambda cls: cls.__name__)


def make_env(*lengths: int):
    ctor = functools.partial(CountingEnv, episode_lengths=lengths)
    return create_environment(env_ctor=ctor, num_parallel_environments=2, seed=0)


def agent(algorithm, parts=None, **settings) -> Agent:
    config = TrainerConfig(
        num_iterations=3, random_seed=0, **SETTINGS[algorithm], **settings
    )
    return Agent(
        env=make_env(4),
        config=config,
        rl_algorithm_ctor=functools.partial(algorithm, optimizer=Adam(lr=1e-3)),
        intrinsic_rewards={
            "gail": functools.partial(GailReward, optimizer=Adam(lr=1e-3))
        },
        extrinsic_reward_weight=0.0,
        **(parts or {}),
    )


def recorded(path, *lengths: int, seed: int = 0):
    """A file with steps of episodes of other lengths, known by their numbers."""
    env = make_env(*lengths)
    write_source(collect(env, RandomPolicy(env), NumSteps(80)), env, path, "alf_lite")
    env.close()
    return str(path)


@with_both
def test_both_sides_reach_the_discriminator(algorithm, tmp_path, monkeypatch):
    seen = {True: set(), False: set()}
    losses = GailReward._losses

    def spy(self, steps, is_expert):
        for step, expert in zip(steps.observation, is_expert, strict=True):
            seen[bool(expert)].add(int(step) % 100)
        return losses(self, steps, is_expert)

    monkeypatch.setattr(GailReward, "_losses", spy)
    sources = [recorded(tmp_path / f"{n}.replay", n) for n in (7, 9)]
    imitator = agent(algorithm, offline_buffer_dir=sources)
    before = [p.clone() for p in imitator.parts["gail"]._h.parameters()]
    for iteration in range(60):
        imitator.train_iter()
        if iteration >= 5 and {5, 6, 7, 8} <= seen[True]:
            break
    # Own episodes have 4 transitions, those of the two sources 7 and 9.
    assert seen[False] <= set(range(5))
    assert {5, 6, 7, 8} <= seen[True]
    after = list(imitator.parts["gail"]._h.parameters())
    assert all(not torch.equal(a, b) for a, b in zip(after, before, strict=True))
    imitator.finish_train()


@with_both
def test_no_demonstrations_are_an_error_before_anything_is_trained(algorithm):
    imitator = agent(algorithm)
    with pytest.raises(
        ConfigError, match=r"GailReward learns from recorded steps.*offline"
    ):
        imitator.train_iter()
    assert imitator.num_env_steps == 0
    imitator.finish_train()


def test_on_policy_it_sees_the_observations_of_the_experts_themselves():
    learner = functools.partial(PredictiveRepresentation, optimizer=Adam(lr=1e-3))
    changed = {"representation_learner_ctor": learner}
    with pytest.raises(ConfigError, match=r"Leave representation_learner_ctor out"):
        agent(PPOAlgorithm, changed)
    agent(DqnAlgorithm, changed).finish_train()


def test_held_out_demonstrations_are_told_from_own_steps(tmp_path, monkeypatch):
    path = recorded(tmp_path / "x.replay", 7)
    imitator = agent(DqnAlgorithm, offline_buffer_dir=path)
    imitator.train_iter()
    seen = []
    losses = GailReward._losses
    monkeypatch.setattr(
        GailReward,
        "_losses",
        lambda self, *args: seen.append(args[1]) or losses(self, *args),
    )
    evaluator = DatasetEvaluator(imitator, imitator.config, [path])
    assert "loss/gail/accuracy" in evaluator.evaluate()
    assert torch.cat(seen).all()
    imitator.finish_train()


def test_on_policy_demonstrations_are_scaled_as_the_unroll_was(tmp_path, monkeypatch):
    imitator = agent(
        PPOAlgorithm,
        data_transformer_ctor=ObservationNormalizer,
        offline_buffer_dir=recorded(tmp_path / "x.replay", 7),
    )
    normalizer, counts = imitator.data_transformer.normalizer, []
    draw = GailReward._draw
    monkeypatch.setattr(
        GailReward,
        "_draw",
        lambda self, shape: counts.append(int(normalizer.count)) or draw(self, shape),
    )
    while_acting = []
    for _ in range(3):
        while_acting.append(int(normalizer.count))
        imitator.train_iter()
    assert counts == while_acting == [0, 14, 26]
    imitator.finish_train()


@pytest.mark.parametrize("transformer", [None, FrameStacker])
@with_both
def test_demonstrations_may_be_given_in_python(algorithm, tmp_path, transformer):
    imitator = agent(algorithm, data_transformer_ctor=transformer)
    buffer = load_replay_buffer(recorded(tmp_path / "x.replay", 7), make_env(4), 12)
    imitator.add_offline_replay_buffer(buffer)
    assert imitator.train_iter() > 0
    imitator.finish_train()


@with_both
def test_demonstrations_that_are_named_are_loaded_beside_others(algorithm, tmp_path):
    paths = [recorded(tmp_path / f"{k}.replay", k) for k in (6, 7)]
    imitator = agent(algorithm, offline_buffer_dir=paths[0])
    imitator.add_offline_replay_buffer(load_replay_buffer(paths[1], make_env(4)))
    imitator.setup_training()
    assert imitator.training_run.recorded.num_recorded_sources == 2


@with_both
def test_demonstrations_of_another_environment_are_refused(algorithm, tmp_path):
    env = create_environment("CartPole-v1", seed=0)
    path = tmp_path / "other.replay"
    write_source(collect(env, RandomPolicy(env), NumSteps(40)), env, path, "alf_lite")
    imitator = agent(algorithm, offline_buffer_dir=str(path))
    with pytest.raises(DataError, match="does not fit"):
        imitator.train_iter()
    imitator.finish_train()


@with_both
def test_a_run_is_not_continued_with_other_demonstrations(algorithm, tmp_path):
    path = recorded(tmp_path / "x.replay", 7)
    imitator = agent(algorithm, offline_buffer_dir=path)
    imitator.train_iter()
    state = imitator.training_run.state_dict()
    imitator.training_run.load_state_dict(state)
    if algorithm is PPOAlgorithm:  # a checkpoint of before, which said nothing
        imitator.training_run.load_state_dict({**state, "path": {}})
    two = [path, recorded(tmp_path / "y.replay", 9)]
    other = agent(algorithm, offline_buffer_dir=two)
    other.setup_training()
    with pytest.raises(CheckpointError, match=r"had \[92\] steps, now \[92, 90\]"):
        other.training_run.load_state_dict(state)
    imitator.finish_train()
    other.finish_train()
