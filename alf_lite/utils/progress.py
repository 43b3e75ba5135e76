"""How far training has come: what schedulers and summaries read."""

from __future__ import annotations

from alf_lite.errors import CheckpointError


class Progress:
    """The counters of a training run. The trainer writes them, everybody reads them.

    The slots make a misspelt counter an AttributeError.
    """

    __slots__ = ("env_steps", "global_counter", "iterations", "percent")

    percent: float  # of the whole run, in [0, 1]
    iterations: int  # finished iterations
    env_steps: int  # of all environments; FIRST steps are not counted
    global_counter: int  # the x-axis of the summaries

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Back to the start of training."""
        self.percent = 0.0
        self.iterations = 0
        self.env_steps = 0
        self.global_counter = 0

    def state_dict(self) -> dict[str, float]:
        """The counters as plain numbers."""
        return {name: getattr(self, name) for name in self.__slots__}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Takes over the counters that ``state_dict`` returned.

        Raises:
            CheckpointError: naming the counters that are missing or unknown.
        """
        if set(state) != set(self.__slots__):
            raise CheckpointError(
                f"progress: expected the counters {sorted(self.__slots__)}, "
                f"got {sorted(state)}"
            )
        for name, value in state.items():
            setattr(self, name, value)

    def __repr__(self) -> str:
        counters = ", ".join(f"{k}={v}" for k, v in self.state_dict().items())
        return f"Progress({counters})"


# One training run per process, hence one object. In tests: progress.reset().
progress = Progress()
