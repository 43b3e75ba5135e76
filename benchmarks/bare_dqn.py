"""DQN on CartPole as one bare loop: about the least that this work can cost.

The network is evaluated only where ε does not decide, Adam is fused, the replay buffer
is numpy arrays. There are no metrics, summaries, checkpoints or abstractions. In numpy,
the network acts on the memory of the torch parameters, which saves half of a step.
"""

from __future__ import annotations

from collections.abc import Callable

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

GAMMA, LEARNING_RATE = 0.99, 2.5e-4
BATCH_SIZE, CAPACITY = 128, 10_000
STEPS_PER_UPDATE, STEPS_PER_TARGET_UPDATE = 10, 500
LAST_EPSILON, EXPLORATION_FRACTION = 0.05, 0.5


def run_bare(
    env_id: str, num_env_steps: int, learning_starts: int, acts_in_numpy: bool
) -> None:
    """Trains with one update after every tenth step."""
    torch.manual_seed(0)
    generator = np.random.default_rng(0)
    network, target_network = _make_network(), _make_network()
    target_network.load_state_dict(network.state_dict())
    optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE, fused=True)
    act = _numpy_acting(network) if acts_in_numpy else _torch_acting(network)
    replay = _make_replay()
    env = gym.make(env_id)
    observation, _ = env.reset(seed=0)
    for step in range(num_env_steps):
        progress = step / (EXPLORATION_FRACTION * num_env_steps)
        epsilon = max(1 - (1 - LAST_EPSILON) * progress, LAST_EPSILON)
        if generator.random() < epsilon:
            action = int(generator.integers(2))
        else:
            action = act(observation)
        next_observation, reward, terminated, truncated, _ = env.step(action)
        transition = (observation, action, reward, next_observation, terminated)
        for field, value in zip(replay, transition, strict=True):
            field[step % CAPACITY] = value
        observation = next_observation
        if terminated or truncated:
            observation, _ = env.reset()
        if step < learning_starts or step % STEPS_PER_UPDATE:
            continue
        rows = generator.integers(0, min(step + 1, CAPACITY), BATCH_SIZE)
        batch = [torch.from_numpy(field.take(rows, 0)) for field in replay]
        loss = compute_loss(network, target_network, *batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % STEPS_PER_TARGET_UPDATE == 0:
            target_network.load_state_dict(network.state_dict())
    env.close()


def compute_loss(
    network: nn.Module,
    target_network: nn.Module,
    observation: Tensor,
    action: Tensor,
    reward: Tensor,
    next_observation: Tensor,
    terminated: Tensor,
) -> Tensor:
    """Mean of (Q(s, a) − r − γ max Q⁻(s', ·))² over [B, ...]."""
    with torch.no_grad():
        next_value = target_network(next_observation).amax(1)
        target = reward + GAMMA * (1 - terminated) * next_value
    q = network(observation).gather(1, action.unsqueeze(1)).squeeze(1)
    return F.mse_loss(q, target)


def _make_network() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(4, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 2)
    )


def _make_replay() -> list[np.ndarray]:
    """Observation, action, reward, next observation, whether it is terminal."""
    return [
        np.zeros((CAPACITY, 4), np.float32),
        np.zeros(CAPACITY, np.int64),
        np.zeros(CAPACITY, np.float32),
        np.zeros((CAPACITY, 4), np.float32),
        np.zeros(CAPACITY, np.float32),
    ]


Act = Callable[[np.ndarray], int]


def _torch_acting(network: nn.Sequential) -> Act:
    @torch.inference_mode()
    def act(observation: np.ndarray) -> int:
        return int(network(torch.from_numpy(observation).unsqueeze(0)).argmax())

    return act


def _numpy_acting(network: nn.Sequential) -> Act:
    """Reads the parameters in place, so an update of them needs no copy."""
    *hidden_layers, (last_weight, last_bias) = [
        (layer.weight.detach().numpy().T, layer.bias.detach().numpy())
        for layer in network
        if isinstance(layer, nn.Linear)
    ]

    def act(observation: np.ndarray) -> int:
        hidden = observation
        for weight, bias in hidden_layers:
            hidden = np.maximum(hidden @ weight + bias, 0)
        return int((hidden @ last_weight + last_bias).argmax())

    return act
