from __future__ import annotations

import functools

import pytest
import torch

from alf_lite.environments.creation import create_environment
from alf_lite.environments.wrappers import ObservationElements
from alf_lite.errors import ConfigError


def with_elements(indices, env_name="CartPole-v1"):
    wrapper = functools.partial(ObservationElements, indices=indices)
    return create_environment(env_name, 2, 0, wrappers=[wrapper])


def test_the_other_elements_are_hidden():
    with create_environment("CartPole-v1", 2, 0) as whole, with_elements([2, 0]) as env:
        spec, bounds = env.observation_spec, whole.observation_spec
        assert spec.shape == (2,)
        assert spec.maximum.tolist() == bounds.maximum[[2, 0]].tolist()
        seen, all_there_is = env.reset(), whole.reset()
        for _ in range(12):
            expected = all_there_is.observation[:, [2, 0]]
            assert torch.equal(seen.observation, expected)
            action = torch.ones(2, dtype=torch.int64)
            seen, all_there_is = env.step(action), whole.step(action)


@pytest.mark.parametrize("indices", [[], [0, 0], [4], [-1]])
def test_elements_that_are_not_there_are_refused(indices):
    with pytest.raises(ConfigError, match=r"ObservationElements: .* from 0 to 3, got"):
        with_elements(indices)


def test_only_a_vector_has_elements():
    with pytest.raises(ConfigError, match=r"expected one vector .* Discrete"):
        with_elements([0], "FrozenLake-v1")
