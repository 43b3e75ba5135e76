"""How open episodes are remembered, and brought back in another process.

An episode is what its random numbers and its actions make of it. Before every reset the
state of the environment's generators is noted, and from there on its actions. To bring
the episode back, a new environment gets the same generators, is reset and takes the
same actions; whether it did the same is compared by whoever knows the last step.

Without torch, see space_tree.
"""

from __future__ import annotations

import base64
import contextlib
import json
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from alf_lite.environments.single_env import ENV_FAILURES, refuse_reset
from alf_lite.errors import exception_text

_CANNOT_READ = "its generators cannot be read"
_OTHER_SOURCES = (
    "there are not as many generators as at the checkpoint: another vectorization_mode "
    "or other wrappers"
)
_OTHER_NUMBERS = "the replay drew other random numbers"

# () or a seed → (observation, info)
Reset = Callable[[int | None], tuple[Any, dict]]


def lost_start(reason: str) -> str:
    """In place of what ``OpenEpisode.save`` returns, if it is known to be of no use."""
    return _to_json({"reason": reason})


class _Source(NamedTuple):
    """One generator: reads its state, and writes what JSON has made of that."""

    read: Callable[[], Any]
    write: Callable[[Any], None]


class OpenEpisode:
    """Remembers how the open episode of one environment began.

    Looked at are ``np_random`` of the unwrapped environment, the emulator of Atari
    games, and what an environment says itself: if it, or wrappers, have the methods
    ``get_random_state()``, which returns JSON data, and ``set_random_state(data)``,
    they are called.

    Args:
        env: is not changed.
        owns_globals: the global generators of this process are the environment's alone.
    """

    def __init__(self, env: gymnasium.Env, *, owns_globals: bool = False) -> None:
        self._env = env
        self._owns_globals = owns_globals
        self._sources: list[_Source] | None = None  # once the environment is in use
        self._seed: int | None = None  # of the latest reset that had one
        self._start: list[Any] | None = None  # of the sources; None: the seed says all
        self._reason = ""  # why the episode cannot be brought back
        self._was_reset = False
        self._old_world: Any = None  # of Box2D, before a reset that was not the first

    def _note(self, seed: int | None) -> None:
        was_reset, self._was_reset = self._was_reset, True
        if seed is not None:
            self._old_world = _box2d_world(self._env) if was_reset else None
            self._seed, self._start, self._reason = seed, None, ""
            return
        try:
            if self._sources is None:
                self._sources = self._find_sources()
                self._old_world = _box2d_world(self._env)
            self._start = [source.read() for source in self._sources]
        except Exception as error:
            self._reason = f"{_CANNOT_READ} ({exception_text(error)})"

    def reset(self, seed: int | None, options: Any = None) -> tuple[Any, dict]:
        """Resets the environment, and notes how the episode begins.

        Returns:
            Observation and info.

        Raises:
            EnvError: if they are not what the gymnasium API promises.
        """
        self._note(seed)
        result = self._env.reset(seed=seed, options=options)
        if not (
            isinstance(result, tuple)
            and len(result) == 2
            and isinstance(result[1], dict)
        ):
            refuse_reset(result)
        return result

    def save(self) -> str:
        """All but the actions, as JSON."""
        reason = self._reason
        if self._old_world is not None and (_box2d_world(self._env) is self._old_world):
            # What Box2D computes depends on all that ever was in the same world.
            reason = "its Box2D world goes on from episode to episode"
        data: dict[str, Any] = {"reason": reason}
        if not reason:
            data |= {"seed": self._seed, "start": self._start}
        try:
            return _to_json(data | {"now": self._now()})
        except Exception as error:
            return lost_start(f"{_CANNOT_READ} ({exception_text(error)})")

    def begin_again(self, saved: dict[str, Any], reset: Reset) -> tuple[Any, dict]:
        """Resets the environment as it was when the saved episode began.

        Args:
            saved: what :meth:`save` returned, parsed.
            reset: of the environment; calls :meth:`reset`.

        Returns:
            Observation and info.
        """
        seed, start = saved["seed"], saved["start"]
        result = None if seed is None else reset(seed)
        if start is None:
            assert result is not None, "an episode without seed has a start"
            return result
        if self._sources is None:
            self._sources = self._find_sources()
        if len(start) != len(self._sources):
            raise ValueError(_OTHER_SOURCES)
        for source, state in zip(self._sources, start, strict=True):
            source.write(state)
        return reset(None)

    def difference(self, saved: dict[str, Any]) -> str:
        """How the generators differ from those saved; empty if they do not."""
        if len(self._now()) != len(saved["now"]):
            return _OTHER_SOURCES
        return "" if _to_json(self._now()) == _to_json(saved["now"]) else _OTHER_NUMBERS

    def _now(self) -> list[Any]:
        sources = self._sources
        if sources is None:
            sources = self._find_sources()
        return [source.read() for source in sources]

    def _find_sources(self) -> list[_Source]:
        env = self._env
        sources = [_numpy_source(env.unwrapped)]
        if hasattr(env.unwrapped, "ale"):
            sources.append(_emulator_source(env.unwrapped.ale))
        sources += [
            _Source(layer.get_random_state, layer.set_random_state)
            for layer in _layers(env)
            if hasattr(layer, "get_random_state")
        ]
        if self._owns_globals:
            sources += global_sources()
        return sources


