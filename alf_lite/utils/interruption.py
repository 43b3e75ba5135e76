"""What an interrupted iteration leaves behind, noted by the code that knows it.

An iteration acts, stores what it collected, and updates parameters. While it acts and
waits for others, it can be broken off at any instruction: nothing that was learned or
stored has changed. Until the first parameter changes, what was learned is that of the
last whole iteration, so that it may be saved.
"""

from __future__ import annotations


class Interruption:
    """Facts about this moment. The slots make a misspelt one an AttributeError."""

    __slots__ = ("in_iteration", "is_harmless", "parameters_changed")

    in_iteration: bool  # what is open, such as episodes, goes on from here only
    is_harmless: bool  # whether any instruction may raise without leaving a half thing
    parameters_changed: bool  # since the last whole iteration

    def __init__(self) -> None:
        self.end_iteration()

    def begin_iteration(self) -> None:
        """From here on things change, but for the blocks that say they do not."""
        self.in_iteration = True
        self.is_harmless = False

    def end_iteration(self) -> None:
        """Between two iterations all is whole."""
        self.in_iteration = False
        self.is_harmless = True
        self.parameters_changed = False


# One training run per process, hence one object.
interruption = Interruption()
