"""Environments written in torch: a batch is a few tensors, and a step a pure function.

Nothing of a step depends on Python or on the numbers in a tensor, so that thousands of
environments step on a GPU without it waiting for anybody, and so that acting and
stepping can be compiled together (``unrollers.compiled_unroller``).
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import gymnasium
import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.data_structures import TimeStep
from alf_lite.environments import space_specs
from alf_lite.environments.environment import EnvironmentWithSpecs
from alf_lite.environments.single_env import vector_seed
from alf_lite.environments.space_specs import RecordedValues
from alf_lite.environments.space_tree import SpaceTree
from alf_lite.environments.torch_env_checks import (
    check_declared,
    check_transition,
    named,
)
from alf_lite.environments.torch_time_steps import TorchActionLeaf, expand_mask
from alf_lite.errors import CheckpointError, ConfigError, DivergedError, EnvError
from alf_lite.tensor_specs import TensorSpec
from alf_lite.utils.devices import check_device, default_device

Nest = Any
# Steps between two looks at the numbers on a GPU, which has to be waited for.
_GPU_CHECK_INTERVAL = 64


class BatchState(NamedTuple):
    """All that the environments of a batch remember from step to step."""

    physics: Nest  # [B, ...], what a subclass calls its state
    num_steps: Tensor  # [B] int32, steps of the open episode
    has_ended: Tensor  # [B] bool, the last step was LAST


class TorchVectorEnv(EnvironmentWithSpecs, abc.ABC):
    """A batch of environments whose steps are functions of tensors.

    A subclass declares its spaces and implements three functions without side effects,
    of tensors alone, for all environments at once:

        class Walk(TorchVectorEnv):
            observation_space = spaces.Box(-9.0, 9.0, (1,))
            action_space = spaces.Discrete(2)
            num_random_numbers = 1
            time_limit = 100

            def initial_state(self, random):
                return random[:, 0] - 0.5

            def transition(self, state, action, random):
                state = state + 2 * action - 1
                return state, -state.abs(), state.abs() > 8

            def observe(self, state):
                return state[:, None]

    The base class draws the random numbers, maps actions from [-1, 1] to their Box,
    counts steps, and ends and begins episodes as every :class:`Environment` does: a
    time limit is LAST with discount 1, and the step after a LAST ignores its action and
    is the FIRST of the next episode. ``transition`` is computed for those rows, too,
    and thrown away.

    The state of a batch is in its checkpoint: a resumed run goes on to the bit.

    Args:
        num_environments: B.
        max_episode_steps: replaces ``time_limit``; 0 for no limit.
        device: where the tensors are; None: that of the run, and torch's default device
            without one.
        random_first_length: whether the first episodes after a reset are cut by the
            time limit as if they had begun at a random step before. Environments whose
            episodes have one length are all at the same step for ever otherwise, and
            every unroll is of the same part of an episode. Not for evaluations.
        seed: of the first reset, if that gets none.

    Raises:
        ConfigError: if there is no such device, or a space has no fixed shape.
    """

    takes_num_environments: ClassVar[bool] = True

    observation_space: ClassVar[gymnasium.Space]
    action_space: ClassVar[gymnasium.Space]
    # K: uniform numbers that every environment gets at every step.
    num_random_numbers: ClassVar[int]
    # Steps of an episode at most; 0: no limit.
    time_limit: ClassVar[int] = 0

    def __init__(
        self,
        num_environments: int,
        *,
        max_episode_steps: int | None = None,
        device: str | None = None,
        random_first_length: bool = False,
        seed: int | None = None,
    ) -> None:
        name = type(self).__name__
        is_count = isinstance(num_environments, int)
        if not is_count or isinstance(num_environments, bool) or num_environments < 1:
            raise ConfigError(
                f"{name}: num_environments must be a positive integer, got "
                f"{num_environments!r}"
            )
        self._check_declarations()
        limit = self.time_limit if max_episode_steps is None else max_episode_steps
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 0:
            raise ConfigError(
                f"{name}: max_episode_steps must be a number of steps or 0 for no "
                f"limit, got {max_episode_steps!r}"
            )
        super().__init__(
            num_environments,
            space_specs.observation_spec(self.observation_space),
            space_specs.action_spec(self.action_space),
            reward_spec=TensorSpec(()),
            recorded_values=RecordedValues(self.observation_space, self.action_space),
            name=name,
        )
        self.max_episode_steps = limit
        if random_first_length and not limit:
            raise ConfigError(
                f"{name}: random_first_length cuts episodes by their time limit, and "
                "they have none: set max_episode_steps"
            )
        self._random_first_length = random_first_length
        self._generator = _generator(device or default_device(), name)
        # Where everything is that comes and goes. With its index: cuda:0 for cuda.
        self.device = torch.empty(0, device=self._generator.device).device
        self._action_tree = SpaceTree(self.action_space, "action")
        self._actions = [
            TorchActionLeaf(leaf, num_environments, self.device)
            for leaf in self._action_tree.leaves
        ]
        self._env_id = torch.arange(
            num_environments, dtype=torch.int32, device=self.device
        )
        self._seed = seed
        self._state: BatchState | None = None
        self._is_view: Sequence[bool] = ()  # of each leaf of an observation
        self._is_new = True  # no step since the last reset
        self._interval = 1 if self.device.type == "cpu" else _GPU_CHECK_INTERVAL
        self._calls_until_check = 1

    # What a subclass implements

    @abc.abstractmethod
    def initial_state(self, random: Tensor) -> Nest:
        """The states in which episodes begin.

        Args:
            random: [B, K], uniform in [0, 1).

        Returns:
            A nest of tensors [B, ...].
        """

    @abc.abstractmethod
    def transition(
        self, state: Nest, action: Nest, random: Tensor
    ) -> tuple[Nest, Tensor, Tensor]:
        """What an action does.

        Args:
            state: [B, ...].
            action: [B, ...], an element of ``action_space``: in its own bounds.
            random: [B, K], uniform in [0, 1).

        Returns:
            The new state [B, ...], the reward [B], and [B] bool where it is terminal.
        """

    @abc.abstractmethod
    def observe(self, state: Nest) -> Nest:
        """What agents see, of ``observation_space``: new tensors [B, ...]."""

    # The same for everybody

    @property
    def state(self) -> BatchState:
        """From which the next step goes on; not to be changed.

        Raises:
            RuntimeError: before the first reset.
        """
        if self._state is None:
            raise RuntimeError(f"{self.name}: call reset() first")
        return self._state

    def draw(self, num_steps: int) -> Tensor:
        """Random numbers [num_steps, B, K] of the next steps, uniform in [0, 1).

        On a CPU they are those that single steps would draw.
        """
        return torch.rand(
            (num_steps, self.batch_size, self.num_random_numbers),
            generator=self._generator,
            device=self.device,
        )

    def next_step(
        self, state: BatchState, action: Nest, random: Tensor
    ) -> tuple[BatchState, TimeStep]:
        """One step as a pure function: may be compiled, and changes nothing.

        Args:
            state: of the batch.
            action: [B, ...] of ``action_spec``, on the environment's device.
            random: [B, K], from :meth:`draw`.

        Returns:
            The new state, and the step that was arrived at: all in new tensors, but
            for ``env_id``.
        """
        first = state.has_ended
        leaves = self._action_tree.split(action)
        given = map(TorchActionLeaf.to_environment, self._actions, leaves)
        physics, reward, terminated = self.transition(
            state.physics, self._action_tree.join(list(given)), random
        )
        physics = nest.map_structure(
            lambda new, old: torch.where(expand_mask(first, old), new, old),
            self.initial_state(random),
            physics,
        )
        num_steps = (state.num_steps + 1).masked_fill(first, 0)
        terminated = terminated & ~first
        has_ended = terminated
        if self.max_episode_steps:
            has_ended = terminated | (num_steps >= self.max_episode_steps)
        prev_action = [
            leaf.masked_fill(expand_mask(first, leaf), 0).to(leaf.dtype)
            for leaf in leaves
        ]
        time_step = TimeStep(
            step_type=1 + has_ended.int() - first.int(),
            reward=reward.float().masked_fill(first, 0.0),
            discount=1 - terminated.float(),
            observation=self._without_views(self.observe(physics)),
            prev_action=self._action_tree.join(prev_action),
            env_id=self._env_id,
        )
        return BatchState(physics, num_steps, has_ended), time_step

    def first_step(self, random: Tensor) -> tuple[BatchState, TimeStep]:
        """The beginning of all episodes, as a pure function of [B, K] numbers."""
        # As steps return them, so that nothing is compiled for other strides.
        physics = nest.map_structure(Tensor.contiguous, self.initial_state(random))
        nothing = torch.zeros_like(self._env_id)
        state = BatchState(physics, nothing, nothing.bool())
        zeros = [leaf.zeros() for leaf in self._actions]
        ones = torch.ones(self.batch_size, device=self.device)
        observation = self.observe(physics)
        self._is_view = _are_views(observation, physics)
        return state, TimeStep(
            step_type=torch.zeros_like(self._env_id),
            reward=torch.zeros_like(ones),
            discount=ones,
            observation=self._without_views(observation),
            prev_action=self._action_tree.join(zeros),
            env_id=self._env_id,
        )

    def _without_views(self, observation: Nest) -> Nest:
        """Copies what is the state's own memory, as the first step has shown."""
        if not any(self._is_view):
            return observation
        leaves = nest.flatten(observation)
        return nest.pack_sequence_as(
            observation,
            [
                leaf.clone() if is_view else leaf
                for leaf, is_view in zip(leaves, self._is_view, strict=True)
            ],
        )

    def reset(self, seed: int | None = None) -> TimeStep:
        if seed is None and self._state is None:
            seed = self._seed
            if seed is None:
                self._generator.seed()  # another one each time
        if seed is not None:
            self._generator.manual_seed(vector_seed(seed))
        self._is_new, self._calls_until_check = True, 1
        with torch.no_grad():
            self._state, self._current = self.first_step(self.draw(1)[0])
            if self._random_first_length:
                share = torch.rand(
                    self.batch_size, generator=self._generator, device=self.device
                )
                num_steps = (share * self.max_episode_steps).int()
                self._state = self._state._replace(num_steps=num_steps)
        check_declared(self, self.device, self._state.physics, self._current)
        return self._current

    def step(self, action: Nest) -> TimeStep:
        state = self.state
        if self._is_new:
            nest.assert_same_structure(self.action_spec, action)
        leaves = self._action_tree.split(action)
        own = self._action_tree.join(
            [leaf.read(x) for leaf, x in zip(self._actions, leaves, strict=True)]
        )
        with torch.no_grad():
            result = self.next_step(state, own, self.draw(1)[0])
        if self._is_new:
            new, time_step = result
            check_declared(self, self.device, new.physics, time_step)
            check_transition(self, state.physics, new.physics, new.has_ended, time_step)
        self.go_on_from(*result, own)
        return self.current_time_step

    def go_on_from(self, state: BatchState, time_step: TimeStep, action: Nest) -> None:
        """Takes over what somebody else has computed by :meth:`next_step`.

        Args:
            state: of the batch.
            time_step: the newest one.
            action: that led there, [..., B, ...]; looked at for NaN.

        Raises:
            DivergedError: if an action is not finite.
            EnvError: if an observation or a reward is not.
        """
        self._is_new = False
        self._state, self._current = state, time_step
        self._calls_until_check -= 1
        if self._calls_until_check > 0:
            return
        self._calls_until_check = self._interval
        for leaf, path in named(action, "action"):
            if leaf.is_floating_point() and not _is_finite(leaf):
                raise DivergedError(
                    f"the policy chose {path} that is not finite: its parameters or "
                    "its inputs are not finite any more"
                )
        seen = (time_step.observation, time_step.reward)
        for values, name in zip(seen, ("observation", "reward"), strict=True):
            for leaf, path in named(values, name):
                if leaf.is_floating_point() and not _is_finite(leaf):
                    rows = leaf.reshape(self.batch_size, -1).isfinite().all(1)
                    raise EnvError(
                        f"{self.name}: environment {int((~rows).int().argmax())} "
                        f"returned {path} that is not finite"
                    )

    def set_attribute(self, name: str, value: Any) -> None:
        if name.startswith("_") or not hasattr(self, name):
            raise EnvError(f"{self.name} has no attribute {name} that could be set")
        kept = getattr(self, name)
        if callable(kept):
            kept(value)
        else:
            setattr(self, name, value)

    # Resuming

    def episode_state(self) -> dict[str, Any] | None:
        if self._state is None:
            return None
        return {
            "state": [leaf.clone() for leaf in nest.flatten(self._state)],
            "time_step": [leaf.clone() for leaf in nest.flatten(self._current)],
            "generator": self._generator.get_state(),
            "device": self.device.type,
        }

    def restore_episodes(self, state: dict[str, Any], seed: int) -> dict[int, str]:
        if not {"state", "time_step", "generator", "device"} <= state.keys():
            raise CheckpointError(
                f"{self.name}: the open episodes are of environments of another kind"
            )
        if state["device"] != self.device.type:
            self.reset(seed)
            reason = f"they were on {state['device']}, now they are on {self.device}"
            return dict.fromkeys(range(self.batch_size), reason)
        with torch.no_grad():
            like = self.first_step(torch.zeros_like(self.draw(1)[0]))
        restored = [
            _restored(saved, example, self.name)
            for saved, example in zip(
                (state["state"], state["time_step"]), like, strict=True
            )
        ]
        self._state, time_step = restored
        self._current = time_step._replace(env_id=self._env_id)
        self._generator.set_state(state["generator"])
        self._is_new, self._calls_until_check = True, 1
        return {}

    def _check_declarations(self) -> None:
        """Raises ConfigError, if a subclass has not said what it must say."""
        for name in ("observation_space", "action_space", "num_random_numbers"):
            if not hasattr(self, name):
                raise ConfigError(
                    f"{type(self).__name__} must declare {name}, as a class attribute "
                    "or before its constructor calls that of TorchVectorEnv"
                )


