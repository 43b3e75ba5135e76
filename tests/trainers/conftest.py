"""Fixtures for the tests of the training loop."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from alf_lite.config import TrainerConfig
from alf_lite.trainers.trainer import OnSignal, Trainer, TrainResult
from alf_lite.utils import random_state
from tests.trainers.toys import NoiseEnvironment, ToyAlgorithm


@pytest.fixture(autouse=True)
def process_state() -> Iterator[None]:
    """Each test starts with the same globals and leaves no trace in them."""
    NoiseEnvironment.steps_of_all_instances = 0
    # A test run in the background ignores SIGINT, one under nohup SIGHUP.
    previous = {
        signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler),
        signal.SIGHUP: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    }
    with random_state.preserved():
        yield
    for number, handler in previous.items():
        signal.signal(number, handler)


def make_noise(
    *, seed: int, num_parallel_environments: int = 2, **kwargs: Any
) -> NoiseEnvironment:
    return NoiseEnvironment(num_parallel_environments, seed, **kwargs)


def build_trainer(
    root_dir: Path,
    *,
    hooks: Any = (),
    create_env: Any = make_noise,
    display: Any = None,
    on_signal: OnSignal = "return",
    **config: Any,
) -> Trainer:
    """A trainer of ToyAlgorithm; other keywords go to TrainerConfig."""
    fields = {
        "algorithm_ctor": ToyAlgorithm,
        "num_iterations": 8,
        "num_checkpoints": 4,
        "unroll_length": 5,
        "random_seed": 3,
        "summary_interval": 2,
        **config,
    }
    return Trainer(
        TrainerConfig(**fields),
        root_dir,
        hooks=hooks,
        create_env=create_env,
        display=display,
        on_signal=on_signal,
    )


@pytest.fixture
def make_trainer(tmp_path: Path) -> Callable[..., Trainer]:
    """``build_trainer`` with a directory below that of the test."""

    def make(root_dir: str = "run", **kwargs: Any) -> Trainer:
        return build_trainer(tmp_path / root_dir, **kwargs)

    return make


@pytest.fixture
def train(make_trainer: Callable[..., Trainer]) -> Callable[..., TrainResult]:
    """Builds a trainer and trains."""

    def run(*args: Any, **kwargs: Any) -> TrainResult:
        return make_trainer(*args, **kwargs).train()

    return run
