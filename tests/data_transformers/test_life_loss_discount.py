"""Returns end where a life is lost, episodes do not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from alf_lite.data_structures import Experience, StepType, TimeStep
from alf_lite.data_transformers.life_loss_discount import LifeLossDiscount
from alf_lite.errors import ConfigError
from alf_lite.tensor_specs import TensorSpec

FIRST, MID, LAST = int(StepType.FIRST), int(StepType.MID), int(StepType.LAST)


def game(**changes):
    """One game [1, 6]: a life is lost at step 2, all are at step 4."""
    fields = {
        "step_type": torch.tensor([[FIRST, MID, MID, MID, LAST, FIRST]]),
        "reward": torch.arange(6.0).unsqueeze(0),
        "discount": torch.tensor([[1.0, 1.0, 1.0, 1.0, 0.0, 1.0]]),
        "observation": torch.arange(6.0).reshape(1, 6, 1),
        "env_info": {"life_lost": torch.tensor([[0.0, 0.0, 1.0, 0.0, 1.0, 0.0]])},
    }
    return TimeStep(**(fields | changes))


def test_the_discount_is_0_where_a_life_is_lost():
    steps = game()
    changed = LifeLossDiscount(TensorSpec((1,))).transform(steps)
    assert changed.discount.tolist() == [[1.0, 1.0, 0.0, 1.0, 0.0, 1.0]]
    assert changed.discount.dtype == torch.float32


def test_nothing_else_changes():
    steps = game()
    changed = LifeLossDiscount(TensorSpec((1,))).transform(steps)
    for name in TimeStep._fields:
        if name != "discount":
            assert getattr(changed, name) is getattr(steps, name)
    assert steps.discount.tolist() == [[1.0, 1.0, 1.0, 1.0, 0.0, 1.0]]


def test_a_time_limit_without_a_lost_life_is_still_bootstrapped():
    steps = game(discount=torch.ones(1, 6), env_info={"life_lost": torch.zeros(1, 6)})
    changed = LifeLossDiscount(TensorSpec((1,))).transform(steps)
    assert changed.discount.tolist() == [[1.0] * 6]


def test_acting_and_training_see_the_same():
    transformer = LifeLossDiscount(TensorSpec((1,)))
    steps = game()
    trained = transformer.transform_experience(Experience(time_step=steps)).time_step
    acted, state = transformer.transform_timestep(steps, ())
    assert state == ()
    assert torch.equal(trained.discount, acted.discount)


def test_another_key_can_say_it():
    steps = game(env_info={"crashed": torch.tensor([[0.0, 2.0, 0.0, 0.0, 0.0, 0.0]])})
    transformer = LifeLossDiscount(TensorSpec((1,)), info_key="crashed")
    assert transformer.transform(steps).discount[0, 1] == 0


@pytest.mark.parametrize(
    ("env_info_spec", "message"),
    [
        ((), r"Pong has no env_info 'life_lost'.*env_info_keys = \['life_lost'\]"),
        ({"lives": TensorSpec(())}, r"Pong has no env_info 'life_lost'"),
        ({"life_lost": TensorSpec((2,))}, r"Pong has shape \(2,\) for the env_info"),
    ],
)
def test_an_environment_that_does_not_say_it_is_refused(env_info_spec, message):
    env = SimpleNamespace(name="Pong", env_info_spec=env_info_spec)
    with pytest.raises(ConfigError, match=message):
        LifeLossDiscount(TensorSpec((1,))).set_environment(env)


def test_an_environment_that_says_it_is_accepted():
    env = SimpleNamespace(name="Pong", env_info_spec={"life_lost": TensorSpec(())})
    LifeLossDiscount(TensorSpec((1,))).set_environment(env)
