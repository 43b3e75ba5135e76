"""Atari games: a scripted stand-in for every rule, the real console where it is."""

from __future__ import annotations

import importlib.util
import sys
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from alf_lite.config import files as config_files
from alf_lite.data_structures import StepType
from alf_lite.environments.creation import create_environment
from alf_lite.environments.wrappers import atari_preprocessing
from alf_lite.errors import ConfigError, MissingExtraError

HEIGHT, WIDTH = 210, 160
GAME_OVER = 40  # frames


class ScriptedConsole:
    """Two lives: one is lost in frame 10, the other in the last frame."""

    def __init__(self):
        self.frame = 0
        self.is_over = False

    def lives(self):
        return 2 - (self.frame >= 10) - self.is_over

    def getScreenGrayscale(self, buffer):
        # The left half shows the even frames, the right half the odd ones.
        buffer[:] = 0
        half = (
            slice(None, WIDTH // 2) if self.frame % 2 == 0 else slice(WIDTH // 2, None)
        )
        buffer[:, half] = self.frame


class ScriptedGame(gymnasium.Env):
    """Every frame is worth 3; the actions of all frames are remembered."""

    def __init__(
        self,
        frameskip=4,
        repeat_action_probability=0.25,
        obs_type="rgb",
        meanings=("NOOP", "FIRE", "UP"),
        sound_obs=False,
        render_mode=None,
    ):
        self._frameskip = frameskip
        self.repeat_action_probability = repeat_action_probability
        self.meanings = list(meanings)
        self.render_mode = render_mode
        shape = (HEIGHT, WIDTH) if obs_type == "grayscale" else (HEIGHT, WIDTH, 3)
        self.observation_space = spaces.Box(0, 255, shape, np.uint8)
        self.action_space = spaces.Discrete(len(meanings))
        self.ale = ScriptedConsole()
        self.actions = []

    def get_action_meanings(self):
        return self.meanings

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.ale.frame, self.ale.is_over = 0, False
        self.actions = []
        return self.observation_space.low, {"lives": 2}

    def step(self, action):
        for _ in range(self._frameskip):
            self.ale.frame += 1
            self.actions.append(int(action))
        self.ale.is_over = self.ale.frame >= GAME_OVER
        info = {"lives": self.ale.lives()}
        reward = 3.0 * self._frameskip
        return self.observation_space.low, reward, self.ale.is_over, False, info


def area_means(image, size, interpolation):
    """What OpenCV does for the scripted screens, whose halves are of one color."""
    width, height = size
    columns = np.linspace(0, image.shape[1], width, endpoint=False).astype(int)
    rows = np.linspace(0, image.shape[0], height, endpoint=False).astype(int)
    return image[np.ix_(rows, columns)]


@pytest.fixture(autouse=True)
def _no_bindings():
    config_files.reset()
    yield
    config_files.reset()


@pytest.fixture
def scripted(monkeypatch):
    """The id of the scripted game, which needs neither emulator nor OpenCV."""
    stub = SimpleNamespace(resize=area_means, INTER_AREA=None)
    monkeypatch.setitem(sys.modules, "cv2", stub)
    gymnasium.register("Scripted-v0", entry_point=ScriptedGame)
    yield "Scripted-v0"
    del gymnasium.registry["Scripted-v0"]


def preprocessed(env_id, *, make=None, **options):
    env = gymnasium.make(env_id, disable_env_checker=True, **(make or {}))
    return atari_preprocessing(env, **options)


# The stand-in


def test_an_observation_is_one_frame_of_bytes_with_a_channel(scripted):
    env = preprocessed(scripted, noop_max=0)
    assert env.observation_space == spaces.Box(0, 255, (1, 84, 84), np.uint8)
    frame, _ = env.reset(seed=0)
    assert env.observation_space.contains(frame)
    small = preprocessed(scripted, noop_max=0, screen_size=42)
    assert small.reset(seed=0)[0].shape == (1, 42, 42)


@pytest.mark.parametrize("frame_skip", [1, 2, 4])
def test_an_action_is_repeated_and_its_rewards_are_summed_unclipped(
    scripted, frame_skip
):
    env = preprocessed(scripted, noop_max=0, frame_skip=frame_skip)
    env.reset(seed=0)
    _, reward, terminated, truncated, _ = env.step(2)
    assert reward == 3 * frame_skip
    assert env.unwrapped.actions == [2] * frame_skip
    assert not terminated
    assert not truncated


def test_a_frame_is_the_maximum_of_the_last_two(scripted):
    env = preprocessed(scripted, noop_max=0)
    env.reset(seed=0)
    frame, *_ = env.step(0)
    assert (frame[0, :, :42] == 4).all()
    assert (frame[0, :, 42:] == 3).all()


def test_a_game_begins_with_some_frames_of_doing_nothing(scripted):
    env = preprocessed(scripted, noop_max=5)
    counts = set()
    for seed in range(30):
        env.reset(seed=seed)
        counts.add(env.unwrapped.ale.frame)
        assert set(env.unwrapped.actions) == {0}
    assert counts == {1, 2, 3, 4, 5}


def test_fire_is_pressed_where_a_game_begins_if_it_has_that(scripted):
    env = preprocessed(scripted, noop_max=0, fire_reset=True)
    frame, _ = env.reset(seed=0)
    assert env.unwrapped.actions == [1] * 4
    assert (frame[0, :, :42] == 4).all()
    without = preprocessed(
        scripted, make={"meanings": ("NOOP", "UP")}, noop_max=0, fire_reset=True
    )
    without.reset(seed=0)
    assert without.unwrapped.actions == []


def test_a_lost_life_is_reported_and_the_game_goes_on(scripted):
    env = preprocessed(scripted, noop_max=0)
    env.reset(seed=0)
    lost, ended = [], []
    for _ in range(GAME_OVER // 4):
        _, _, terminated, truncated, info = env.step(0)
        lost.append(bool(info["life_lost"]))
        ended.append(terminated or truncated)
    assert lost == [False, False, True, *[False] * 6, True]  # frames 10 and 40
    assert ended == [False] * 9 + [True]


def test_the_lives_of_a_new_game_are_not_compared_with_those_of_the_last(scripted):
    env = preprocessed(scripted, noop_max=0)
    env.reset(seed=0)
    for _ in range(GAME_OVER // 4):
        env.step(0)
    env.reset()
    assert not env.step(0)[4]["life_lost"]
    late = preprocessed(scripted, noop_max=0, fire_reset=True, frame_skip=12)
    late.reset(seed=0)  # FIRE takes longer than the first life
    assert not late.step(0)[4]["life_lost"]


def test_the_probability_of_repeated_actions_is_that_of_the_id_unless_given(scripted):
    def probability(**options):
        return preprocessed(scripted, **options).unwrapped.repeat_action_probability

    assert probability() == 0.25
    assert probability(repeat_action_probability=0.0) == 0.0
    assert probability(make={"repeat_action_probability": 0.5}) == 0.5


def test_a_limit_of_steps_does_not_count_frames(scripted):
    env = create_environment(
        scripted, seed=0, wrappers=[_without_noops], max_episode_steps=7
    )
    env.reset()
    types = [int(env.step(torch.tensor([0])).step_type) for _ in range(7)]
    assert types == [StepType.MID] * 6 + [StepType.LAST]
    assert env.current_time_step.discount.item() == 1


def _without_noops(env):
    return atari_preprocessing(env, noop_max=0)


def test_lost_lives_come_as_env_info(scripted):
    env = create_environment(
        scripted, seed=0, wrappers=[_without_noops], env_info_keys=["life_lost"]
    )
    env.reset()
    steps = [env.step(torch.tensor([0])) for _ in range(4)]
    assert [step.env_info["life_lost"].item() for step in steps] == [0, 0, 1, 0]
    assert [step.discount.item() for step in steps] == [1, 1, 1, 1]


def test_a_conf_configures_it(scripted):
    config_files.parse_config_text(
        f"""
        create_environment.env_name = "{scripted}"
        create_environment.wrappers = [@atari_preprocessing]
        atari_preprocessing.screen_size = 40
        """
    )
    assert create_environment().observation_spec.shape == (1, 40, 40)


# Bad input


def test_other_environments_are_refused():
    with pytest.raises(ConfigError, match="such as 'ALE/Pong-v5', got CartPole-v1"):
        atari_preprocessing(gymnasium.make("CartPole-v1"))


def test_it_must_be_the_first_wrapper(scripted):
    wrapped = gymnasium.wrappers.ClipReward(gymnasium.make(scripted), -1, 1)
    with pytest.raises(ConfigError, match=r"first of the wrappers.*ClipReward"):
        atari_preprocessing(wrapped)


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        ({"obs_type": "ram"}, {}, "leave obs_type out of env_kwargs"),
        ({"sound_obs": True}, {}, "leave sound_obs out of env_kwargs"),
        ({}, {"repeat_action_probability": 1.5}, r"must lie in \[0, 1\], got 1.5"),
        ({}, {"frame_skip": 0}, "frame_skip must be a positive integer"),
        ({}, {"noop_max": -1}, "noop_max must not be negative"),
        ({}, {"screen_size": 0}, "screen_size must be a positive integer"),
    ],
)
def test_settings_that_make_no_sense_are_refused(scripted, make, options, message):
    with pytest.raises(ConfigError, match=message):
        preprocessed(scripted, make=make, **options)


def test_missing_opencv_names_the_extra(scripted, monkeypatch):
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'alf_lite\[atari\]'"):
        create_environment(scripted, wrappers=[atari_preprocessing])


# The real console

needs_atari = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("ale_py", "cv2"))),
    reason="needs pip install 'alf_lite[atari]'",
)


