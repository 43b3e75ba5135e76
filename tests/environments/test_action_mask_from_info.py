from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from gymnasium import spaces

from alf_lite.distributions.action_masks import ActionMask
from alf_lite.environments.creation import create_environment
from alf_lite.environments.wrappers import ActionMaskFromInfo
from alf_lite.errors import ConfigError, EnvError
from tests.environments.light_environments import InfoMaskEnv

BOX = spaces.Box(-1.0, 1.0, (1,), np.float32)


@pytest.mark.parametrize(
    "vectorization_mode", ["sync", pytest.param("async", marks=pytest.mark.slow)]
)
def test_the_mask_of_every_step_is_observed(vectorization_mode):
    with create_environment(
        env_ctor=InfoMaskEnv,
        wrappers=[ActionMaskFromInfo],
        num_parallel_environments=2,
        vectorization_mode=vectorization_mode,
    ) as env:
        mask = ActionMask(env.observation_spec, env.action_spec, "action_mask")
        assert set(mask.remaining_spec) == {"observation"}
        steps = [env.reset()]
        action = torch.zeros(2, dtype=torch.int64)
        steps += [env.step(action) for _ in range(6)]
    # Step 4 is the end, and the one after it the reset.
    expected = torch.eye(3, dtype=torch.int8)[[0, 1, 2, 0, 1, 0, 1]]
    for step, row in zip(steps, expected, strict=True):
        assert step.observation["observation"].shape == (2, 1)
        assert step.observation["action_mask"].dtype == torch.int8
        assert step.observation["action_mask"].tolist() == [row.tolist()] * 2


def test_a_dict_of_observations_gets_one_more_entry():
    env = ActionMaskFromInfo(
        InfoMaskEnv(observation_space=spaces.Dict({"a": BOX, "b": BOX}))
    )
    observation, info = env.reset(seed=0)
    assert set(observation) == {"a", "b", "action_mask"}
    assert "action_mask" in info
    assert env.observation_space.contains(observation)


@pytest.mark.parametrize(
    "mask",
    [
        np.array([True, False, False, True, True]),
        np.array([1.0, 0.0, 0.0, 1.0, 1.0]),
        (np.array([1, 0]), np.array([0, 1, 1], np.int8)),
        [[1, 0], [0, 1, 1]],
    ],
)
def test_masks_of_several_components_are_joined(mask):
    space = spaces.MultiDiscrete([2, 3])
    env = ActionMaskFromInfo(InfoMaskEnv(space, mask={"legal": mask}), key="legal")
    observation, _ = env.reset(seed=0)
    assert observation["legal"].tolist() == [1, 0, 0, 1, 1]
    assert env.observation_space.contains(observation)


def test_an_info_without_the_mask_is_an_error_that_names_what_there_is():
    env = create_environment(
        env_ctor=functools.partial(InfoMaskEnv, mask={"legal": np.ones(3)}),
        wrappers=[ActionMaskFromInfo],
    )
    with pytest.raises(EnvError, match=r"'action_mask' in every info, got \['legal'\]"):
        env.reset()


def test_a_mask_of_a_wrong_size_is_an_error():
    env = ActionMaskFromInfo(InfoMaskEnv(mask={"action_mask": np.ones(4)}))
    with pytest.raises(EnvError, match=r"each of the 3 values of Discrete.*got 4"):
        env.reset()


def test_other_actions_and_a_second_mask_are_refused():
    with pytest.raises(ConfigError, match=r"Discrete or MultiDiscrete.*got Box"):
        ActionMaskFromInfo(InfoMaskEnv(action_space=BOX))
    space = spaces.Dict({"action_mask": spaces.MultiBinary(3)})
    with pytest.raises(ConfigError, match="an entry 'action_mask' already"):
        ActionMaskFromInfo(InfoMaskEnv(observation_space=space))
    with pytest.raises(ConfigError, match="an entry 'observation' already"):
        ActionMaskFromInfo(InfoMaskEnv(), key="observation")
