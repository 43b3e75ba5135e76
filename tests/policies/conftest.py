"""The fixtures of the training loop."""

from tests.trainers.conftest import make_trainer, process_state, train  # noqa: F401