class Replay:
    """Brings one open episode back, in as many calls as one likes.

    Args:
        env: new.
        episode: of ``env``.
        reset: of ``env``.
        no_reward: what comes with the FIRST step.
    """

    def __init__(
        self, env: gymnasium.Env, episode: OpenEpisode, reset: Reset, no_reward: Any
    ) -> None:
        self._env = env
        self._episode = episode
        self._reset = reset
        self._no_reward = no_reward
        self._saved: dict[str, Any] = {}
        self._ended = False
        self.reason = ""  # why the episode could not be brought back
        self.result: tuple = ()  # what the last step returned

    def begin(self, saved: str) -> None:
        """Resets the environment.

        Args:
            saved: see ``OpenEpisode.save``.
        """
        try:
            self._saved = json.loads(saved)
            self.reason = self._saved["reason"]
            if not self.reason:
                first = self._episode.begin_again(self._saved, self._reset)
                self._set_first(*first)
        except ENV_FAILURES as error:
            self.reason = f"the replay raised {exception_text(error)}"

    def step(self, actions: Iterable[Any]) -> None:
        """Takes the next actions."""
        if self.reason:
            return
        try:
            for action in actions:
                if self._ended:
                    self.reason = "the replay ended earlier"
                    return
                self.result = tuple(self._env.step(action))
                _, _, terminated, truncated, _ = self.result
                self._ended = bool(terminated or truncated)
        except ENV_FAILURES as error:
            self.reason = f"the replay raised {exception_text(error)}"

    def end(self, seed: int) -> None:
        """Compares the generators; starts a new episode if anything went wrong."""
        if not self.reason:
            try:
                self.reason = self._episode.difference(self._saved)
            except ENV_FAILURES as error:
                self.reason = f"{_CANNOT_READ} ({exception_text(error)})"
        if self.reason:
            self._set_first(*self._reset(seed))

    def _set_first(self, observation: Any, info: dict) -> None:
        self.result = observation, self._no_reward, False, False, info


def global_sources() -> list[_Source]:
    """The global generators of this process."""
    sources = [
        _Source(random.getstate, lambda state: random.setstate(_to_tuple(state))),
        _Source(_numpy_state, lambda state: np.random.set_state(tuple(state))),  # noqa: NPY002 - environments use it
    ]
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "get_rng_state"):
        sources.append(
            _Source(
                lambda: torch.get_rng_state().numpy(),
                lambda state: torch.set_rng_state(
                    torch.tensor(state, dtype=torch.uint8)
                ),
            )
        )
    return sources


@contextlib.contextmanager
def untouched_globals() -> Iterator[Callable[[], bool]]:
    """Puts the global generators back on leaving; yields what says if they changed."""
    sources = global_sources()
    before = [source.read() for source in sources]
    changed = False
    try:
        yield lambda: changed
    finally:
        changed = _to_json([source.read() for source in sources]) != _to_json(before)
        for source, state in zip(sources, before, strict=True):
            source.write(state)


def _layers(env: gymnasium.Env) -> Iterator[Any]:
    """The wrappers of an environment, the outermost first, and the environment."""
    while isinstance(env, gymnasium.Wrapper):
        yield env
        env = env.env
    yield env


def _numpy_state() -> tuple:
    return np.random.get_state(legacy=True)  # type: ignore[return-value]  # noqa: NPY002 - environments use it


def _numpy_source(env: Any) -> _Source:
    def write(state: dict[str, Any]) -> None:
        env.np_random.bit_generator.state = state

    return _Source(lambda: env.np_random.bit_generator.state, write)


def _emulator_source(ale: Any) -> _Source:
    """Atari games are reset to what the emulator's own generator says."""

    def write(state: str) -> None:
        data = base64.b64decode(state)
        ale.restoreState(sys.modules["ale_py"].ALEState(data))

    return _Source(lambda: ale.cloneState(include_rng=True), write)


def _box2d_world(env: gymnasium.Env) -> Any:
    try:
        world = getattr(env.unwrapped, "world", None)
    except Exception:  # an attribute of the user's that fails is no world
        return None
    return world if type(world).__name__ == "b2World" else None


def _to_json(data: Any) -> str:
    return json.dumps(data, default=_encode, sort_keys=True)


def _encode(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if hasattr(value, "serialize"):  # a state of the emulator
        return base64.b64encode(value.serialize()).decode()
    raise TypeError(f"{type(value).__name__} is no JSON data")


def _to_tuple(state: Any) -> Any:
    return tuple(map(_to_tuple, state)) if isinstance(state, list) else state
