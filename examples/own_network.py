"""A network of one's own: attention over entities, for PPO.

    python examples/own_network.py --root_dir=runs/harvest

Observations are nests: here the agent, and a set of things around it whose order means
nothing. An encoder turns one into a vector of features; actor and critic networks take
it as ``encoding_network_ctor``, in Python and in a conf:

    ActorDistributionNetwork.encoding_network_ctor = @my_module.AttentionEncoder
    ValueNetwork.encoding_network_ctor = @my_module.AttentionEncoder

Those of SAC, DQN and all others have the same parameter.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Dict
from torch import Tensor, nn

import alf_lite
from alf_lite.networks.actor_networks import ActorDistributionNetwork
from alf_lite.networks.encoding_networks import EncoderNetwork
from alf_lite.networks.network import Network
from alf_lite.networks.value_networks import ValueNetwork
from alf_lite.tensor_specs import NestedTensorSpec

NUM_FRUITS = 6


class Harvest(gymnasium.Env):
    """The agent walks to the ripe one of six fruits, which lie elsewhere each time."""

    observation_space = Dict(
        agent=Box(-1.0, 1.0, (2,), np.float32),
        fruits=Box(-2.0, 2.0, (NUM_FRUITS, 3), np.float32),  # where from here, ripeness
    )
    action_space = Box(-1.0, 1.0, (2,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        super().reset(seed=seed)
        self._agent = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        self._places = self.np_random.uniform(-1, 1, (NUM_FRUITS, 2)).astype(np.float32)
        self._ripeness = np.zeros((NUM_FRUITS, 1), np.float32)
        self._ripeness[self.np_random.integers(NUM_FRUITS)] = 1.0
        self._num_steps = 0
        return self._observation(), {}

    def step(
        self, action: np.ndarray
    ) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        self._agent = np.clip(self._agent + 0.2 * action, -1, 1)
        self._num_steps += 1
        target = self._places[self._ripeness.argmax()]
        distance = float(np.linalg.norm(target - self._agent))
        return self._observation(), -distance, False, self._num_steps == 20, {}

    def _observation(self) -> dict[str, np.ndarray]:
        fruits = np.hstack([self._places - self._agent, self._ripeness])
        return {"agent": self._agent, "fruits": fruits}


class AttentionEncoder(EncoderNetwork):
    """The agent asks, the fruits answer: [B, ...] of an observation → [B, 2 * size]."""

    def __init__(
        self, observation_spec: NestedTensorSpec, *, size: int = 32, **options: Any
    ) -> None:
        """``options`` are of layers that this has not, such as ``fc_layer_params``."""
        super().__init__(observation_spec)
        self._agent = nn.Sequential(nn.Linear(2, size), nn.ReLU())
        self._fruits = nn.Sequential(nn.Linear(3, size), nn.ReLU())
        self._attention = nn.MultiheadAttention(size, num_heads=4, batch_first=True)
        self.output_size = 2 * size

    def forward(self, inputs: dict[str, Tensor], state: Any = ()) -> tuple[Tensor, Any]:
        agent = self._agent(inputs["agent"])
        fruits = self._fruits(inputs["fruits"])
        found, _ = self._attention(agent[:, None], fruits, fruits, need_weights=False)
        return torch.cat([agent, found[:, 0]], dim=-1), state


def with_attention(network_ctor: Callable[..., Network]) -> Callable[..., Network]:
    """A network that begins with the encoder above."""
    return functools.partial(network_ctor, encoding_network_ctor=AttentionEncoder)


def main() -> None:
    """Trains PPO with attention."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--root_dir", type=Path, default=Path("runs/harvest"))
    parser.add_argument("--num_env_steps", type=int, default=100_000)
    arguments = parser.parse_args()

    env = alf_lite.create_environment(env_ctor=Harvest, num_parallel_environments=16)
    config = alf_lite.TrainerConfig(
        num_env_steps=arguments.num_env_steps,
        unroll_length=64,
        mini_batch_size=256,
        evaluate=True,
        num_eval_episodes=100,
        num_eval_environments=10,
        random_seed=0,
    )
    algorithm = alf_lite.PPOAlgorithm(
        env=env,
        config=config,
        optimizer=alf_lite.Adam(lr=1e-3, gradient_clipping=0.5),
        gamma=0.9,
        actor_network_ctor=with_attention(ActorDistributionNetwork),
        value_network_ctor=with_attention(ValueNetwork),
    )
    result = alf_lite.Trainer(algorithm, arguments.root_dir).train()
    assert result.evaluation is not None
    print(f"Mean return {result.evaluation.mean:.2f}")


if __name__ == "__main__":
    main()