def _deterministic(env):
    return atari_preprocessing(env, noop_max=0, repeat_action_probability=0.0)


@needs_atari
def test_frames_and_rewards_are_those_of_the_emulator():
    import cv2

    env = create_environment("ALE/SpaceInvaders-v5", seed=0, wrappers=[_deterministic])
    raw = gymnasium.make(
        "ALE/SpaceInvaders-v5",
        frameskip=1,
        repeat_action_probability=0.0,
        obs_type="grayscale",
        disable_env_checker=True,
    )
    env.reset()
    raw.reset(seed=0)
    actions = np.random.default_rng(0).integers(0, 6, 120)
    total = 0.0
    for action in actions:
        step = env.step(torch.tensor([action]))
        frames, reward = [], 0.0
        for _ in range(4):
            frame, frame_reward, *_ = raw.step(action)
            frames.append(frame)
            reward += frame_reward
        expected = cv2.resize(
            np.maximum(frames[-2], frames[-1]), (84, 84), interpolation=cv2.INTER_AREA
        )
        assert np.array_equal(step.observation[0, 0].numpy(), expected)
        assert step.reward.item() == reward
        total += reward
    assert total >= 5  # the least that an invader is worth
    env.close()
    raw.close()


@needs_atari
def test_v5_repeats_actions_and_has_the_actions_of_the_game():
    env = create_environment("ALE/Pong-v5", seed=0, wrappers=[atari_preprocessing])
    game = env.vector_env.envs[0].unwrapped
    assert game.ale.getFloat("repeat_action_probability") == 0.25
    assert env.action_spec.maximum == 5
    full = create_environment(
        "ALE/Pong-v5",
        wrappers=[atari_preprocessing],
        env_kwargs={"full_action_space": True},
    )
    assert full.action_spec.maximum == 17


