"""Three tasks in torch, for thousands of environments at once on any device.

:class:`TorchCartPole` and :class:`TorchPendulum` are gymnasium's ``CartPole-v1`` and
``Pendulum-v1``, in single precision: the same spaces, so that what is trained in one
plays in the other.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from alf_lite.config import configurable
from alf_lite.environments.torch_vector_env import TorchVectorEnv

# The pole falls at this angle; observations may lie a little farther out.
_FALLEN = 12 * 2 * math.pi / 360  # rad
_TRACK = 2.4  # m from the middle
_HIGH = np.array([2 * _TRACK, np.inf, 2 * _FALLEN, np.inf], np.float32)


class CartPoleState(NamedTuple):
    """Of a cart with a pole on it."""

    x: Tensor  # [B], m
    speed: Tensor  # [B], m/s
    angle: Tensor  # [B], rad from upright
    angular_speed: Tensor  # [B], rad/s


@configurable
class TorchCartPole(TorchVectorEnv):
    """Balances a pole: Barto, Sutton and Anderson 1983, as gymnasium's CartPole-v1.

    Reward 1 for every step. Terminal where the pole leans more than 12° or the cart is
    more than 2.4 m from the middle; a time limit of 500 steps. Episodes begin with
    everything uniform in [-0.05, 0.05].
    """

    observation_space = spaces.Box(-_HIGH, _HIGH)
    action_space = spaces.Discrete(2)
    num_random_numbers = 4
    time_limit = 500

    gravity = 9.8  # m/s²
    cart_mass = 1.0  # kg
    pole_mass = 0.1  # kg
    half_length = 0.5  # m, of the pole
    force = 10.0  # N
    step_seconds = 0.02

    def initial_state(self, random: Tensor) -> CartPoleState:
        return CartPoleState(*(0.1 * random - 0.05).unbind(-1))

    def transition(
        self, state: CartPoleState, action: Tensor, random: Tensor
    ) -> tuple[CartPoleState, Tensor, Tensor]:
        """Euler's method, the old speeds move the old positions."""
        mass = self.cart_mass + self.pole_mass
        moment = self.pole_mass * self.half_length
        cos, sin = state.angle.cos(), state.angle.sin()
        force = (2 * action - 1) * self.force
        pushed = (force + moment * state.angular_speed.square() * sin) / mass
        angular = (self.gravity * sin - cos * pushed) / (
            self.half_length * (4 / 3 - self.pole_mass * cos.square() / mass)
        )
        acceleration = pushed - moment * angular * cos / mass
        new = CartPoleState(
            x=state.x + self.step_seconds * state.speed,
            speed=state.speed + self.step_seconds * acceleration,
            angle=state.angle + self.step_seconds * state.angular_speed,
            angular_speed=state.angular_speed + self.step_seconds * angular,
        )
        is_out = (new.x.abs() > _TRACK) | (new.angle.abs() > _FALLEN)
        return new, torch.ones_like(new.x), is_out

    def observe(self, state: CartPoleState) -> Tensor:
        """(x, speed, angle, angular speed)."""
        return torch.stack(state, dim=-1)


class PendulumState(NamedTuple):
    """Of a pendulum."""

    angle: Tensor  # [B], rad from upright
    speed: Tensor  # [B], rad/s


_SEEN = np.array([1.0, 1.0, 8.0], np.float32)


