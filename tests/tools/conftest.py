"""The fixtures of the programs, and of the training loop."""

from tests.bin.conftest import conf, process_state, trained  # noqa: F401
from tests.trainers.conftest import make_trainer, train  # noqa: F401
