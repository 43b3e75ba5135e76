"""Which episodes are recorded, what the pictures say, and the files."""

from __future__ import annotations

import builtins

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from alf_lite.errors import ConfigError
from alf_lite.policies.evaluator import evaluate
from alf_lite.tools import videos
from alf_lite.tools.video_files import VideoFile
from alf_lite.tools.videos import (
    VideoRecorder,
    VideoSettings,
    captioned,
    record_episodes,
    worst_median_best,
)
from alf_lite.trainers.hooks import Hook
from tests.trainers.conftest import make_noise
from tests.trainers.toys import ScriptedEnvironment, ToyAlgorithm

EVALUATE = {"evaluate": True, "num_eval_episodes": 4, "num_eval_environments": 2}
# imageio leaves the pipes of its reader, which only tests use, open.
leaky = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"
)


@pytest.mark.parametrize(
    ("returns", "expected"),
    [
        ([7], {"best": 0}),
        ([7, 3], {"worst": 1, "best": 0}),
        ([7, 3, 5], {"worst": 1, "median": 2, "best": 0}),
        (
            [5, 1, 3, 4],
            {"worst": 1, "lower median": 2, "upper median": 3, "best": 0},
        ),
        ([5, 1, 3, 4, 2], {"worst": 1, "below median": 4, "median": 2, "best": 0}),
        ([2, 2], {"worst": 0, "best": 1}),
    ],
)
def test_the_episodes_from_the_worst_to_the_best(returns, expected):
    chosen = worst_median_best(returns)
    assert chosen == expected
    assert list(chosen) == list(expected)


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


@pytest.mark.parametrize("suffix", ["gif", "mp4"])
def test_a_recording_that_is_broken_off_leaves_an_earlier_one(tmp_path, suffix):
    pytest.importorskip("imageio_ffmpeg" if suffix == "mp4" else "imageio")
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(b"of an earlier run")
    with pytest.raises(KeyboardInterrupt), VideoFile(path, 20) as video:
        video.add(frame(100))
        raise KeyboardInterrupt
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"of an earlier run"]
    with VideoFile(path, 20) as video:
        video.add(frame(100))
    assert list(tmp_path.iterdir()) == [path]
    assert path.stat().st_size > 100


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


@pytest.mark.parametrize(
    ("missing", "name"), [("imageio", "a.gif"), ("imageio_ffmpeg", "a.mp4")]
)
def test_missing_extra_says_how_to_install_it(tmp_path, monkeypatch, missing, name):
    pytest.importorskip("imageio")
    original = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith(missing):
            raise ImportError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    for make in (lambda: VideoFile.check(tmp_path / name), VideoRecorder):
        with pytest.raises(ConfigError, match=r"pip install 'alf_lite\[video\]'"):
            make()


@pytest.mark.parametrize("fails", ["append_data", "close"])
def test_a_full_disk_is_told_in_a_line(tmp_path, monkeypatch, fails):
    pytest.importorskip("imageio")

    def full(*args):
        raise OSError("[Errno 28] No space left on device\n\nFFMPEG COMMAND: ...")

    video = VideoFile(tmp_path / "a.gif", 30)
    monkeypatch.setattr(video._writer, fails, full)
    message = r"a\.gif cannot be written: .*No space left.*\. Is the disk full\?$"
    with pytest.raises(ConfigError, match=message), video:
        video.add(frame(100))
    assert not list(tmp_path.iterdir())


def test_a_run_goes_on_without_a_video(train, caplog):
    class Full:
        every = 1

        def check(self, env):
            pass

        def record(self, *args):
            raise ConfigError("a.mp4 cannot be written")

    hook = Hook()
    hook.recording = Full()
    settings = {"num_iterations": 2, "eval_interval": 1, **EVALUATE}
    result = train(hooks=[hook], create_env=make_drawn, **settings)
    assert result.stop_reason == "finished"
    assert result.evaluation.video is None
    assert caplog.text.count("There is no video of this evaluation: a.mp4") == 3


