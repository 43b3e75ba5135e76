"""Tests of alf_lite.tools.player."""

from __future__ import annotations

import numpy as np
import pytest

from alf_lite.errors import ConfigError, EnvError
from alf_lite.policies.evaluator import evaluate
from alf_lite.tools import player
from alf_lite.tools.player import EpisodeRecorder
from tests.source_code import ROOT
from tests.trainers.toys import ScriptedEnvironment, ToyAlgorithm


class DrawnEnvironment(ScriptedEnvironment):
    """Environment b at time t of episode e is drawn as 100 b + 10 e + t."""

    num_drawn = 9
    height = 2

    def render_all(self):
        values = np.arange(self.batch_size) * 100 + self._episode * 10 + self._t
        shape = (self.height, 3, 3)
        return [np.full(shape, v, np.uint8) for v in values[: self.num_drawn]]


class Frames(list):
    """In place of a video file."""

    def add(self, frame):
        self.append(frame[::2, ::3, 0].copy())


@pytest.fixture
def lines(monkeypatch):
    """What is written above the pictures, which stay as they are."""
    written = []

    def captioned(frame, lines, height):
        written.extend(lines)
        return frame

    monkeypatch.setattr(player, "captioned", captioned)
    return written


def record(env, num_episodes, words=None) -> list[list]:
    algorithm = ToyAlgorithm(env.observation_spec, env.action_spec)
    frames = Frames()
    recorder = EpisodeRecorder(algorithm, env, frames, num_episodes, words)
    evaluate(algorithm, env, num_episodes, on_step=recorder)
    return [frame.tolist() for frame in frames]


def test_the_recorded_episodes_are_those_that_count(lines):
    env = DrawnEnvironment([lambda i: (1, 0), lambda i: (3, 0), lambda i: (1, 0)])
    assert record(env, 4) == [
        [[0, 100], [200, 0]],
        [[1, 101], [201, 0]],
        [[10, 102], [201, 0]],
        [[11, 103], [201, 0]],
    ]
    one = DrawnEnvironment([lambda i: (2, 5.0)])
    lines.clear()
    assert record(one, 2) == [[[0]], [[1]], [[2]], [[10]], [[11]], [[12]]]
    assert lines[2:4] == [
        "episode 1  step 2  return 5.00",
        "episode 2  step 0  return 0.00",
    ]


def test_words_stand_below_the_numbers_of_their_environment(lines):
    env = DrawnEnvironment([lambda i: (1, 0)] * 2)
    record(env, 2, lambda step: [f"{b} of {len(step.reward)}" for b in range(2)])
    numbers = "episode 1  step {}  return 0.00"
    assert lines == [
        *(numbers.format(0), "0 of 2", numbers.format(0), "1 of 2"),
        *(numbers.format(1), "0 of 2", numbers.format(1), "1 of 2"),
    ]


def test_of_environments_of_which_some_can_be_drawn_these_are(lines, caplog):
    env = DrawnEnvironment([lambda i: (1, 0)] * 3)
    env.num_drawn = 1
    assert record(env, 3) == [[[0]], [[1]]]
    assert "draws 1 of the 3 environments that play" in caplog.text
    env.num_drawn = 0
    with pytest.raises(ConfigError, match="render_mode='rgb_array'"):
        record(env, 3)


def test_frames_of_several_sizes_are_refused(lines):
    env = DrawnEnvironment([lambda i: (2, 0)])
    algorithm = ToyAlgorithm(env.observation_spec, env.action_spec)
    recorder = EpisodeRecorder(algorithm, env, Frames(), 1)
    recorder(env.reset())
    env.height = 4
    with pytest.raises(EnvError, match="make no video"):
        recorder(env.reset())


def test_values_alone_are_not_played_at_random():
    with pytest.raises(ConfigError, match="sample: DqnAlgorithm has no distribution"):
        player.play(ROOT / "policies/dqn_cart_pole", 1, sample=True)
