"""Writes replay checkpoints as ALF does, step by step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch


def path_key(path: tuple[str, ...]) -> str:
    return "_replay_buffer." + "|".join(path)


class AlfRing:
    """A ring of steps for several environments, written as ALF writes its own."""

    def __init__(self, num_environments: int, length: int) -> None:
        self.length = length
        self.size = torch.zeros(num_environments, dtype=torch.int64)
        self.position = torch.zeros(num_environments, dtype=torch.int64)
        self.rings: dict[tuple[str, ...], torch.Tensor] = {}

    def add(self, env_id: int, step: dict[str, Any]) -> None:
        """One step: nested dicts of tensors."""
        slot = int(self.position[env_id]) % self.length
        for path, value in leaves(step):
            shape = (len(self.size), self.length, *value.shape)
            ring = self.rings.setdefault(path, torch.zeros(shape, dtype=value.dtype))
            ring[env_id, slot] = value
        self.position[env_id] += 1
        self.size[env_id] = min(int(self.size[env_id]) + 1, self.length)

    def save(self, file: Path, **options: Any) -> str:
        state = {path_key(path): ring for path, ring in self.rings.items()}
        state[path_key(("_current_size",))] = self.size
        state[path_key(("_current_pos",))] = self.position
        content = {"algorithm": state, "metrics": {}, "trainer_progress": {}}
        torch.save(content, file, **options)
        return str(file)


def leaves(value: Any, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    if not isinstance(value, dict):
        return [(path, torch.as_tensor(value))]
    return [leaf for k, v in value.items() for leaf in leaves(v, (*path, k))]


def alf_step(number: int, episode_length: int, env_id: int = 0) -> dict[str, Any]:
    """Step ``number`` of episodes that terminate, or break off if they are odd."""
    in_episode = number % (episode_length + 1)
    is_last = in_episode == episode_length
    is_terminal = is_last and number // (episode_length + 1) % 2 == 0
    action = torch.tensor([number / 1000])
    return {
        "time_step": {
            "step_type": torch.tensor(
                0 if in_episode == 0 else 2 if is_last else 1, dtype=torch.int32
            ),
            "reward": torch.tensor(float(number) if in_episode else 0.0),
            "discount": torch.tensor(0.0 if is_terminal else 1.0),
            "observation": torch.tensor([100.0 * env_id + number]),
            "prev_action": action - 0.001 if in_episode else torch.zeros(1),
            "env_id": torch.tensor(env_id, dtype=torch.int32),
        },
        "action": action,
        "rollout_info": {"rl": {"action": action, "log_prob": torch.tensor(-1.0)}},
    }


def alf_ring(num_steps: list[int], length: int, episode_length: int = 4) -> AlfRing:
    """Environment e wrote ``num_steps[e]`` steps."""
    ring = AlfRing(len(num_steps), length)
    for env_id, count in enumerate(num_steps):
        for number in range(count):
            ring.add(env_id, alf_step(number, episode_length, env_id))
    return ring