class Drawn(ScriptedEnvironment):
    """Environment b at time t of episode e is as bright as 50 b + 10 e + t."""

    num_drawn = 9

    def __init__(self, scripts):
        super().__init__(scripts)
        self.rows_drawn = []

    def render_all(self):
        values = np.arange(self.batch_size) * 50 + self._episode * 10 + self._t
        return [np.full((20, 30, 3), v, np.uint8) for v in values[: self.num_drawn]]

    def render_rows(self, rows):
        self.rows_drawn.extend(rows)
        return super().render_rows(rows)


def evaluated(env, num_episodes):
    algorithm = ToyAlgorithm(env.observation_spec, env.action_spec)
    return algorithm, evaluate(algorithm, env, num_episodes, seed=1)


def scripts():
    """Returns 3, 9, 1 and 4, 2, 8."""
    first, second = [3.0, 9.0, 1.0], [4.0, 2.0, 8.0]
    return [lambda i: (2, first[i % 3]), lambda i: (3, second[i % 3])]


def test_each_panel_shows_the_episode_whose_return_it_tells(tmp_path, monkeypatch):
    pytest.importorskip("imageio")
    written = []

    def keeps(frame, lines, height):
        written.append((*lines, int(np.mean(frame))))
        return captioned(frame, lines, height)

    monkeypatch.setattr("alf_lite.tools.videos.captioned", keeps)
    env = Drawn(scripts())
    algorithm, result = evaluated(env, 6)
    path = tmp_path / "videos" / "a.gif"
    settings = VideoSettings(height=40)
    video = record_episodes(algorithm, env, result, path, settings)
    assert path.stat().st_size
    assert {n: e.episode_return for n, e in video.episodes.items()} == {
        "worst": 1,
        "lower median": 3,
        "upper median": 4,
        "best": 9,
    }
    # Environment 0, episode 2 and 1; environment 1, episode 0: at their last steps.
    for title, brightness, step in (
        ("worst: 1.00", 22, 2),
        ("upper median: 4.00", 53, 3),
        ("best: 9.00", 12, 2),
    ):
        total = title.split()[-1]
        assert (title, f"step {step}   return {total}", brightness) in written
    assert sorted(env.rows_drawn) == [0] * 9 + [1] * 4  # and nothing else