def _play(mode, num_steps=40):
    env = create_environment(
        "ALE/Breakout-v5",
        2,
        seed=3,
        wrappers=[atari_preprocessing],
        vectorization_mode=mode,
    )
    generator = torch.Generator().manual_seed(0)
    frames = [env.reset().observation]
    for _ in range(num_steps):
        action = torch.randint(0, 4, (2,), generator=generator)
        frames.append(env.step(action).observation)
    env.close()
    return torch.stack(frames)


@needs_atari
def test_the_same_seed_gives_the_same_games_in_one_process_and_in_several():
    frames = _play("sync")
    assert torch.equal(_play("sync"), frames)
    assert torch.equal(_play("async"), frames)
    assert not torch.equal(frames[:, 0], frames[:, 1])


@needs_atari
def test_all_lives_of_breakout_are_one_episode():
    env = create_environment(
        "ALE/Breakout-v5",
        seed=0,
        wrappers=[atari_preprocessing],
        env_info_keys=["life_lost", "lives"],
    )
    env.reset()
    lives = []
    step = env.step(torch.tensor([1]))
    while step.step_type != StepType.LAST:
        if step.env_info["life_lost"]:
            lives.append(int(step.env_info["lives"]))
            assert step.discount == 1
        step = env.step(torch.tensor([1]))  # FIRE begins every life
    assert lives == [4, 3, 2, 1]
    assert step.env_info["life_lost"] == 1
    assert step.discount == 0
    env.close()


@needs_atari
def test_the_emulators_own_preprocessing_gives_the_same_game():
    ours = create_environment("ALE/Breakout-v5", seed=0, wrappers=[_deterministic])
    native = create_environment(
        "ALE/Breakout-v5",
        seed=0,
        vectorization_mode="native",
        env_kwargs={
            "stack_num": 1,
            "reward_clipping": False,
            "use_fire_reset": False,
            "noop_max": 0,
            "repeat_action_probability": 0.0,
        },
    )
    assert native.observation_spec == ours.observation_spec
    assert native.action_spec == ours.action_spec
    step, native_step = ours.reset(), native.reset()
    num_games = 1
    for action in np.random.default_rng(0).choice([1, 1, 1, 2, 3], 400):
        assert torch.equal(native_step.step_type, step.step_type)
        assert torch.equal(native_step.reward, step.reward)
        assert torch.equal(native_step.discount, step.discount)
        if step.discount == 1:
            assert torch.equal(native_step.observation, step.observation)
        num_games += int(step.is_last())
        step = ours.step(torch.tensor([action]))
        native_step = native.step(torch.tensor([action]))
    assert num_games > 1
    ours.close()
    native.close()


@needs_atari
def test_the_game_can_be_drawn():
    env = create_environment(
        "ALE/Pong-v5", wrappers=[atari_preprocessing], render_mode="rgb_array"
    )
    env.reset()
    assert env.render().shape == (HEIGHT, WIDTH, 3)
    env.close()
