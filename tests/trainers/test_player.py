"""Tests of alf_lite.trainers.player."""

from __future__ import annotations

import builtins

import numpy as np
import pytest

from alf_lite.errors import ConfigError, EnvError
from alf_lite.trainers.evaluator import evaluate
from alf_lite.trainers.player import EpisodeRecorder, VideoFile
from tests.trainers.toys import ScriptedEnvironment, ToyAlgorithm


def frame(brightness: int) -> np.ndarray:
    pixels = np.zeros((33, 50, 3), dtype=np.uint8)
    pixels[:, :, 1] = brightness
    return pixels


def test_gif_holds_the_frames_at_their_speed(tmp_path):
    imageio = pytest.importorskip("imageio.v3")
    with VideoFile(tmp_path / "new" / "a.gif", 20) as video:
        for brightness in (0, 100, 200):
            video.add(frame(brightness))
    frames = imageio.imread(tmp_path / "new" / "a.gif")
    assert frames.shape == (3, 33, 50, 3)
    assert frames[:, 5, 5, 1].tolist() == [0, 100, 200]
    assert imageio.immeta(tmp_path / "new" / "a.gif")["duration"] == 50  # ms


@pytest.mark.filterwarnings(
    # imageio leaves the pipes of its reader, which only this test uses, open.
    "ignore::pytest.PytestUnraisableExceptionWarning",
    "ignore::ResourceWarning",
)
def test_mp4_holds_the_frames(tmp_path):
    imageio = pytest.importorskip("imageio.v3")
    pytest.importorskip("imageio_ffmpeg")
    with VideoFile(tmp_path / "a.mp4", 10) as video:
        for brightness in (0, 100, 200):
            video.add(np.ascontiguousarray(frame(brightness)[:32]))
    frames = imageio.imread(tmp_path / "a.mp4")
    assert frames.shape == (3, 32, 50, 3)
    assert np.abs(frames[:, 5, 5, 1].astype(int) - [0, 100, 200]).max() < 20


@pytest.mark.parametrize("name", ["a.xyz", "a", "mp4"])
def test_unknown_format_is_refused_before_anything_is_written(tmp_path, name):
    with pytest.raises(ConfigError, match=r"ends in one of \.mp4"):
        VideoFile(tmp_path / name, 30)
    assert not list(tmp_path.iterdir())


def test_unwritable_place_is_refused(tmp_path):
    pytest.importorskip("imageio")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written"):
        VideoFile(tmp_path / "file" / "a.gif", 30)


def test_missing_extra_says_how_to_install_it(tmp_path, monkeypatch):
    original = builtins.__import__

    def without_imageio(name, *args, **kwargs):
        if name.startswith("imageio"):
            raise ImportError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_imageio)
    with pytest.raises(ConfigError, match=r"pip install 'alf_lite\[video\]'"):
        VideoFile(tmp_path / "a.gif", 30)


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


def record(env, num_episodes) -> list[list]:
    algorithm = ToyAlgorithm(env.observation_spec, env.action_spec)
    frames = Frames()
    recorder = EpisodeRecorder(env, frames, num_episodes)
    evaluate(algorithm, env, num_episodes, on_step=recorder)
    return [frame.tolist() for frame in frames]


def test_the_recorded_episodes_are_those_that_count():
    env = DrawnEnvironment([lambda i: (1, 0), lambda i: (3, 0), lambda i: (1, 0)])
    assert record(env, 4) == [
        [[0, 100], [200, 0]],
        [[1, 101], [201, 0]],
        [[10, 102], [201, 0]],
        [[11, 103], [201, 0]],
    ]
    one = DrawnEnvironment([lambda i: (2, 0)])
    assert record(one, 2) == [[[0]], [[1]], [[2]], [[10]], [[11]], [[12]]]


def test_what_cannot_be_drawn_is_refused_with_the_remedy():
    env = DrawnEnvironment([lambda i: (1, 0)] * 3)
    env.num_drawn = 1
    with pytest.raises(ConfigError, match=r"draws 1 of the 3.*--num_environments=1"):
        record(env, 3)
    env.num_drawn = 0
    with pytest.raises(ConfigError, match="render_mode='rgb_array'"):
        record(env, 3)


def test_frames_of_several_sizes_are_refused():
    env = DrawnEnvironment([lambda i: (2, 0)])
    recorder = EpisodeRecorder(env, Frames(), 1)
    recorder(env.reset())
    env.height = 4
    with pytest.raises(EnvError, match="make no video"):
        recorder(env.reset())
