"""PPO on CartPole as one bare loop: about the least that this work can cost.

The eager loop is the plain way to write it in torch. The tight one acts in numpy on the
memory of the torch parameters, compiles the loss and uses the fused Adam. Neither has
metrics, summaries, checkpoints or any abstraction, and the step that an automatic reset
swallows is trained as if it were real.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

GAMMA, TD_LAMBDA, CLIP, ENTROPY, VALUE, LEARNING_RATE = (
    0.99,
    0.95,
    0.2,
    0.01,
    0.5,
    2.5e-4,
)


class Batch(NamedTuple):
    """One unroll; all arrays are [T, B] except the observation, [T, B, 4]."""

    observation: np.ndarray
    action: np.ndarray
    log_prob: np.ndarray
    value: np.ndarray
    reward: np.ndarray
    done: np.ndarray


def run_bare(env_id: str, num_envs: int, num_env_steps: int, tight: bool) -> None:
    """Trains for ``num_env_steps`` with 128 steps per unroll, 4 epochs of 4 batches."""
    torch.manual_seed(0)
    steps = 128
    actor, critic = _mlp(2), _mlp(1)
    parameters = [*actor.parameters(), *critic.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=LEARNING_RATE, eps=1e-5, fused=tight)
    loss_fn = torch.compile(_loss) if tight else _loss
    act = _numpy_acting(actor, critic) if tight else _torch_acting(actor, critic)
    env = gym.vector.SyncVectorEnv([lambda: gym.make(env_id)] * num_envs)
    observation, _ = env.reset(seed=0)
    for _ in range(num_env_steps // (steps * num_envs)):
        batch = _empty_batch(steps, num_envs)
        for t in range(steps):
            action, log_prob, value = act(observation)
            batch.observation[t], batch.action[t] = observation, action
            batch.log_prob[t], batch.value[t] = log_prob, value
            observation, batch.reward[t], end, cut, _ = env.step(action)
            batch.done[t] = end | cut
        advantage = _advantages(batch, last_value=act(observation)[2])
        columns = (
            batch.observation,
            batch.action,
            batch.log_prob,
            batch.value,
            advantage,
        )
        data = [torch.from_numpy(c.reshape(-1, *c.shape[2:])) for c in columns]
        for _ in range(4):
            for rows in torch.randperm(steps * num_envs).chunk(4):
                loss = loss_fn(actor, critic, *(column[rows] for column in data))
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_(parameters, 0.5)
                optimizer.step()
    env.close()


def _mlp(outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(4, 64),
        nn.Tanh(),
        nn.Linear(64, 64),
        nn.Tanh(),
        nn.Linear(64, outputs),
    )


def _empty_batch(steps: int, num_envs: int) -> Batch:
    def zeros(*shape: int) -> np.ndarray:
        return np.zeros((steps, num_envs, *shape), np.float32)

    action = np.zeros((steps, num_envs), np.int64)
    return Batch(zeros(4), action, zeros(), zeros(), zeros(), zeros())


Act = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]]


def _torch_acting(actor: nn.Module, critic: nn.Module) -> Act:
    @torch.no_grad()
    def act(observation: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        inputs = torch.from_numpy(observation)
        log_probs = F.log_softmax(actor(inputs), dim=-1)
        action = torch.multinomial(log_probs.exp(), 1)
        log_prob = log_probs.gather(1, action)
        value = critic(inputs)
        return action[:, 0].numpy(), log_prob[:, 0].numpy(), value[:, 0].numpy()

    return act


def _numpy_acting(actor: nn.Sequential, critic: nn.Sequential) -> Act:
    """Reads the parameters in place, so an update of them needs no copy."""
    layers = [
        [
            (m.weight.detach().numpy().T, m.bias.detach().numpy())
            for m in network
            if isinstance(m, nn.Linear)
        ]
        for network in (actor, critic)
    ]
    generator = np.random.default_rng(0)

    def forward(hidden: np.ndarray, network: list) -> np.ndarray:
        for weight, bias in network[:-1]:
            hidden = np.tanh(hidden @ weight + bias)
        weight, bias = network[-1]
        return hidden @ weight + bias

    def act(observation: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        logits = forward(observation, layers[0])
        logits -= logits.max(axis=-1, keepdims=True)
        log_probs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        noise = generator.standard_exponential(logits.shape, dtype=np.float32)
        action = (log_probs - np.log(noise)).argmax(axis=-1)  # the Gumbel trick
        log_prob = np.take_along_axis(log_probs, action[:, None], axis=-1)
        return action, log_prob[:, 0], forward(observation, layers[1])[:, 0]

    return act


def _advantages(batch: Batch, last_value: np.ndarray) -> np.ndarray:
    """Generalized advantages; here ``done[t]`` says that step t ended its episode."""
    advantages = np.zeros_like(batch.reward)
    advantage = np.zeros_like(last_value)
    next_value = last_value
    for t in reversed(range(len(batch.reward))):
        going_on = 1.0 - batch.done[t]
        delta = batch.reward[t] + GAMMA * next_value * going_on - batch.value[t]
        advantage = delta + GAMMA * TD_LAMBDA * going_on * advantage
        advantages[t] = advantage
        next_value = batch.value[t]
    return advantages


def _loss(
    actor: nn.Module,
    critic: nn.Module,
    observation: Tensor,
    action: Tensor,
    old_log_prob: Tensor,
    old_value: Tensor,
    advantage: Tensor,
) -> Tensor:
    returns = advantage + old_value
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    log_probs = F.log_softmax(actor(observation), dim=-1)
    ratio = (log_probs.gather(1, action[:, None])[:, 0] - old_log_prob).exp()
    clipped_ratio = ratio.clamp(1 - CLIP, 1 + CLIP)
    policy_loss = -torch.min(advantage * ratio, advantage * clipped_ratio).mean()
    value = critic(observation)[:, 0]
    clipped_value = old_value + (value - old_value).clamp(-CLIP, CLIP)
    errors = torch.max((value - returns) ** 2, (clipped_value - returns) ** 2)
    entropy = -(log_probs.exp() * log_probs).sum(dim=-1).mean()
    return policy_loss + VALUE * 0.5 * errors.mean() - ENTROPY * entropy
