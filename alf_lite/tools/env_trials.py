"""Tries an environment with random actions, and keeps what came."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from alf_lite import nest
from alf_lite.environments.environment import Environment
from alf_lite.tools.env_report import MASK, Episodes, LeafReport

Nest = Any
NUM_STEPS = 300  # of a trajectory that is looked at
SEED = 3


# A batch, as algorithms see it


class SeenSteps:
    """What came in the steps of a batch."""

    def __init__(self, env: Environment) -> None:
        self._specs = {
            path: spec
            for part, specs in (
                ("observation", env.observation_spec),
                ("action", env.action_spec),
                ("reward", env.reward_spec),
            )
            for path, spec in _named(part, specs)
        }
        self._low: dict[str, float] = {}
        self._high: dict[str, float] = {}
        self._returns = np.zeros(env.batch_size)
        self._lengths = np.zeros(env.batch_size, np.int64)
        self._ended: list[tuple[int, float]] = []
        self._num_steps = 0
        self.problems: list[str] = []
        self.bytes_per_step = 0

    def add(self, time_step: Any) -> None:
        batch_size = len(time_step.step_type)
        self._num_steps += batch_size
        if not self.bytes_per_step:
            sizes = [t.numel() * t.element_size() for t in nest.flatten(time_step)]
            self.bytes_per_step = sum(sizes) // batch_size
        for part in ("observation", "reward"):
            for path, leaf in _named(part, getattr(time_step, part)):
                self._add_leaf(path, leaf.double())
        self._add_mask(time_step.observation, ~time_step.is_last())
        is_first = time_step.is_first().numpy()
        reward = time_step.reward.double().reshape(batch_size, -1).sum(1).numpy()
        self._returns = np.where(is_first, 0.0, self._returns + reward)
        self._lengths = np.where(is_first, 0, self._lengths + 1)
        for row in np.flatnonzero(time_step.is_last().numpy()):
            self._ended.append((int(self._lengths[row]), float(self._returns[row])))

    def _add_leaf(self, path: str, values: torch.Tensor) -> None:
        if not values.numel():
            return
        low, high = values.min().item(), values.max().item()
        self._low[path] = min(low, self._low.get(path, low))
        self._high[path] = max(high, self._high.get(path, high))

    def _add_mask(self, observation: Nest, goes_on: torch.Tensor) -> None:
        mask = mask_of(observation)
        if mask is None:
            return
        text = (
            f"observation['{MASK}'] allows no action before the end of an episode: "
            "at least one entry must be 1"
        )
        is_empty = ~mask.bool().reshape(len(mask), -1).any(dim=1) & goes_on
        if is_empty.any() and text not in self.problems:
            self.problems.append(text)

    def leaves(self) -> list[LeafReport]:
        return [
            LeafReport(path, spec, (self._low[path], self._high[path]))
            if path in self._low
            else LeafReport(path, spec, None)
            for path, spec in self._specs.items()
        ]

    def episodes(self) -> Episodes:
        lengths, returns = [e[0] for e in self._ended], [e[1] for e in self._ended]
        return Episodes(lengths, returns, self._num_steps)


def _named(part: str, values: Nest) -> list[tuple[str, Any]]:
    return [
        (part + path.removeprefix("<root>"), leaf)
        for path, leaf in nest.flatten_with_path(values)
    ]


def mask_of(observation: Nest) -> torch.Tensor | None:
    """The mask [B, ...] that observations have by convention."""
    mask = observation.get(MASK) if isinstance(observation, dict) else None
    return mask if isinstance(mask, torch.Tensor) else None


def sample_actions(env: Environment, observation: Nest, t: int) -> Nest:
    """Random actions [B, ...]; single discrete ones that the mask allows."""
    generator = torch.Generator().manual_seed(t)
    mask = mask_of(observation)
    specs = nest.flatten(env.action_spec)
    if mask is not None and len(specs) == 1 and mask.ndim == 2 and not specs[0].shape:
        weights = mask.double()
        weights[weights.sum(1) == 0] = 1.0
        return torch.multinomial(weights, 1, generator=generator)[:, 0]
    return nest.map_structure(
        lambda spec: spec.sample((env.batch_size,), generator), env.action_spec
    )


# A single environment


def endless_steps(env: gymnasium.Env, seed: int) -> Iterator[tuple]:
    """What endless steps with random actions return; those of resets come, too."""
    env.action_space.seed(SEED)
    observation, info = env.reset(seed=seed)
    yield observation, info
    while True:
        mask = single_mask(observation, info)
        is_masked = mask is not None and isinstance(env.action_space, spaces.Discrete)
        if is_masked and np.any(mask):
            action = env.action_space.sample(np.asarray(mask, np.int8))
        else:
            action = env.action_space.sample()
        result = env.step(action)
        yield result
        observation, _, terminated, truncated, info = result
        if terminated or truncated:
            observation, info = env.reset()
            yield observation, info


def single_mask(observation: Any, info: Any) -> Any:
    """The mask of one environment, in its observation or its info."""
    for source in (observation, info):
        if isinstance(source, Mapping) and MASK in source:
            return source[MASK]
    return None


def trajectory(env: gymnasium.Env, seed: int, info: dict | None = None) -> list[Any]:
    """Copies of what the first steps return; ``info`` gets what is in the infos."""
    found = []
    for result in itertools.islice(endless_steps(env, seed), NUM_STEPS):
        found += [np.array(leaf) for leaf in nest.flatten(list(result[:-1]))]
        if info is not None:
            info |= result[-1]
    return found


def is_same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether two trajectories agree to the bit."""
    return len(one) == len(other) and all(
        a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()
        for a, b in zip(one, other, strict=True)
    )