def _generator(device: str | torch.device, name: str) -> torch.Generator:
    try:
        check_device(device)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error
    return torch.Generator(device)


def _are_views(observation: Nest, state: Nest) -> list[bool]:
    """Of each leaf, whether it is memory of the state."""
    owned = [x for x in nest.flatten(state) if isinstance(x, Tensor)]
    addresses = {x.untyped_storage().data_ptr() for x in owned}
    return [
        isinstance(x, Tensor) and x.untyped_storage().data_ptr() in addresses
        for x in nest.flatten(observation)
    ]


def _is_finite(leaf: Tensor) -> bool:
    return bool(leaf.isfinite().all())


def _restored(leaves: list[Tensor], like: Nest, name: str) -> Nest:
    expected = [(x.shape, x.dtype) for x in nest.flatten(like)]
    if [(x.shape, x.dtype) for x in leaves] != expected:
        raise CheckpointError(
            f"{name}: the open episodes were saved as "
            f"{[tuple(x.shape) for x in leaves]}, the environment's are "
            f"{[tuple(shape) for shape, _ in expected]}: is it another environment or "
            "another number of them?"
        )
    device = nest.flatten(like)[0].device
    # Nobody else has them, and they are no tensors of an inference mode.
    return nest.pack_sequence_as(like, [x.to(device, copy=True) for x in leaves])
