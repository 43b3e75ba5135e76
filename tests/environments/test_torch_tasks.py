"""The tasks in torch are those of gymnasium, step by step."""

from __future__ import annotations

import math

import gymnasium
import numpy as np
import pytest
import torch

from alf_lite.environments import create_environment
from alf_lite.environments.torch_tasks import (
    CartPoleState,
    PendulumState,
    PointMassState,
    TorchCartPole,
    TorchPendulum,
    TorchPointMass,
)


@pytest.mark.parametrize(
    ("name", "gymnasium_id"),
    [("torch/CartPole", "CartPole-v1"), ("torch/Pendulum", "Pendulum-v1")],
)
def test_specs_are_those_of_gymnasium(name, gymnasium_id):
    with create_environment(name, 2) as one, create_environment(gymnasium_id, 2) as two:
        assert one.observation_spec == two.observation_spec
        assert one.action_spec == two.action_spec
        assert one.reward_spec == two.reward_spec


def test_cart_pole_steps_as_that_of_gymnasium():
    env, other = TorchCartPole(1, seed=0), gymnasium.make("CartPole-v1").unwrapped
    other.reset(seed=0)
    env.reset()
    rng = np.random.default_rng(0)
    ends = 0
    for _ in range(200):
        # Also states in which the next step is terminal, or not just yet.
        start = rng.uniform(-1, 1, 4) * (2.42, 3.0, 0.215, 3.0)
        action = int(rng.integers(2))
        other.state, other.steps_beyond_terminated = tuple(start), None
        expected, reward, terminated, _, _ = other.step(action)
        physics = CartPoleState(*torch.tensor(start, dtype=torch.float32)[:, None])
        state = env.state._replace(physics=physics)
        _, step = env.next_step(state, torch.tensor([action]), torch.rand(1, 4))
        np.testing.assert_allclose(step.observation[0], expected, rtol=1e-5, atol=1e-5)
        assert step.reward.item() == reward
        assert step.is_last().item() == terminated
        assert step.discount.item() == 1 - terminated
        ends += terminated
    assert 10 < ends < 190


def test_cart_pole_ends_as_gymnasiums_vector_does():
    """NEXT_STEP: the same ends at the same steps from the same beginning."""
    size = 16
    vector = gymnasium.make_vec(
        "CartPole-v1",
        size,
        vectorization_mode="vector_entry_point",
        max_episode_steps=30,
    )
    vector.reset(seed=0)
    env = TorchCartPole(size, max_episode_steps=30, seed=0)
    env.reset()
    rng = np.random.default_rng(1)
    for _ in range(100):
        # Beginnings are random: those of gymnasium are taken over.
        physics = CartPoleState(*torch.from_numpy(vector.unwrapped.state).float())
        env._state = env.state._replace(physics=physics)
        action = rng.integers(0, 2, size)
        _, reward, terminated, truncated, _ = vector.step(action)
        time_step = env.step(torch.from_numpy(action))
        np.testing.assert_array_equal(time_step.reward, reward)
        np.testing.assert_array_equal(time_step.discount, 1 - terminated)
        np.testing.assert_array_equal(time_step.is_last(), terminated | truncated)


def test_pendulum_steps_as_that_of_gymnasium():
    env, other = TorchPendulum(1, seed=0), gymnasium.make("Pendulum-v1").unwrapped
    other.reset(seed=0)
    env.reset()
    rng = np.random.default_rng(0)
    for _ in range(200):
        start = rng.uniform(-1, 1, 2) * (10.0, 8.0)
        action = rng.uniform(-1.2, 1.2, 1).astype(np.float32)  # clipped beyond 1
        other.state = start
        expected, reward, *_ = other.step(2 * action)
        physics = PendulumState(*torch.tensor(start, dtype=torch.float32)[:, None])
        state = env.state._replace(physics=physics)
        _, step = env.next_step(state, torch.from_numpy(action)[None], torch.rand(1, 2))
        np.testing.assert_allclose(step.observation[0], expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(step.reward.item(), reward, rtol=1e-4, atol=1e-5)
        assert step.is_mid().item()


def test_episodes_begin_where_those_of_gymnasium_do():
    """Uniform: the bounds, the mean and the variance of 20,000 beginnings."""
    for env, bounds in (
        (TorchCartPole(20_000, seed=0), [0.05] * 4),
        (TorchPendulum(20_000, seed=0), [math.pi, 1.0]),
    ):
        env.reset()
        physics = torch.stack(tuple(env.state.physics))  # [numbers, B]
        for values, bound in zip(physics, bounds, strict=True):
            assert values.abs().max() <= bound
            assert values.abs().max() > 0.99 * bound
            assert values.mean().abs() < 0.03 * bound
            assert (values.var() / (bound**2 / 3) - 1).abs() < 0.05


def point_mass(position, velocity, goal=(0.0, 0.0)):
    env = TorchPointMass(1, seed=0)
    env.reset()
    physics = PointMassState(*(torch.tensor([x]) for x in (position, velocity, goal)))
    env._state = env.state._replace(physics=physics)
    return env


def test_a_force_moves_the_point():
    step = point_mass((0.5, 0.0), (0.0, 1.0)).step(torch.tensor([[1.0, -0.5]]))
    # v = (0, 1) + 0.1 (1, -0.5), p = (0.5, 0) + 0.1 v
    torch.testing.assert_close(
        step.observation["velocity"], torch.tensor([[0.1, 0.95]])
    )
    torch.testing.assert_close(
        step.observation["position"], torch.tensor([[0.51, 0.095]])
    )
    distance = math.hypot(0.51, 0.095)
    assert step.reward.item() == pytest.approx(-0.1 * (distance + 0.1 * 1.25), abs=1e-6)
    assert step.is_mid().item()


def test_only_a_slow_point_at_the_goal_has_arrived():
    for velocity, has_arrived in (((0.1, 0.0), True), ((0.5, 0.0), False)):
        step = point_mass((0.02, 0.0), velocity).step(torch.zeros(1, 2))
        assert step.is_last().item() == has_arrived
        assert step.discount.item() == 1 - has_arrived


def test_the_border_stops_the_point():
    step = point_mass((1.99, 0.0), (2.0, 0.3)).step(torch.zeros(1, 2))
    torch.testing.assert_close(
        step.observation["position"], torch.tensor([[2.0, 0.03]])
    )
    torch.testing.assert_close(step.observation["velocity"], torch.tensor([[0.0, 0.3]]))
