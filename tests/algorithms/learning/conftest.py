import pytest

from alf_lite.testing.stand_in_device import StandInDevice
from alf_lite.utils import random_state


@pytest.fixture
def device():
    with random_state.preserved(), StandInDevice() as device:
        yield device
