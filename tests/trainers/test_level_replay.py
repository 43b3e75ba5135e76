"""Prioritised level replay: scores, probabilities, and a run that is resumed."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch

from alf_lite.algorithms.agent import Agent
from alf_lite.algorithms.dqn_algorithm import DqnAlgorithm
from alf_lite.algorithms.learning.training_batches import TrainingBatch
from alf_lite.algorithms.ppo_algorithm import PPOAlgorithm
from alf_lite.algorithms.rnd_reward import RndReward
from alf_lite.data_structures import StepType, TimeStep
from alf_lite.environments.creation import create_environment
from alf_lite.environments.levels import LevelSeeds
from alf_lite.errors import ConfigError
from alf_lite.optimizers.optimizers import Adam
from alf_lite.testing.maze import MazeEnv
from alf_lite.trainers.level_replay import LevelReplay
from tests.trainers.run_comparison import Stops, assert_same_run

MAZE = functools.partial(MazeEnv, size=5, view=3, max_steps=12)


def create(*, seed=None, num_parallel_environments=4, keys=("level",)):
    return create_environment(
        env_ctor=MAZE,
        wrappers=[functools.partial(LevelSeeds, num_levels=6)],
        env_info_keys=keys,
        num_parallel_environments=num_parallel_environments,
        seed=seed,
    )


def batch_of(step_type, level, reward, advantage):
    """[B, T+1] as an iteration makes it."""
    step_type = torch.tensor(step_type, dtype=torch.int32)
    valid = step_type != StepType.LAST
    valid[:, -1] = False
    info = type("Info", (), {"advantage": torch.tensor(advantage)})
    steps = TimeStep(
        step_type=step_type,
        reward=torch.tensor(reward),
        env_info={"level": torch.tensor(level)},
    )
    return TrainingBatch(steps, info, (), valid)


def test_an_episode_is_scored_over_the_unrolls_that_it_takes():
    F, M, L = 0, 1, 2
    first = batch_of(
        [[F, M, M, L, F], [F, L, F, M, M]],
        [[3.0, 3, 3, 3, 1], [0.0, 0, 5, 5, 5]],
        [[0.0, 1, 2, 4, 0], [0.0, 7, 0, 1, 1]],
        [[1.0, -3, 2, 9, 9], [-4.0, 9, 1, -1, 9]],
    )
    second = batch_of(
        [[F, M, M], [M, L, F]],
        [[1.0, 1, 1], [5.0, 5, 2]],
        [[0.0, 1, 1], [1.0, 3, 0]],
        [[1.0, 1, 9], [-5.0, 9, 9]],
    )
    hook = LevelReplay(6)
    hook.observe(first)
    assert hook.scores[[3, 0]].tolist() == [2.0, 4.0]  # (1+3+2)/3, 4/1
    hook.observe(second)
    assert hook.scores[5] == pytest.approx((1 + 1 + 5) / 3)
    assert np.isnan(hook.scores[[1, 2, 4]]).all()
    positive = LevelReplay(6, "positive_value_loss")
    positive.observe(first)
    assert positive.scores[[3, 0]].tolist() == [1.0, 0.0]
    progress = LevelReplay(6, "progress")
    progress.observe(first)
    assert progress.scores[[3, 0]].tolist() == [0.0, 0.0]
    better = first._replace(inputs=first.inputs._replace(reward=torch.ones(2, 5) * 3))
    progress.observe(better)
    # 7 → 9 moves the averages by 0.2 · 2 and 0.1 · 2. Of the other one, 7 → 3, the
    # episode that was open has been cut off: its 2 are not part of the next one.
    assert progress.scores[[3, 0]] == pytest.approx([0.2, 0.4])
    other = LevelReplay(6)
    other.load_state_dict(hook.state_dict())
    one = batch_of([[F, L, F]], [[4.0] * 3], [[0.0] * 3], [[1.5, 9, 9]])
    other.observe(one)  # with another number of environments
    assert other.scores[[3, 4]].tolist() == [2.0, 1.5]
    # As long as an agent waits for others, the episode has ended
    other.observe(batch_of([[L, L, L]], [[4.0] * 3], [[9.0] * 3], [[9.0] * 3]))
    assert other.scores[4] == 1.5


def test_probabilities_are_those_of_the_paper():
    hook = LevelReplay(5, temperature=0.5, staleness=0.25)
    assert hook.weights().tolist() == [0.2] * 5
    hook.scores[:3] = [1.0, 3.0, 2.0]
    hook._played_at[:3] = [10, 4, 6]
    hook._num_episodes = 10
    by_score = np.array([1 / 9, 1, 1 / 4])
    by_age = np.array([0, 6, 4])
    expected = 0.75 * by_score / by_score.sum() + 0.25 * by_age / 10
    assert hook.weights() == pytest.approx([*(0.5 * expected), 0.25, 0.25])
    hook.scores[3:] = 0.0
    weights = hook.weights()
    assert weights.sum() == pytest.approx(1)
    assert weights.argmax() == 1


def ppo(*args, **kwargs):
    return PPOAlgorithm(*args, optimizer=Adam(lr=1e-3), **kwargs)


@pytest.mark.ci
def test_a_resumed_run_plays_the_same_levels(make_trainer, tmp_path, caplog):
    settings = {
        "algorithm_ctor": ppo,
        "create_env": create,
        "unroll_length": 16,
        "num_iterations": 12,
        "num_checkpoints": 12,
        "mini_batch_size": 32,
        "mini_batch_length": 1,
        "epochs": 1,
    }
    hooks = []
    for name, stops in (("whole", [()]), ("parts", [(1,), (7,), ()])):
        for iterations in stops:
            hooks.append(LevelReplay(6, new_level_share=0.9))
            make_trainer(
                name, hooks=[hooks[-1], Stops(*iterations)], **settings
            ).train()
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    assert "New episodes" not in caplog.text
    assert not np.isnan(hooks[0].scores).any()
    assert (hooks[0].weights() == hooks[-1].weights()).all()
    hook = LevelReplay(7)
    with pytest.raises(ValueError, match="6 levels, now there are 7"):
        hook.load_state_dict(hooks[0].state_dict())


@pytest.mark.ci
def test_what_is_trained_in_the_mirror_is_no_episode_of_a_level(train):
    class Counts(LevelReplay):
        num_ends = 0

        def observe(self, batch):
            assert len(batch.valid) == 4
            self.num_ends += int((batch.inputs.step_type[:, 1:] == StepType.LAST).sum())
            super().observe(batch)

    def mirror(observation, action):
        return observation, action

    hook = Counts(6)
    train(
        hooks=[hook],
        algorithm_ctor=functools.partial(ppo, symmetries=[mirror]),
        create_env=create,
        unroll_length=16,
        num_iterations=3,
        mini_batch_size=32,
        mini_batch_length=1,
        epochs=1,
    )
    assert hook._num_episodes == hook.num_ends > 0


@pytest.mark.ci
def test_levels_of_an_agent_are_scored_by_the_advantages_of_its_rl_algorithm(train):
    def agent(*specs, **kwargs):
        reward = functools.partial(RndReward, optimizer=Adam(lr=1e-3))
        return Agent(*specs, rl_algorithm_ctor=ppo, intrinsic_rewards=reward, **kwargs)

    hook = LevelReplay(6)
    settings = {"unroll_length": 16, "mini_batch_size": 32, "mini_batch_length": 1}
    result = train(
        hooks=[hook],
        algorithm_ctor=agent,
        create_env=create,
        num_iterations=3,
        epochs=1,
        **settings,
    )
    assert result.iterations == 3
    assert np.nanmax(hook.scores) > 0


@pytest.mark.parametrize(
    ("hook", "config", "message"),
    [
        (
            LevelReplay(6),
            {"create_env": functools.partial(create, keys=())},
            "level it",
        ),
        (LevelReplay(7), {}, "there are 6 levels, got weights of shape"),
        (
            LevelReplay(6),
            {"algorithm_ctor": functools.partial(DqnAlgorithm, optimizer=Adam(lr=0.1))},
            "off-policy",
        ),
    ],
)
def test_what_cannot_be_is_said_before_it_begins(train, hook, config, message):
    with pytest.raises(ConfigError, match=message):
        train(hooks=[hook], **{"algorithm_ctor": ppo, "create_env": create, **config})
    for kwargs, match in (
        ({"score": "loss"}, "^score must be one of .*, got 'loss'"),
        ({"temperature": 0.0}, "^LevelReplay: "),
        ({"staleness": 2.0}, "^LevelReplay: "),
    ):
        with pytest.raises(ValueError, match=match):
            LevelReplay(6, **kwargs)
    with pytest.raises(ConfigError, match="temperature has no effect: staleness is 1"):
        LevelReplay(6, temperature=1.0, staleness=1.0)
