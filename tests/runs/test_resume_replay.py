"""A run that trains from replay goes on when it is resumed, with its steps or not."""

from __future__ import annotations

import shutil

import pytest
import torch

from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.algorithms.sac_algorithm import SacAlgorithm
from alf_lite.checkpoints.checkpointer import Checkpointer
from alf_lite.environments.creation import create_environment
from alf_lite.errors import CheckpointError, ConfigError
from alf_lite.networks.actor_networks import SquashedActorNetwork
from alf_lite.optimizers.optimizers import Adam
from alf_lite.runs.training_state import ALGORITHM
from tests.trainers.run_comparison import Dies, Stops, assert_same_run


def create_env(*, seed, num_parallel_environments=4):
    return create_environment(
        "Pendulum-v1", num_parallel_environments, seed, max_episode_steps=30
    )


def build_sac(*args, **kwargs):
    return SacAlgorithm(*args, optimizer=Adam(lr=0.01), **kwargs)


SETTINGS = {
    "algorithm_ctor": build_sac,
    "create_env": create_env,
    "unroll_length": 8,  # 32 steps in an iteration
    "num_iterations": 13,
    "num_checkpoints": 13,
    "initial_collect_steps": 100,  # more than are left at the kill
    "initial_random_policy": True,
    "mini_batch_length": 2,
    "mini_batch_size": 32,
}


def killed(train, at: int = 11, **settings) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(hooks=[Dies(at)], **SETTINGS, **settings)


def messages_about_replay(caplog) -> list[str]:
    return [r.message for r in caplog.records if "replay" in r.message.lower()]


def never(*args):
    pytest.fail("the random policy acted again")


@pytest.mark.ci
def test_what_a_run_began_with_is_not_needed_to_resume_it(train, tmp_path):
    source = tmp_path / "source"
    settings = {**SETTINGS, "num_iterations": 5}
    train(**{**settings, "num_iterations": 4}, root_dir=source)
    given = f"_policy@{source}"

    def build(*args, **kwargs):
        return build_sac(
            *args,
            prior_actor_ctor=SquashedActorNetwork,
            prior_checkpoint=given,
            **kwargs,
        )

    settings["algorithm_ctor"] = build
    with pytest.raises(KeyboardInterrupt):
        train(**settings, hooks=[Dies(4)])
    shutil.rmtree(source)
    train(**settings)
    with pytest.raises(CheckpointError, match="source"):
        train(**settings, root_dir=tmp_path / "new")


@pytest.mark.ci
@pytest.mark.parametrize("saved", [None, False])
def test_a_run_killed_late_goes_on_learning(
    train, tmp_path, monkeypatch, caplog, saved
):
    killed(train, checkpoint_replay_buffer=saved)
    at_kill = Checkpointer(tmp_path / "run" / "checkpoints").load().state[ALGORITHM]
    monkeypatch.setattr(RLAlgorithm, "random_action", never)
    result = train(**SETTINGS, checkpoint_replay_buffer=saved)
    assert result.iterations == 13
    after = Checkpointer(tmp_path / "run" / "checkpoints").load()
    parameters = after.state[ALGORITHM]
    changed = [
        name
        for name, before in at_kill.items()
        if "weight" in name and not torch.equal(before, parameters[name])
    ]
    assert changed
    if saved is False:
        [line] = messages_about_replay(caplog)
        assert "without the replay buffer: 352 stored steps are lost" in line
        assert "training goes on after 32" in line
    else:
        assert messages_about_replay(caplog) == []
        assert "replay_buffer.safetensors" in after.mapped_files


@pytest.mark.ci
def test_a_run_that_has_not_begun_to_learn_begins_anew(train, tmp_path, caplog):
    killed(train, at=2, checkpoint_replay_buffer=False)
    drawn = []
    random_action = RLAlgorithm.random_action

    def counted(*args):
        drawn.append(1)
        return random_action(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RLAlgorithm, "random_action", counted)
        train(**SETTINGS, checkpoint_replay_buffer=False)
    assert len(drawn) == 4 * 8  # of each environment
    assert messages_about_replay(caplog) == []


@pytest.mark.ci
def test_what_is_lost_again_is_said_again(train, caplog):
    killed(train, checkpoint_replay_buffer=False)
    killed(train, at=12, checkpoint_replay_buffer=False)
    caplog.clear()
    train(**SETTINGS, checkpoint_replay_buffer=False)
    [line] = messages_about_replay(caplog)
    assert "32 stored steps are lost" in line


@pytest.mark.ci
def test_a_large_buffer_is_left_out_and_that_is_said_once(train, tmp_path, caplog):
    # A step takes 36 bytes.
    train(**SETTINGS, checkpoint_replay_buffer_gb=5e-6)
    [line] = messages_about_replay(caplog)
    assert "without the replay buffer from now on" in line
    assert "checkpoint_replay_buffer_gb=5e-06" in line
    checkpoints = sorted((tmp_path / "run" / "checkpoints").glob("ckpt-*"))
    assert not any((p / "replay_buffer.safetensors").exists() for p in checkpoints)


def test_a_limit_that_nothing_reads_is_refused(train):
    with pytest.raises(ConfigError, match=r"buffer_gb is 2\.0, but check"):
        train(
            **SETTINGS, checkpoint_replay_buffer=True, checkpoint_replay_buffer_gb=2.0
        )


@pytest.mark.ci
@pytest.mark.parametrize("first", [False, True])
def test_priorities_may_be_switched_at_resume(train, tmp_path, caplog, first):
    killed(train, priority_replay=first)
    assert train(**SETTINGS, priority_replay=not first).iterations == 13
    [changed, line] = messages_about_replay(caplog)
    assert f"{'-' if first else '+'} TrainerConfig.priority_replay = True" in changed
    assert "drawn from in another way" in line
    assert "its 352 steps count as new ones" in line


@pytest.mark.ci
@pytest.mark.parametrize("stop", [26, 28])
def test_a_run_of_several_updates_per_step_goes_on_at_once(train, tmp_path, stop):
    settings = {
        **SETTINGS,
        "unroll_length": 0.25,
        "num_iterations": 32,
        "num_checkpoints": 2,
        "initial_collect_steps": 12,
        "mini_batch_size": 4,
        "summary_interval": 1,
    }
    train("straight", **settings)
    train("resumed", hooks=[Stops(stop)], **settings)
    train("resumed", **settings)
    assert_same_run(tmp_path / "straight", tmp_path / "resumed")
