"""The missions of MiniGrid and BabyAI are observed where episodes differ in them."""

from __future__ import annotations

import functools
from collections import Counter

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import alf_lite
from alf_lite.environments import create_environment
from alf_lite.environments.mini_grid import (
    MISSION_WORDS,
    MiniGridObservation,
    MiniGridState,
)
from alf_lite.errors import ConfigError

# Other packages' sampling of levels speaks of levels that it rejects.
pytestmark = pytest.mark.filterwarnings("ignore")


class MissionSpace(spaces.Text):
    """As MiniGrid's: it says which missions there are."""

    def __init__(self, *missions: str) -> None:
        super().__init__(100)
        self.ordered_placeholders = [list(missions)] if len(missions) > 1 else None
        self.mission_func = lambda *chosen: chosen[0] if chosen else missions[0]


class TwoDoors(gymnasium.Env):
    """One step, and a reward for the door that the mission names; nothing to see."""

    missions = ("go to the left door", "go to the red door")

    def __init__(self, *said: str) -> None:
        self.observation_space = spaces.Dict(
            {
                "image": spaces.Box(0, 3, (1, 1, 3), np.uint8),
                "direction": spaces.Discrete(4),
                "mission": MissionSpace(*(said or self.missions)),
            }
        )
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._wanted = int(self.np_random.integers(2))
        return self._observation(), {}

    def step(self, action):
        return self._observation(), float(action == self._wanted), True, False, {}

    def _observation(self):
        return {
            "image": np.zeros((1, 1, 3), np.uint8),
            "direction": 0,
            "mission": self.missions[self._wanted],
        }


def text_of(words: np.ndarray) -> str:
    """The mission that the ids stand for; what follows it is padding."""
    text = " ".join(MISSION_WORDS[i - 1] for i in words if i)
    assert not words[len(text.split()) :].any()
    return text


@pytest.mark.ci
def test_the_default_networks_of_ppo_do_what_the_mission_says():
    wrapper = functools.partial(MiniGridObservation, max_mission_words=6)
    env = create_environment(
        env_ctor=TwoDoors, num_parallel_environments=16, seed=0, wrappers=[wrapper]
    )
    config = alf_lite.TrainerConfig(unroll_length=16, mini_batch_size=64, epochs=4)
    optimizer = alf_lite.Adam(lr=0.01)
    algorithm = alf_lite.PPOAlgorithm(env=env, config=config, optimizer=optimizer)
    for _ in range(8):
        algorithm.train_iter()
    time_step, state = env.reset(seed=1), algorithm.get_initial_predict_state(16)
    rewards = []
    for _ in range(20):
        time_step = env.step(algorithm.predict_step(time_step, state).output)
        rewards += time_step.reward[time_step.is_last()].tolist()
    env.close()
    assert len(rewards) >= 100
    assert np.mean(rewards) > 0.95  # 0.5 if the mission is not seen


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_mission_words": 4}, "is 4, but the mission has 5: 'go to the "),
        ({"vocabulary": ["go", "to", "the", "door"]}, "no '(left|red)', which is in"),
    ],
)
def test_a_mission_that_does_not_fit_is_refused(options, message):
    env = MiniGridObservation(TwoDoors(), **options)
    with pytest.raises(ConfigError, match=message):
        env.reset(seed=0)


def test_missions_that_change_are_not_dropped_in_silence():
    env = MiniGridObservation(TwoDoors(TwoDoors.missions[0]))
    assert env.observation_space.shape == (25,)  # the environment has one, it says
    with pytest.raises(ConfigError, match=r"not always .* Set MiniGridObservation"):
        for seed in range(20):
            env.reset(seed=seed)
    blind = MiniGridObservation(TwoDoors(TwoDoors.missions[0]), mission=False)
    assert {len(blind.reset(seed=seed)[0]) for seed in range(20)} == {25}


def test_a_mission_that_is_asked_for_must_be_there():
    env = gymnasium.wrappers.FilterObservation(TwoDoors(), ["image", "direction"])
    with pytest.raises(ConfigError, match="there is no mission in the observation"):
        MiniGridObservation(env, mission=True)


@pytest.mark.parametrize(
    ("env_name", "wrapper"),
    [
        ("BabyAI-GoToLocalS5N2-v0", MiniGridObservation),
        ("MiniGrid-Fetch-5x5-N2-v0", MiniGridObservation),
        (
            "MiniGrid-UnlockPickup-v0",
            functools.partial(MiniGridState, num_objects=3),
        ),
    ],
)
def test_the_ids_of_a_mission_stand_for_its_words(env_name, wrapper):
    pytest.importorskip("minigrid")
    env = wrapper(gymnasium.make(env_name))
    missions = Counter()
    for seed in range(10):
        observation, _ = env.reset(seed=seed)
        assert env.observation_space.contains(observation)
        assert text_of(observation["mission"]) == env.unwrapped.mission
        missions[env.unwrapped.mission] += 1
    assert len(missions) > 1


def test_every_level_of_mini_grid_can_be_reset():
    pytest.importorskip("minigrid")
    of_class = {
        spec.entry_point: spec.id
        for spec in gymnasium.registry.values()
        # WaveFunctionCollapse needs files that are not installed with it.
        if str(spec.entry_point).startswith("minigrid.") and "WFC" not in spec.id
    }
    assert len(of_class) > 60
    for env_name in of_class.values():
        env = MiniGridObservation(gymnasium.make(env_name), max_mission_words=72)
        observation, _ = env.reset(seed=0)
        has_mission = isinstance(env.observation_space, spaces.Dict)
        assert has_mission or "BabyAI" not in env_name
        if has_mission:
            text = env.unwrapped.mission.replace(",", "")
            assert text_of(observation["mission"]) == text