def test_long_episodes_are_thinned_and_their_end_is_shown(tmp_path):
    imageio = pytest.importorskip("imageio.v3")
    env = Drawn([lambda i: (99, 1.0)])
    algorithm, result = evaluated(env, 1)
    path = tmp_path / "a.gif"
    settings = VideoSettings(height=40, max_frames=10)
    video = record_episodes(algorithm, env, result, path, settings)
    frames = imageio.imread(path)
    assert len(frames) == len(env.rows_drawn) == 11
    assert frames[-1][-10, frames.shape[2] // 2, 0] == pytest.approx(99, abs=4)
    assert imageio.imread(video.gif).shape[1:3] == video.gif_size


def test_an_environment_that_does_not_repeat_itself_is_told(tmp_path, caplog):
    pytest.importorskip("imageio")

    class Forgets(Drawn):
        def reset(self, seed=None):
            number = float(len(self.seeds))
            self._scripts = [lambda i: (2, number)]
            return super().reset(seed)

    env = Forgets(scripts()[:1])
    algorithm, result = evaluated(env, 1)
    record_episodes(algorithm, env, result, tmp_path / "a.gif")
    assert "the best one of" in caplog.text
    assert "returned 0.00, and 1.00 when it was recorded" in caplog.text


def test_only_what_can_be_drawn_is_chosen_from(tmp_path):
    pytest.importorskip("imageio")
    env = Drawn(scripts())
    env.num_drawn = 1
    algorithm, result = evaluated(env, 6)
    video = record_episodes(algorithm, env, result, tmp_path / "a.gif")
    assert [e.episode_return for e in video.episodes.values()] == [1, 3, 9]
    env.num_drawn = 0
    with pytest.raises(ConfigError, match="render_mode='rgb_array'"):
        record_episodes(algorithm, env, result, tmp_path / "a.gif")


def test_pictures_of_any_kind_are_captioned():
    pytest.importorskip("PIL")
    for shape in ((20, 30), (20, 30, 3), (20, 30, 4)):
        picture = np.asarray(captioned(np.full(shape, 99, np.uint8), ["a", "b"], 40))
        assert picture.shape[0] > 40
        assert picture.shape[1] >= 60
        assert (picture[:20] > 200).any()  # letters
        assert (picture[-30:, picture.shape[1] // 2] == 99).all()


def make_drawn(*, seed, num_parallel_environments=None, render_mode=None):
    if num_parallel_environments is None:
        return make_noise(seed=seed)
    assert render_mode == "rgb_array"
    return Drawn(scripts())


@leaky
@pytest.mark.parametrize("async_eval", [False, True])
def test_a_run_records_every_so_many_evaluations_and_the_last(
    train, tmp_path, async_eval
):
    imageio = pytest.importorskip("imageio.v3")
    pytest.importorskip("imageio_ffmpeg")

    class Waits(VideoRecorder):
        env_steps = {}  # noqa: RUF012

        def before_iter(self, training):
            training._take_late_result(wait=True)

        def after_eval(self, training, result):
            self.env_steps[result.iterations] = result.env_steps

    hook = Waits(every=2, height=40)
    result = train(
        hooks=[hook],
        create_env=make_drawn,
        num_iterations=5,
        eval_interval=1,
        async_eval=async_eval,
        **EVALUATE,
    )
    names = sorted(path.name for path in (tmp_path / "run" / "videos").iterdir())
    expected = [0, 2, 4, 5]
    env_steps = [hook.env_steps[i] for i in expected]
    assert names == [f"iteration-{i}.mp4" for i in expected]
    assert list(result.evaluation.video.episodes) == [
        "worst",
        "lower median",
        "upper median",
        "best",
    ]
    assert len(imageio.imread(tmp_path / "run" / "videos" / names[-1])) == 4
    events = EventAccumulator(
        str(tmp_path / "run" / "train"), size_guidance={"images": 0}
    ).Reload()
    images = events.Images("eval/episodes")
    assert [image.step for image in images] == env_steps
    frames = imageio.imread(images[0].encoded_image_string)
    assert frames.shape == (4, images[0].height, images[0].width, 3)


def test_a_check_leaves_no_file_and_none_as_it_was(tmp_path):
    pytest.importorskip("imageio")
    VideoFile.check(tmp_path / "new.gif")
    assert not (tmp_path / "new.gif").exists()
    (tmp_path / "old.gif").write_bytes(b"frames")
    VideoFile.check(tmp_path / "old.gif")
    assert (tmp_path / "old.gif").read_bytes() == b"frames"


def test_what_cannot_be_recorded_is_refused_before_training(train, tmp_path):
    pytest.importorskip("imageio_ffmpeg")
    with pytest.raises(ConfigError, match="VideoRecorder records evaluations"):
        train(hooks=[VideoRecorder()])

    def make_blind(*, seed, num_parallel_environments=2, render_mode=None):
        return make_noise(
            seed=seed, num_parallel_environments=num_parallel_environments
        )

    with pytest.raises(ConfigError, match="NoiseEnvironment renders nothing"):
        train(hooks=[VideoRecorder()], create_env=make_blind, **EVALUATE)
    with pytest.raises(ValueError, match="every must be at least 1"):
        VideoRecorder(every=0)


def test_every_second_evaluation_of_one_is_refused(train, monkeypatch):
    monkeypatch.setattr(videos, "check_can_record", lambda: None)
    with pytest.raises(ConfigError, match="every has no effect: the only evaluation"):
        train(hooks=[VideoRecorder(every=2)], create_env=make_drawn, **EVALUATE)
