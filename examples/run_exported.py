"""Runs an exported policy with numpy, onnxruntime and gymnasium alone.

    python -m alf_lite.bin.export --root_dir=runs/ppo --out=policy
    python examples/run_exported.py policy CartPole-v1 --num_episodes=10
    python examples/run_exported.py policy my_module.MyEnv

``Policy`` is what to copy: neither alf_lite nor torch is needed where it runs.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import onnxruntime


class Policy:
    """Acts on observations of gymnasium, one or a batch.

    Args:
        directory: with ``policy.onnx`` and ``policy.json``.
        seed: of the noise of a policy that draws its actions.
    """

    def __init__(self, directory: str | Path, seed: int | None = None) -> None:
        folder = Path(directory)
        self.specs = json.loads((folder / "policy.json").read_text())
        self._session = onnxruntime.InferenceSession(
            folder / self.specs["files"]["onnx"], providers=["CPUExecutionProvider"]
        )
        self._known = {value.name for value in self._session.get_inputs()}
        self._generator = np.random.default_rng(seed)
        self._actions = [o for o in self.specs["outputs"] if o["role"] == "action"]
        self._state: list[np.ndarray] = []
        self._is_first = np.ones(0, bool)

    def reset(self) -> None:
        """New episodes begin with the next observation."""
        self._is_first = np.ones(0, bool)

    def act(self, observations: Any, is_first: np.ndarray | None = None) -> Any:
        """Actions [B, ...] for observations [B, ...].

        Args:
            observations: nests as the observation space has them.
            is_first: [B], whose episode begins; by default those of all, in the first
                call.
        """
        leaves = [
            np.asarray(_at(observations, port["path"]), port["dtype"])
            for port in self.specs["inputs"]
            if port["role"] == "observation"
        ]
        num_rows = len(leaves[0])
        if len(self._is_first) != num_rows:
            self._begin(num_rows)
        if is_first is not None:
            self._is_first = np.asarray(is_first, bool)
        given = {
            "observation": iter(leaves),
            "is_first": iter([self._is_first]),
            "state": iter(self._state),
        }
        inputs = {
            port["name"]: self._draw(port, num_rows)
            if port["role"] == "noise"
            else next(given[port["role"]])
            for port in self.specs["inputs"]
        }
        # What the policy does not look at may be missing in the graph.
        inputs = {name: inputs[name] for name in inputs if name in self._known}
        outputs = self._session.run(None, inputs)
        self._state = outputs[len(self._actions) :]
        self._is_first = np.zeros(num_rows, bool)
        actions = [
            output.astype(port["environment_dtype"])
            for output, port in zip(outputs, self._actions, strict=False)
        ]
        return _nested([port["path"] for port in self._actions], actions)

    def _begin(self, num_rows: int) -> None:
        self._is_first = np.ones(num_rows, bool)
        self._state = [
            np.zeros((num_rows, *port["shape"][1:]), port["dtype"])
            for port in self.specs["inputs"]
            if port["role"] == "state"
        ]

    def _draw(self, port: dict[str, Any], num_rows: int) -> np.ndarray:
        shape = (num_rows, *port["shape"][1:])
        if port["distribution"] == "normal":
            return self._generator.standard_normal(shape, np.float32)
        return self._generator.random(shape, np.float32)


def _at(value: Any, path: list[Any]) -> Any:
    for key in path:
        value = value[key]
    return value


def _nested(paths: list[list[Any]], leaves: list[Any]) -> Any:
    """Dicts and tuples from the leaves and where they are."""
    if paths == [[]]:
        return leaves[0]
    groups: dict[Any, tuple[list, list]] = {}
    for (key, *rest), leaf in zip(paths, leaves, strict=True):
        rests, parts = groups.setdefault(key, ([], []))
        rests.append(rest)
        parts.append(leaf)
    nested = {key: _nested(*group) for key, group in groups.items()}
    if all(isinstance(key, int) for key in nested):
        return tuple(nested[key] for key in sorted(nested))
    return nested


def _with_batch(value: Any) -> Any:
    """One observation as a batch of one."""
    if isinstance(value, dict):
        return {key: _with_batch(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(map(_with_batch, value))
    return np.asarray(value)[None]


def _first(value: Any) -> Any:
    """The first action of a batch."""
    if isinstance(value, dict):
        return {key: _first(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(map(_first, value))
    return value[0]


def make_env(name: str, max_episode_steps: int | None = None) -> gymnasium.Env:
    """Makes an environment of gymnasium, or of a class in the current folder.

    Args:
        name: as ``CartPole-v1``, or as ``my_module.MyEnv``.
        max_episode_steps: None for its own limit, 1000 if it has none.
    """
    module, _, class_name = name.rpartition(".")
    if not module or ":" in name:
        env = gymnasium.make(name, max_episode_steps=max_episode_steps)
        limit = None if env.spec and env.spec.max_episode_steps else 1000
    else:
        sys.path.insert(0, "")
        env = getattr(importlib.import_module(module), class_name)()
        limit = max_episode_steps or 1000
    return env if limit is None else gymnasium.wrappers.TimeLimit(env, limit)


def main() -> None:
    """Plays episodes and tells their returns."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", help="what the export has written")
    parser.add_argument("environment", help="CartPole-v1, or my_module.MyEnv")
    parser.add_argument("--num_episodes", type=int, default=10)
    parser.add_argument(
        "--max_episode_steps",
        type=int,
        help="by default as in the training; 1000 if that was without a limit",
    )
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    policy = Policy(arguments.directory, arguments.seed)
    limit = arguments.max_episode_steps or policy.specs.get("max_episode_steps")
    env = make_env(arguments.environment, limit)
    returns = []
    for episode in range(arguments.num_episodes):
        policy.reset()
        observation, _ = env.reset(seed=arguments.seed + episode)
        total, is_over = 0.0, False
        while not is_over:
            action = _first(policy.act(_with_batch(observation)))
            observation, reward, terminated, truncated, _ = env.step(action)
            total += float(reward)
            is_over = terminated or truncated
        returns.append(total)
        print(f"Episode {episode + 1:<4}  return {total:.2f}")
    print(f"Mean return {np.mean(returns):.2f}")


if __name__ == "__main__":
    main()
