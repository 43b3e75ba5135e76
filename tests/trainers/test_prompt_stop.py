"""A run stops promptly although the processes of its environments hang."""

from __future__ import annotations

import functools
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from alf_lite.environments.creation import create_environment
from alf_lite.trainers import signals
from tests.environments.light_environments import Hangs
from tests.trainers.toys import ToyAlgorithm


class Stopped(ToyAlgorithm):
    """This process gets signals in its third iteration, when an environment hangs."""

    numbers: tuple[signal.Signals, ...] = ()
    path = Path()

    def after_train_iter(self, root_inputs, rollout_info):
        super().after_train_iter(root_inputs, rollout_info)
        if self.num_updates == 2:
            threading.Thread(target=self._send, daemon=True).start()

    def _send(self) -> None:
        while not Stopped.path.exists():
            time.sleep(0.05)
        for number in Stopped.numbers:
            time.sleep(0.5)  # two signals of one kind would count as one
            os.kill(os.getpid(), number)


def create(path: Path, *, seed: int):
    return create_environment(
        env_ctor=functools.partial(Hangs, path),
        num_parallel_environments=2,
        vectorization_mode="async",
        seed=seed,
    )


@pytest.mark.ci
@pytest.mark.parametrize(
    "numbers",
    [(signal.SIGHUP,), (signal.SIGINT, signal.SIGINT)],
    ids=["SIGHUP", "Ctrl-C twice"],
)
def test_hanging_processes_are_killed_and_the_run_is_saved(
    train, tmp_path, numbers, monkeypatch
):
    monkeypatch.setattr(signals, "PATIENCE_SECONDS", 0.3)
    Stopped.numbers, Stopped.path = numbers, tmp_path / "hangs"
    create_env = functools.partial(create, Stopped.path)
    result = train(create_env=create_env, algorithm_ctor=Stopped, num_checkpoints=1)
    assert result.stop_signal == numbers[0]
    assert result.iterations == 2
    assert result.checkpoint == tmp_path / "run" / "checkpoints" / "ckpt-2"
    assert result.note.startswith("Stopped in iteration 3. Kept: ")