@configurable
class TorchPendulum(TorchVectorEnv):
    """Swings a pendulum up and holds it, as gymnasium's Pendulum-v1.

    Reward −(θ² + 0.1 θ̇² + 0.001 u²) for the angle θ in [-π, π], 0 if upright, and the
    torque u in [-2, 2]. Never terminal; a time limit of 200 steps. Episodes begin with
    θ uniform in [-π, π] and θ̇ in [-1, 1].
    """

    observation_space = spaces.Box(-_SEEN, _SEEN)
    action_space = spaces.Box(-2.0, 2.0, (1,))
    num_random_numbers = 2
    time_limit = 200

    gravity = 10.0  # m/s²
    mass = 1.0  # kg
    length = 1.0  # m
    max_speed = 8.0  # rad/s
    step_seconds = 0.05

    def initial_state(self, random: Tensor) -> PendulumState:
        angle, speed = (2 * random - 1).unbind(-1)
        return PendulumState(angle=math.pi * angle, speed=speed.clone())

    def transition(
        self, state: PendulumState, action: Tensor, random: Tensor
    ) -> tuple[PendulumState, Tensor, Tensor]:
        """The new speed moves the angle."""
        torque = action[:, 0]
        angle = torch.remainder(state.angle + math.pi, 2 * math.pi) - math.pi
        cost = angle.square() + 0.1 * state.speed.square() + 0.001 * torque.square()
        acceleration = (
            3 * self.gravity / (2 * self.length) * state.angle.sin()
            + 3 / (self.mass * self.length**2) * torque
        )
        speed = state.speed + self.step_seconds * acceleration
        speed = speed.clamp(-self.max_speed, self.max_speed)
        new = PendulumState(state.angle + self.step_seconds * speed, speed)
        return new, -cost, torch.zeros_like(cost, dtype=torch.bool)

    def observe(self, state: PendulumState) -> Tensor:
        """(cos θ, sin θ, θ̇)."""
        return torch.stack((state.angle.cos(), state.angle.sin(), state.speed), dim=-1)


class PointMassState(NamedTuple):
    """Of a point that is to come to a goal."""

    position: Tensor  # [B, 2], m
    velocity: Tensor  # [B, 2], m/s
    goal: Tensor  # [B, 2], m


@configurable
class TorchPointMass(TorchVectorEnv):
    """Pushes a point without friction to a goal and stops there: a double integrator.

    A force u in [-1, 1]² accelerates the point, v ← v + u h, p ← p + v h, for steps of
    h = 0.1 s. Reward −0.1 (|p − g| + 0.1 |u|²) for every step. Terminal where the point
    is within 0.1 m of the goal and slower than 0.2 m/s, so that it pays to be there
    soon; a time limit of 200 steps. Episodes begin at rest, point and goal anywhere in
    [-1, 1]². A point that leaves [-2, 2]² is held at the border and loses its speed.
    """

    observation_space = spaces.Dict(
        {
            "goal": spaces.Box(-1.0, 1.0, (2,)),
            "position": spaces.Box(-2.0, 2.0, (2,)),
            "velocity": spaces.Box(-np.inf, np.inf, (2,)),
        }
    )
    action_space = spaces.Box(-1.0, 1.0, (2,))
    num_random_numbers = 4
    time_limit = 200

    max_force = 1.0  # m/s² for a mass of 1 kg
    step_seconds = 0.1
    goal_radius = 0.1  # m
    goal_speed = 0.2  # m/s
    border = 2.0  # m

    def initial_state(self, random: Tensor) -> PointMassState:
        position, goal = (2 * random - 1).split(2, dim=-1)
        return PointMassState(position, torch.zeros_like(position), goal)

    def transition(
        self, state: PointMassState, action: Tensor, random: Tensor
    ) -> tuple[PointMassState, Tensor, Tensor]:
        velocity = state.velocity + self.step_seconds * self.max_force * action
        free = state.position + self.step_seconds * velocity
        position = free.clamp(-self.border, self.border)
        velocity = velocity.masked_fill(position != free, 0.0)
        distance = (position - state.goal).square().sum(-1).sqrt()
        speed = velocity.square().sum(-1).sqrt()
        reward = -self.step_seconds * (distance + 0.1 * action.square().sum(-1))
        is_there = (distance < self.goal_radius) & (speed < self.goal_speed)
        return PointMassState(position, velocity, state.goal), reward, is_there

    def observe(self, state: PointMassState) -> dict[str, Tensor]:
        """Everything."""
        return {
            "goal": state.goal.clone(),
            "position": state.position.clone(),
            "velocity": state.velocity.clone(),
        }
