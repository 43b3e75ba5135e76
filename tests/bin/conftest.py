"""Fixtures for the tests of the programs."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from alf_lite.bin import train
from alf_lite.config import files as config_files
from alf_lite.utils import random_state

CONF = """
# A small PPO for the tests.
create_environment.env_name = "CartPole-v1"
create_environment.num_parallel_environments = 4

TrainerConfig:
  algorithm_ctor = @PPOAlgorithm
  num_iterations = 4
  num_checkpoints = 2
  unroll_length = 16
  evaluate = True
  num_eval_episodes = 3

PPOAlgorithm.optimizer = @Adam()
Adam.lr = 0.001
ActorDistributionNetwork.fc_layer_params = (16,)
ValueNetwork.fc_layer_params = (16,)
"""


@pytest.fixture(autouse=True)
def process_state() -> Iterator[None]:
    """Each test starts as in a new process and leaves no trace."""
    config_files.reset()
    # A test run started in the background ignores SIGINT.
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    with random_state.preserved():
        yield
    signal.signal(signal.SIGINT, previous)
    config_files.reset()


@pytest.fixture(scope="session")
def conf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("conf") / "small.gin"
    path.write_text(CONF)
    return path


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, conf: Path) -> Path:
    """The root_dir of a finished run, to be read only."""
    root_dir = tmp_path_factory.mktemp("trained") / "run"
    config_files.reset()
    assert train.main([f"--conf={conf}", f"--root_dir={root_dir}", "--seed=5"]) == 0
    config_files.reset()
    return root_dir
