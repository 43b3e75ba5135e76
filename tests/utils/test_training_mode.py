import pytest
import torch
from torch import nn

from alf_lite.utils.training_mode import TrainingMode


class Stubborn(nn.Module):
    """Stays in evaluation, as a frozen normalization layer does."""

    def train(self, mode: bool = True) -> nn.Module:
        return super().train(False)


@pytest.mark.parametrize("part", [nn.Dropout(), Stubborn()])
def test_the_result_is_that_of_torch(part):
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(2, 2), nn.Sequential(part, nn.ReLU()))

    module, expected = make(), make()
    mode = TrainingMode(module)
    for training in (False, True, True, False):
        mode.set(training)
        expected.train(training)
        assert [m.training for m in module.modules()] == [
            m.training for m in expected.modules()
        ]


def test_layers_behave_accordingly():
    module = nn.Sequential(nn.Dropout(0.5), nn.Identity())
    mode = TrainingMode(module)
    x = torch.ones(1000)
    mode.set(False)
    assert module(x).equal(x)
    mode.set(True)
    assert not module(x).equal(x)


def test_a_module_without_parts_is_switched():
    module = nn.Dropout()
    TrainingMode(module).set(False)
    assert not module.training


def test_it_is_no_part_of_the_module_that_owns_it():
    module = nn.Linear(2, 2)
    module.mode = TrainingMode(module)
    assert [name for name, _ in module.named_modules()] == [""]
