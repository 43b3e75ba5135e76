"""Tests of alf_lite.trainers.video."""

from __future__ import annotations

import builtins

import numpy as np
import pytest

from alf_lite.errors import ConfigError
from alf_lite.trainers.video import VideoFile


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
