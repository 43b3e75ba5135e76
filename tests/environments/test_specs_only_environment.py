"""An environment without dynamics: specs, first steps, and a clear refusal."""

from __future__ import annotations

import gin
import numpy as np
import pytest
import torch
from gymnasium import spaces

from alf_lite.environments import specs_only_environment
from alf_lite.environments.creation import create_environment
from alf_lite.environments.specs_only_environment import (
    SpecsOnlyEnvironment,
    box_space,
    discrete_space,
)
from alf_lite.errors import ConfigError, EnvError
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec
from alf_lite.utils.plain_data import check_numbers

CONF = """
create_environment.env_ctor = @SpecsOnlyEnvironment
SpecsOnlyEnvironment.observation_space = {
    "image": @image/box_space(),
    "rest": (@speed/box_space(), @gear/discrete_space())}
SpecsOnlyEnvironment.action_space = @action/box_space()
image/box_space.shape = (8, 8)
image/box_space.low = 0
image/box_space.high = 255
image/box_space.dtype = "uint8"
speed/box_space.shape = (3,)
gear/discrete_space.n = 4
action/box_space.shape = (2,)
action/box_space.low = -2.0
action/box_space.high = [1.0, 3.0]
"""


@pytest.fixture(autouse=True)
def clean_gin():
    gin.clear_config()
    yield
    gin.clear_config()


def test_the_specs_are_those_of_the_spaces_in_the_conf():
    gin.parse_config(CONF)
    env = create_environment()
    assert env.observation_spec == {
        "image": BoundedTensorSpec((8, 8), torch.uint8, 0, 255),
        "rest": (TensorSpec((3,)), BoundedTensorSpec((), torch.int64, 0, 3)),
    }
    assert env.action_spec == BoundedTensorSpec((2,), torch.float32, -1, 1)
    recorded = np.array([[-2.0, -2.0], [1.0, 3.0]])
    agent = env.recorded_values.actions[()].to_agent(recorded)
    assert agent.tolist() == [[-1, -1], [1, 1]]


def test_first_steps_fit_the_specs():
    env = SpecsOnlyEnvironment(spaces.Discrete(3), spaces.Discrete(2), num_rewards=2)
    time_step = env.reset(seed=1)
    assert time_step.step_type.tolist() == [0]
    assert time_step.discount.tolist() == [1]
    assert time_step.reward.tolist() == [[0, 0]]
    assert time_step.observation.tolist() == [0]
    assert env.current_time_step is time_step


def test_a_step_is_refused_with_what_to_do():
    env = SpecsOnlyEnvironment(spaces.Discrete(3), spaces.Discrete(2))
    env.reset()
    with pytest.raises(EnvError, match="rl_train_after_update_steps"):
        env.step(torch.zeros(1, dtype=torch.int64))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SpecsOnlyEnvironment(spaces.Discrete(3)), "action_space must be"),
        (
            lambda: SpecsOnlyEnvironment({"a": 3}, spaces.Discrete(3)),
            r"observation_space\['a'\] must be a space of gymnasium, got 3",
        ),
        (discrete_space, "n must be at least 1, got None"),
        (lambda: box_space((2,), low=[1, 2, 3]), "box_space: "),
        (lambda: box_space((2,), dtype="int8"), "integers need both bounds"),
    ],
)
def test_what_is_wrong_with_the_spaces(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_choices_are_saved_as_they_are_without_negative_numbers():
    space = spaces.Tuple(
        (
            spaces.Discrete(4, start=-1),
            spaces.MultiDiscrete([3, 4], start=[1, -2]),
            spaces.Discrete(2, start=5),
            spaces.MultiBinary(3),
            spaces.MultiBinary((3,)),  # equal to that of 3? Not for gymnasium
            spaces.MultiBinary([2, 3]),
        )
    )
    data = specs_only_environment._to_data(space)
    check_numbers(data, "spaces")
    assert specs_only_environment._from_data(data) == space
