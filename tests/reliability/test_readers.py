"""Playing and reading recorded steps while a trainer writes and deletes checkpoints."""

from __future__ import annotations

import json

import pytest

from alf_lite.bin import inspect_buffer, play
from alf_lite.checkpoints.checkpointer import Checkpointer
from alf_lite.config import files as config_files
from tests.reliability.trainer_process import wait_until

BUSY = [
    "TrainerConfig.num_iterations = 1_000_000",
    "TrainerConfig.num_checkpoints = 1_000_000",
    "TrainerConfig.keep_checkpoints = 1",
    "ReplaySaver.interval = 1",
    "ReplaySaver.keep = 1",
]


@pytest.fixture
def busy(launcher, conf, tmp_path):
    """A run that replaces its only checkpoint and its buffer in every iteration."""
    arguments = [f"--conf={conf['replay_saver']}"]
    run = launcher.start(tmp_path / "run", arguments, settings=BUSY)
    run.wait_for_checkpoint(30)
    yield run.root_dir
    assert run.exit_code is None, run.error
    run.send(15)
    run.finish(expected=143)


def often(quick: int, slow: int):
    """A test that is repeated a few times, and many times if there is time."""
    many = pytest.param(slow, marks=pytest.mark.slow)
    return pytest.mark.parametrize("times", [quick, many], ids=str)


def call(program, *arguments: str) -> None:
    config_files.reset()
    assert program.main(arguments) == 0, arguments


@pytest.mark.ci
@often(40, 1000)
def test_a_reader_never_meets_half_a_checkpoint(busy, times):
    checkpoints = Checkpointer(busy / "checkpoints", read_only=True)
    steps = []
    for number in range(times):
        loaded = checkpoints.load(parts=["algorithm"] if number % 2 else None)
        assert all(v.isfinite().all() for v in loaded.state["algorithm"].values())
        steps.append(loaded.step)
    assert steps == sorted(steps)


@pytest.mark.ci
@often(3, 100)
def test_the_policy_is_played_while_it_is_trained(busy, times, capsys):
    steps = []

    def played_step() -> int:
        call(play, f"--root_dir={busy}", "--num_episodes=1", "--json")
        steps.append(json.loads(capsys.readouterr().out.splitlines()[-1])["step"])
        return steps[-1]

    for _ in range(times):
        played_step()
    wait_until(lambda: played_step() > steps[0], "a newer policy to play")
    assert steps == sorted(steps)


@pytest.mark.ci
@often(10, 300)
def test_the_replay_buffer_is_read_while_it_is_replaced(busy, times, capsys):
    for _ in range(times):
        call(inspect_buffer, str(busy), "--json")
        found = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert found["num_environments"] == 2
        assert found["total_steps"] > 0
