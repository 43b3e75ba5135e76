"""An environment whose steps can be told apart, and that fails when a file asks it to.

It is known by an id, so that its process needs neither the conf nor torch.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from alf_lite.testing.fault_environment import FAULTS

STEP_SECONDS = 0.001


class StampedEnv(gymnasium.Env):
    """Observes (its number, steps it has taken, steps of the episode).

    Episodes have 1 to 20 steps. Every instance writes its process id into
    ``pids/NUMBER``, and every step a byte into ``steps``; the first one makes the file
    ``begun/PROCESS_ID``. Whoever finds the file ``fault`` takes it away and does what
    it says, a key of ``FAULTS``.

    Args:
        state_dir: of these files.
    """

    observation_space = spaces.Box(-1, 1e6, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, state_dir: str = "") -> None:
        self._directory = Path(state_dir)
        self._number = self._register()
        self._num_steps = 0
        self._steps = os.open(
            self._directory / "steps", os.O_CREAT | os.O_WRONLY | os.O_APPEND
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._length = int(self.np_random.integers(1, 21))
        self._time = 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        time.sleep(STEP_SECONDS)
        self._fail_if_asked()
        os.write(self._steps, b"s")
        if self._num_steps == 0:
            (self._directory / "begun").mkdir(exist_ok=True)
            (self._directory / "begun" / str(os.getpid())).touch()
        self._num_steps += 1
        self._time += 1
        ended = self._time == self._length
        return self._observation(), 1.0, ended, False, {}

    def close(self) -> None:
        os.close(self._steps)

    def _register(self) -> int:
        (self._directory / "pids").mkdir(exist_ok=True)
        number = 0
        while True:
            try:
                with (self._directory / "pids" / str(number)).open("x") as file:
                    file.write(str(os.getpid()))
                return number
            except FileExistsError:
                number += 1

    def _fail_if_asked(self) -> None:
        asked = self._directory / "fault"
        if not asked.exists():
            return
        taken = self._directory / f"fault_of_{self._number}_{self._num_steps}"
        try:
            asked.rename(taken)
        except FileNotFoundError:  # another one was faster
            return
        FAULTS[taken.read_text()]()

    def _observation(self) -> np.ndarray:
        return np.array([self._number, self._num_steps, self._time], np.float32)


gymnasium.register("Stamped-v0", f"{__name__}:StampedEnv")
