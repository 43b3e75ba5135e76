"""Tests of the train program."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import alf_lite.bin
from alf_lite.bin import train
from alf_lite.checkpoints.checkpointer import Checkpointer
from alf_lite.config import files as config_files
from tests.trainers.run_comparison import assert_same_run


def run(*arguments: str) -> int:
    """One call of the program, as in a process of its own."""
    config_files.reset()
    return train.main(arguments)


def test_tells_the_score_and_what_to_do_next(conf, tmp_path, capsys):
    root_dir = tmp_path / "a run"
    assert run(f"--conf={conf}", f"--root_dir={root_dir}", "--seed=1") == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert re.fullmatch(
        r"Trained 4 iterations, \d+ environment steps in 0:00:\d\d \(finished\)\.",
        lines[0],
    )
    assert re.match(
        r"Evaluation:   mean return [\d.]+, 95 % confidence interval "
        r"\[[\d.]+, [\d.]+\], 3 episodes",
        lines[1],
    )
    assert lines[2:] == [
        f"Checkpoint:   {root_dir}/checkpoints/ckpt-4",
        f"TensorBoard:  tensorboard --logdir='{root_dir}'",
        f"Watch it:     python -m alf_lite.bin.play --root_dir='{root_dir}' --render",
        f"Record it:    python -m alf_lite.bin.play --root_dir='{root_dir}' "
        "--record_file=play.mp4",
    ]
    assert "100%  iteration 4" in captured.err
    assert json.loads((root_dir / "run.json").read_text())["seed"] == 1


@pytest.mark.ci
def test_again_is_finished_and_a_higher_limit_continues(conf, tmp_path, capsys):
    root_dir = f"--root_dir={tmp_path}"
    assert run(f"--conf={conf}", root_dir, "--seed=1") == 0
    capsys.readouterr()
    assert run(f"--conf={conf}", root_dir, "--seed=1") == 0
    assert "already finished: 4 iterations" in capsys.readouterr().out
    # The configuration of the run is at hand.
    assert run(root_dir, "--gin_param=TrainerConfig.num_iterations = 6") == 0
    captured = capsys.readouterr()
    assert "Trained 6 iterations" in captured.out
    assert "Resuming from" in captured.err
    assert "The configuration differs" in captured.err
    assert run(root_dir) == 0
    assert "already finished: 6 iterations" in capsys.readouterr().out


@pytest.mark.ci
def test_saved_configuration_repeats_the_run(trained, tmp_path):
    again = tmp_path / "again"
    assert run(f"--conf={trained / 'operative.gin'}", f"--root_dir={again}") == 0
    assert_same_run(trained, again)
    once_more = tmp_path / "once_more"
    assert run(f"--conf={trained / 'user.gin'}", f"--root_dir={once_more}") == 0
    assert_same_run(trained, once_more)


def test_lost_configuration_comes_back_from_a_checkpoint(trained, tmp_path, capsys):
    root_dir = tmp_path / "run"
    shutil.copytree(trained, root_dir)
    os.truncate(root_dir / "user.gin", 0)
    assert run(f"--root_dir={root_dir}") == 0
    captured = capsys.readouterr()
    assert "already finished" in captured.out
    assert "user.gin was empty or damaged; it is restored from" in captured.err
    assert (root_dir / "user.gin").read_text() == (trained / "user.gin").read_text()


def test_missing_conf_lists_those_that_come_with_the_library(capsys):
    assert run() == 2
    assert "  ppo_cart_pole\n" in capsys.readouterr().err


@pytest.mark.ci
def test_divergence_is_exit_code_5_and_keeps_the_last_good_checkpoint(
    conf, tmp_path, capsys
):
    root_dir = f"--root_dir={tmp_path}"
    assert run(f"--conf={conf}", root_dir) == 0
    more = ["TrainerConfig.num_iterations = 50", "Adam.lr = 1e38"]
    assert run(root_dir, *(f"--gin_param={p}" for p in more)) == 5
    error = capsys.readouterr().err
    assert "Traceback" not in error
    assert re.search(r"Stopped in iteration \d+\. Kept: .*ckpt-\d+", error)
    loaded = Checkpointer(tmp_path / "checkpoints").load(resumable=True)
    for value in loaded.state["algorithm"].values():
        assert torch.isfinite(value).all()


def test_checkpoint_of_another_algorithm_is_exit_code_3(trained, conf, capsys):
    other = conf.with_name("other.gin")
    other.write_text(
        conf.read_text()
        .replace("ppo_algorithm", "actor_critic_algorithm")
        .replace("PPOAlgorithm", "ActorCriticAlgorithm")
    )
    assert run(f"--conf={other}", f"--root_dir={trained}") == 3
    assert "was written by PPOAlgorithm" in capsys.readouterr().err


def test_deterministic_torch_can_be_forced(conf, tmp_path):
    arguments = [f"--conf={conf}", f"--root_dir={tmp_path}"]
    try:
        assert run(*arguments, "--force_torch_deterministic") == 0
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


# In processes of their own


def start(*arguments: str, hash_seed: str = "random") -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "alf_lite.bin.train", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
    )


def wait_for_checkpoint(
    root_dir: Path, process: subprocess.Popen, step: int = 1
) -> None:
    """Returns when there is a checkpoint of ``step`` or a later one."""
    directory = root_dir / "checkpoints"
    deadline = time.monotonic() + 60
    while not any(
        int(path.name.removeprefix("ckpt-")) >= step
        for path in directory.glob("ckpt-*")
    ):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_that_python_keeps_before_training_ends_the_program(
    conf, tmp_path, monkeypatch, capsys
):
    class Interrupts:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)

    parse = config_files.parse_config

    def parse_and_interrupt(*args, **kwargs) -> None:
        parse(*args, **kwargs)
        Interrupts()

    monkeypatch.setattr(config_files, "parse_config", parse_and_interrupt)
    monkeypatch.setattr(alf_lite.bin, "_was_interrupted", False)
    signal.signal(signal.SIGINT, alf_lite.bin._handle)  # as in a process of its own
    assert run(f"--conf={conf}", f"--root_dir={tmp_path / 'run'}") == 130
    assert capsys.readouterr().err.endswith("Interrupted.\n")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_stopped_and_resumed_in_new_processes_equals_uninterrupted(
    conf, tmp_path, mode
):
    limits = [
        f"--gin_param=create_environment.vectorization_mode = '{mode}'",
        "--gin_param=TrainerConfig.num_iterations = 400",
        "--gin_param=TrainerConfig.num_checkpoints = 20",
        "--gin_param=TrainerConfig.eval_interval = 70",
    ]

    def begin(name: str, hash_seed: str) -> subprocess.Popen:
        root_dir = f"--root_dir={tmp_path / name}"
        arguments = [f"--conf={conf}", root_dir, "--seed=1", *limits]
        return start(*arguments, hash_seed=hash_seed)

    straight = begin("straight", "1")
    for step, number in (
        (20, signal.SIGKILL),
        (80, signal.SIGTERM),
        (140, signal.SIGINT),
        (260, signal.SIGKILL),
    ):
        process = begin("resumed", str(step))
        wait_for_checkpoint(tmp_path / "resumed", process, step)
        os.killpg(process.pid, number)
        _, error = process.communicate()
        assert "New episodes" not in error
    last = begin("resumed", "5")
    for process in (straight, last):
        _, error = process.communicate(timeout=120)
        assert process.returncode == 0, error
    assert_same_run(tmp_path / "straight", tmp_path / "resumed")
