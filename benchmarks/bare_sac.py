"""SAC on HalfCheetah as one bare loop: about the least that this work can cost.

Both critics run as one batched matrix product, the log-probability is taken in closed
form, activations are in place, one backward pass and one fused Adam serve all losses,
and the replay buffer is numpy arrays. There are no metrics, summaries, checkpoints or
abstractions. With bfloat16, the matrix products of the updates run in that precision,
but for the critics' output layer; the parameters, the optimizer and the losses stay
float32.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

GAMMA, TAU, LEARNING_RATE = 0.99, 0.005, 3e-4
HIDDEN_SIZE, BATCH_SIZE, CAPACITY = 256, 256, 1_000_000
MIN_LOG_STD, MAX_LOG_STD = -5.0, 2.0
LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


def run_bare(
    env_id: str, num_env_steps: int, learning_starts: int, bfloat16: bool
) -> None:
    """Trains with one update per step after ``learning_starts`` random steps."""
    torch.manual_seed(0)
    env = gym.make(env_id)
    env.action_space.seed(0)
    observation_size = env.observation_space.shape[0]
    action_size = env.action_space.shape[0]
    learner = Learner(observation_size, action_size, bfloat16)
    replay = Replay(observation_size, action_size)
    observation, _ = env.reset(seed=0)
    for step in range(num_env_steps):
        if step < learning_starts:
            action = env.action_space.sample()
        else:
            action = learner.act(observation)
        next_observation, reward, terminated, truncated, _ = env.step(action)
        replay.add(observation, action, reward, next_observation, terminated)
        observation = next_observation
        if terminated or truncated:
            observation, _ = env.reset()
        if step >= learning_starts:
            learner.update(replay.sample())
    env.close()


class Batch(NamedTuple):
    observation: Tensor  # [B, observation_size]
    action: Tensor  # [B, action_size]
    reward: Tensor  # [B]
    next_observation: Tensor  # [B, observation_size]
    terminated: Tensor  # [B], 1 or 0


class Replay:
    """A ring of transitions."""

    def __init__(self, observation_size: int, action_size: int) -> None:
        self._fields = [
            np.zeros((CAPACITY, *shape), np.float32)
            for shape in (
                (observation_size,),
                (action_size,),
                (),
                (observation_size,),
                (),
            )
        ]
        self._num_added = 0
        self._generator = np.random.default_rng(0)

    def add(self, *transition: np.ndarray | float) -> None:
        row = self._num_added % CAPACITY
        for field, value in zip(self._fields, transition, strict=True):
            field[row] = value
        self._num_added += 1

    def sample(self) -> Batch:
        size = min(self._num_added, CAPACITY)
        rows = self._generator.integers(0, size, BATCH_SIZE)
        return Batch(*(torch.from_numpy(field.take(rows, 0)) for field in self._fields))


class Actor(nn.Module):
    """tanh of a normal distribution."""

    def __init__(self, observation_size: int, action_size: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            [
                nn.Linear(observation_size, HIDDEN_SIZE),
                nn.Linear(HIDDEN_SIZE, HIDDEN_SIZE),
            ]
        )
        self.head = nn.Linear(HIDDEN_SIZE, 2 * action_size)

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A sample [B, action_size] before the tanh, its noise, its log-deviation."""
        hidden = observation
        for layer in self.layers:
            hidden = torch.relu_(layer(hidden))
        mean, log_std = self.head(hidden).float().chunk(2, dim=-1)
        scale = 0.5 * (MAX_LOG_STD - MIN_LOG_STD)
        log_std = MIN_LOG_STD + scale * (torch.tanh(log_std) + 1)
        noise = torch.randn_like(mean)
        return mean + log_std.exp() * noise, noise, log_std

    def sample(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """An action [B, action_size] and its log-probability [B]."""
        raw, noise, log_std = self(observation)
        log_prob = -0.5 * noise * noise - log_std - LOG_SQRT_2PI
        # log (1 - tanh²)
        log_slope = 2 * (math.log(2) - raw - F.softplus(-2 * raw))
        return torch.tanh(raw), (log_prob - log_slope).sum(-1)


def make_critics(input_size: int) -> list[Tensor]:
    """For each layer, the weights [2, in, out] and biases [2, 1, out] of both."""
    sizes = [input_size, HIDDEN_SIZE, HIDDEN_SIZE, 1]
    parameters = []
    for size, next_size in pairwise(sizes):
        bound = 1 / math.sqrt(size)
        for rows in (size, 1):
            initial = torch.empty(2, rows, next_size).uniform_(-bound, bound)
            parameters.append(initial.requires_grad_())
    return parameters


def evaluate(critics: list[Tensor], observation: Tensor, action: Tensor) -> Tensor:
    """Q [2, B]."""
    weight_1, bias_1, weight_2, bias_2, weight_3, bias_3 = critics
    inputs = torch.cat([observation, action], dim=-1).expand(2, -1, -1)
    hidden = torch.relu_(torch.baddbmm(bias_1, inputs, weight_1))
    hidden = torch.relu_(torch.baddbmm(bias_2, hidden, weight_2))
    # With one output, a matrix product takes six times as long, and bfloat16 would
    # round the value.
    return (hidden.float() * weight_3.mT).sum(-1) + bias_3.squeeze(-1)


class Learner:
    """The networks and their updates."""

    def __init__(self, observation_size: int, action_size: int, bfloat16: bool) -> None:
        self._bfloat16 = bfloat16
        self._target_entropy = -float(action_size)
        self._actor = Actor(observation_size, action_size)
        self._critics = make_critics(observation_size + action_size)
        self._targets = [parameter.detach().clone() for parameter in self._critics]
        self._log_alpha = torch.zeros((), requires_grad=True)
        parameters = [*self._actor.parameters(), *self._critics, self._log_alpha]
        self._optimizer = torch.optim.Adam(parameters, lr=LEARNING_RATE, fused=True)

    @torch.inference_mode()
    def act(self, observation: np.ndarray) -> np.ndarray:
        """For one observation [observation_size]."""
        inputs = torch.from_numpy(observation.astype(np.float32)).unsqueeze(0)
        return torch.tanh(self._actor(inputs)[0])[0].numpy()

    def update(self, batch: Batch) -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=self._bfloat16):
            loss = self._loss(batch)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(self._targets, self._critics, TAU)

    def _loss(self, batch: Batch) -> Tensor:
        """Of critics, actor and temperature; none reaches the parameters of another."""
        alpha = self._log_alpha.detach().exp()
        with torch.no_grad():
            action, log_prob = self._actor.sample(batch.next_observation)
            next_q = evaluate(self._targets, batch.next_observation, action).amin(0)
            next_value = next_q - alpha * log_prob
            target = batch.reward + GAMMA * (1 - batch.terminated) * next_value
        q = evaluate(self._critics, batch.observation, batch.action)
        critic_loss = 0.5 * (q - target).square().mean(1).sum()
        action, log_prob = self._actor.sample(batch.observation)
        frozen = [parameter.detach() for parameter in self._critics]
        policy_q = evaluate(frozen, batch.observation, action).amin(0)
        actor_loss = (alpha * log_prob - policy_q).mean()
        gap = log_prob.detach().mean() + self._target_entropy
        return critic_loss + actor_loss - self._log_alpha.exp() * gap
