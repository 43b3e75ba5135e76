"""Whatever nesting of spaces: what gymnasium samples arrives and can be given back."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from alf_lite import nest
from alf_lite.environments.gymnasium_environment import GymnasiumEnvironment
from alf_lite.environments.serial_vector_env import SerialVectorEnv
from alf_lite.environments.space_specs import action_spec
from alf_lite.environments.space_tree import SpaceColumns, SpaceTree
from alf_lite.environments.torch_time_steps import TorchActionLeaf

SHAPES = st.sampled_from([(), (1,), (3,), (2, 2)])
FLOATS = st.sampled_from([np.float32, np.float64])
INTEGERS = st.sampled_from([np.uint8, np.int16, np.uint16, np.int64])
LEAVES = st.one_of(
    st.builds(lambda shape, dtype: spaces.Box(-2.0, 6.0, shape, dtype), SHAPES, FLOATS),
    st.builds(lambda shape: spaces.Box(-np.inf, np.inf, shape, np.float32), SHAPES),
    st.builds(lambda shape: spaces.Box(-1.0, np.inf, shape, np.float32), SHAPES),
    st.builds(lambda shape, dtype: spaces.Box(3, 99, shape, dtype), SHAPES, INTEGERS),
    st.builds(
        lambda n, start: spaces.Discrete(n, start=start),
        st.integers(1, 5),
        st.integers(-3, 3),
    ),
    st.builds(
        lambda start: spaces.MultiDiscrete([2, 5], start=[start, 1]), st.integers(-3, 3)
    ),
    st.builds(spaces.MultiBinary, st.sampled_from([3, (2, 2)])),
)
KEYS = st.sampled_from(["b", "a", "arm", "z/1"])
SPACES = st.recursive(
    LEAVES,
    lambda parts: st.one_of(
        st.dictionaries(KEYS, parts, min_size=1, max_size=3).map(spaces.Dict),
        st.lists(parts, min_size=1, max_size=3).map(spaces.Tuple),
    ),
    max_leaves=4,
)
B = 3


class Mirror(gymnasium.Env):
    """Observes samples of a space, and keeps what it was given."""

    def __init__(self, observation_space, action_space, samples):
        self.observation_space, self.action_space = observation_space, action_space
        self.samples = samples

    def reset(self, *, seed=None, options=None):
        return self.samples[0], {}

    def step(self, action):
        self.action = action
        return self.samples[1], 0.0, False, False, {}


def samples(space, num):
    space.seed(0)
    return [space.sample() for _ in range(num)]


def assert_equal(tree, one, other):
    for leaf, x, y in zip(tree.leaves, tree.split(one), tree.split(other), strict=True):
        assert np.array_equal(x, y), leaf


@given(space=SPACES)
def test_samples_are_taken_apart_stacked_and_given_back(space):
    rows, columns = samples(space, B), SpaceColumns(space, "value")
    tree = columns.tree
    numbers = list(range(len(tree.leaves)))
    assert tree.split(tree.join(numbers)) == nest.flatten(tree.join(numbers)) == numbers
    batch = columns.stack(rows)
    for leaf, array in zip(tree.leaves, tree.split(batch), strict=True):
        assert (array.shape, array.dtype) == ((B, *leaf.shape), leaf.dtype)
    arrays = tree.split(batch)
    for i, (row, again) in enumerate(zip(rows, columns.rows(batch), strict=True)):
        for element in (again, columns.row(arrays, i)):
            assert space.contains(element)  # which warns if it had to be converted
            assert_equal(tree, element, row)


@pytest.mark.ci
@settings(max_examples=50)
@given(observation_space=SPACES, action_space=SPACES)
def test_observations_and_actions_cross_the_border_and_come_back(
    observation_space, action_space
):
    seen = samples(observation_space, 2 * B)
    made = [
        Mirror(observation_space, action_space, seen[2 * i : 2 * i + 2])
        for i in range(B)
    ]
    vector_env = SerialVectorEnv([lambda env=env: env for env in made])
    env = GymnasiumEnvironment(vector_env)
    recorded = env.recorded_values
    observations = SpaceTree(observation_space, "observation")
    env.reset()
    action = nest.map_structure(lambda spec: spec.sample((B,)), env.action_spec)
    time_step = env.step(action)
    # What agents see is what a data set of the environment's own values becomes.
    arrived = observations.split(time_step.observation)
    specs = nest.flatten(env.observation_spec)
    for i in range(B):
        values = observations.split(seen[2 * i + 1])
        for leaf, x, spec, value in zip(
            recorded.observations.values(), arrived, specs, values, strict=True
        ):
            assert (x.shape[1:], x.dtype) == (spec.shape, spec.dtype)
            own = np.asarray(leaf.to_agent(np.asarray(value)[None])[0])
            assert np.array_equal(x[i], own.astype(x.numpy().dtype))
            back = leaf.to_environment(x[i : i + 1].numpy())[0]
            np.testing.assert_allclose(back, value, rtol=1e-6)
    # And what the environments are given is theirs, is what agents chose, and is the
    # same by way of torch.
    actions = SpaceTree(action_space, "action")
    in_torch = [TorchActionLeaf(x, B, torch.device("cpu")) for x in actions.leaves]
    for kept, chosen in zip(
        nest.flatten(time_step.prev_action), nest.flatten(action), strict=True
    ):
        assert torch.equal(kept, chosen)
    for i, single in enumerate(made):
        assert action_space.contains(single.action)
        for leaf, torch_leaf, value, chosen in zip(
            recorded.actions.values(),
            in_torch,
            actions.split(single.action),
            nest.flatten(action),
            strict=True,
        ):
            by_torch = torch_leaf.to_environment(torch_leaf.read(chosen))[i]
            np.testing.assert_allclose(by_torch.numpy(), value, rtol=1e-6)
            back = leaf.to_agent(np.asarray(value)[None])[0]
            np.testing.assert_allclose(back, chosen[i].numpy(), atol=1e-5)
    assert nest.map_structure(lambda s: s, action_spec(action_space)) == env.action_spec
