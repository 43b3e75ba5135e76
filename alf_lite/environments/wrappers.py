"""Wrappers for single environments: Atari, masks, hidden observations.

Games are preprocessed as published scores suppose. In a conf::

    create_environment:
      env_name = "ALE/Pong-v5"
      wrappers = [@atari_preprocessing]

An observation is one frame. Everything else is left to data transformers, so that the
metrics see whole games and their true scores, and replay buffers keep each frame once:
``FrameStacker`` with ``stack_axis = 0`` joins four frames, ``RewardClipping`` clips the
rewards that are trained on, ``LifeLossDiscount`` ends their sum where a life is lost.

The emulator has a preprocessing of its own, which takes two thirds of the time and
steps several games on as many cores, but does not report lost lives. Its defaults stack
frames and clip rewards; these give the same frames and rewards as above::

    create_environment:
      env_name = "ALE/Pong-v5"
      vectorization_mode = "native"
      env_kwargs = {"stack_num": 1, "reward_clipping": False, "use_fire_reset": False}

Where the velocities of CartPole are hidden, only an agent with a memory can balance::

    create_environment.wrappers = [@ObservationElements]
    ObservationElements.indices = [0, 2]  # positions of the cart and of the pole

Masks that an environment gives in its infos are moved to where agents look for them::

    create_environment.wrappers = [@ActionMaskFromInfo]
    PPOAlgorithm.action_mask_key = "action_mask"
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box
from gymnasium.wrappers import AtariPreprocessing, TimeLimit

from alf_lite.config import configurable
from alf_lite.environments.episode_wrappers import ExtraEntry
from alf_lite.errors import ConfigError, EnvError, missing_extra
from alf_lite.utils.checks import check_count, check_not_negative

Observation = dict[str, Any]


@configurable
def atari_preprocessing(
    env: gymnasium.Env,
    *,
    frame_skip: int = 4,
    screen_size: int = 84,
    noop_max: int = 30,
    fire_reset: bool = False,
    repeat_action_probability: float | None = None,
) -> gymnasium.Env:
    """A game of the Arcade Learning Environment with uint8 observations [1, H, W].

    An action is repeated for ``frame_skip`` frames, of which the last two are joined by
    their maximum, because some games draw objects in every other frame only. The result
    is grey and scaled to ``screen_size``. A game begins with some frames of doing
    nothing. See Mnih et al., Nature 2015, and Machado et al. 2018, arXiv:1709.06009.

    A game ends when it is over, or after 108 000 frames. If a life was lost in a step,
    its info says so: ``"life_lost"`` is 1.

    Args:
        env: made from an id such as ``ALE/Pong-v5``, without any other wrapper. The
            frame skip of the id, which knows no maximum, is replaced by this one.
            ``create_environment.max_episode_steps`` counts steps, not frames.
        frame_skip: frames per step.
        screen_size: H = W.
        noop_max: a game begins with 1 to this number of frames without an action; 0
            for none.
        fire_reset: press FIRE after that, where the game has it, because some wait for
            it to begin.
        repeat_action_probability: that the console ignores an action and repeats the
            one before, in every frame: 0 in Mnih et al., 0.25 in Machado et al. None
            for what the id says, which is 0.25 for ``v5``. The other arguments of the
            game, such as ``full_action_space``, are ``create_environment.env_kwargs``.

    Raises:
        ConfigError: if ``env`` is no such environment or a number is out of range.
        EnvError: if OpenCV is not installed.
    """
    spec = _check(env, repeat_action_probability)
    spec.kwargs["frameskip"] = 1
    # What the game itself returns is not used; grey is the cheapest picture.
    spec.kwargs["obs_type"] = "grayscale"
    if repeat_action_probability is not None:
        spec.kwargs["repeat_action_probability"] = repeat_action_probability
    max_episode_steps, spec.max_episode_steps = spec.max_episode_steps, None
    env.close()
    try:
        # Older versions of gymnasium assert it, without a word.
        check_count(frame_skip=frame_skip, screen_size=screen_size)
        check_not_negative(noop_max=noop_max)
        game = AtariPreprocessing(
            gymnasium.make(spec),
            noop_max=noop_max,
            frame_skip=frame_skip,
            screen_size=screen_size,
        )
    except gymnasium.error.DependencyNotInstalled as error:
        raise missing_extra("atari_preprocessing", "atari", error) from error
    except ValueError as error:
        raise ConfigError(f"atari_preprocessing: {error}") from error
    env = _AtariGame(game, fire_reset=fire_reset)
    return env if max_episode_steps is None else TimeLimit(env, max_episode_steps)


class _AtariGame(gymnasium.Wrapper):
    """Adds a channel, FIRE and a sign of lost lives.

    Args:
        env: the preprocessed game.
        fire_reset: press FIRE where a game begins.
    """

    def __init__(self, env: AtariPreprocessing, *, fire_reset: bool) -> None:
        super().__init__(env)
        self.observation_space = Box(0, 255, (1, *env.screen_size), np.uint8)
        actions = env.get_wrapper_attr("get_action_meanings")()
        has_fire = fire_reset and "FIRE" in actions
        self._fire = actions.index("FIRE") if has_fire else None
        self._ale = env.ale
        self._num_lives = 0

    def reset(self, **kwargs: Any) -> tuple[np.ndarray, dict[str, Any]]:
        frame, info = self.env.reset(**kwargs)
        if self._fire is not None:
            frame, _, terminated, truncated, info = self.env.step(self._fire)
            if terminated or truncated:
                frame, info = self.env.reset()
        self._num_lives = self._ale.lives()
        return frame[np.newaxis], info

    def step(self, action: Any) -> tuple[np.ndarray, Any, bool, bool, dict[str, Any]]:
        frame, reward, terminated, truncated, info = self.env.step(action)
        num_lives = self._ale.lives()
        info["life_lost"] = num_lives < self._num_lives
        self._num_lives = num_lives
        return frame[np.newaxis], reward, terminated, truncated, info


def _check(env: gymnasium.Env, repeat_action_probability: float | None) -> EnvSpec:
    """A copy of the spec of ``env``, if that is a bare game.

    Raises:
        ConfigError: if not, or if the probability is none.
    """
    spec = copy.deepcopy(env.spec)
    if spec is None or not hasattr(env.unwrapped, "ale"):
        raise ConfigError(
            "atari_preprocessing: expected a game of the Arcade Learning Environment "
            f"such as 'ALE/Pong-v5', got {spec.id if spec else env}"
        )
    if spec.additional_wrappers:
        names = ", ".join(wrapper.name for wrapper in spec.additional_wrappers)
        raise ConfigError(
            "atari_preprocessing must be the first of the wrappers, but it got "
            f"{spec.id} in {names}"
        )
    if unread := spec.kwargs.keys() & {"obs_type", "sound_obs"}:
        raise ConfigError(
            "atari_preprocessing makes its observations of the screen: leave "
            f"{' and '.join(sorted(unread))} out of env_kwargs"
        )
    probability = repeat_action_probability
    if probability is not None and not 0 <= probability <= 1:
        raise ConfigError(
            "atari_preprocessing: repeat_action_probability must lie in [0, 1], got "
            f"{probability}"
        )
    return spec


@configurable
class ActionMaskFromInfo(ExtraEntry):
    """Moves a mask from the info to the observation, where agents look for it.

    The observation becomes {"action_mask": mask, "observation": what it was}. If it is
    a Dict, the mask becomes one more entry of it. The mask of several components may
    come as one array or as a sequence of arrays, one for each component.

    Args:
        env: its actions are Discrete or MultiDiscrete.
        key: of the mask in every info, and then in every observation.

    Raises:
        ConfigError: if the actions are others, or the observation has such an entry.
    """

    def __init__(self, env: gymnasium.Env, *, key: str = "action_mask") -> None:
        self._num_values = _num_values(env.action_space)
        mask_space = spaces.MultiBinary(self._num_values)
        advice = "If it is the mask, leave the wrapper out."
        super().__init__(env, key, mask_space, advice)

    def reset(self, **kwargs: Any) -> tuple[Observation, dict[str, Any]]:
        observation, info = self.env.reset(**kwargs)
        return self._with_mask(observation, info), info

    def step(self, action: Any) -> tuple[Observation, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        observation = self._with_mask(observation, info)
        return observation, reward, terminated, truncated, info

    def _with_mask(self, observation: Any, info: dict[str, Any]) -> Observation:
        if self._key not in info:
            raise EnvError(
                f"ActionMaskFromInfo: expected {self._key!r} in every info, got "
                f"{sorted(map(str, info))}"
            )
        mask = info[self._key]
        if isinstance(mask, tuple | list):
            mask = np.concatenate([np.reshape(part, -1) for part in mask])
        mask = np.asarray(mask).reshape(-1)
        if mask.size != self._num_values:
            raise EnvError(
                f"ActionMaskFromInfo: info[{self._key!r}] must have one entry for each "
                f"of the {self._num_values} values of {self.action_space}, got "
                f"{mask.size}"
            )
        return self.with_entry(observation, (mask != 0).astype(np.int8))


@configurable
class ObservationElements(gymnasium.ObservationWrapper):
    """Some of the elements of an observation; the agent does not see the others.

    Args:
        env: its observation is one vector.
        indices: of the elements, in the order in which they shall come.

    Raises:
        ConfigError: if the observation is another, or has no such elements.
    """

    def __init__(self, env: gymnasium.Env, *, indices: Sequence[int]) -> None:
        super().__init__(env)
        space = env.observation_space
        if not isinstance(space, Box) or len(space.shape) != 1:
            raise ConfigError(
                "ObservationElements: expected one vector as the observation, a Box "
                f"with one dimension, got {space}"
            )
        self._indices = np.array(indices, np.int64).reshape(-1)
        size, chosen = space.shape[0], set(self._indices.tolist())
        is_new = len(chosen) == self._indices.size > 0
        if not is_new or not all(0 <= index < size for index in chosen):
            raise ConfigError(
                "ObservationElements: indices must be one or several different numbers "
                f"from 0 to {size - 1}, got {list(indices)}"
            )
        low, high = space.low[self._indices], space.high[self._indices]
        self.observation_space = Box(low, high, dtype=space.dtype.type)

    def observation(self, observation: Any) -> np.ndarray:
        return np.asarray(observation)[self._indices]


def _num_values(space: gymnasium.Space) -> int:
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return int(space.nvec.sum())
    raise ConfigError(
        f"ActionMaskFromInfo: expected Discrete or MultiDiscrete actions, got {space}. "
        "Give the mask in the observation of your environment instead."
    )
