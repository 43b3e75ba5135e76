"""Acting outside of training, with what an algorithm has learned."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.algorithms.rl_contract import RLContract
from alf_lite.data_structures import StepType, TimeStep
from alf_lite.environments.specs_only_environment import SpecsOnlyEnvironment
from alf_lite.errors import ConfigError
from alf_lite.nest import path_parts
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec
from alf_lite.utils import random_state, summary
from alf_lite.utils.devices import moved
from alf_lite.utils.tensor_utils import reset_state

Nest = Any


class PredictActor:
    """Acts with ``predict_step``; keeps what is remembered from step to step.

    Args:
        algorithm: in evaluation mode.
        batch_size: B.
    """

    def __init__(self, algorithm: RLContract, batch_size: int) -> None:
        self._algorithm = algorithm
        self._initial_state = algorithm.get_initial_predict_state(batch_size)
        self._state = self._initial_state
        self._transform_state = algorithm.get_initial_transform_state(batch_size)

    def act(self, time_step: TimeStep) -> Nest:
        """The actions [B, ...] at the newest time steps [B, ...], untransformed."""
        time_step = moved(time_step, self._algorithm.device)
        if self._algorithm.optional_entries:
            rows = len(time_step.step_type)
            observation = self._algorithm.completed(time_step.observation, rows)
            time_step = time_step._replace(observation=observation)
        state = reset_state(self._state, self._initial_state, time_step.is_first())
        inputs, self._transform_state = self._algorithm.transform_timestep(
            time_step, self._transform_state
        )
        step = self._algorithm.predict_step(inputs, state)
        self._state = step.state
        return step.output


@contextlib.contextmanager
def eval_mode(algorithm: RLContract) -> Iterator[None]:
    """Every module is in evaluation mode; no summary is written."""
    modes = [(module, module.training) for module in algorithm.modules()]
    algorithm.eval()
    try:
        with summary.disabled():
            yield
    finally:
        for module, training in modes:
            module.training = training


def check_can_draw(algorithm: RLContract, asked: str) -> None:
    """Raises ConfigError if there is no distribution that actions are drawn from.

    Args:
        algorithm: acts.
        asked: by what draws were asked for.
    """
    acting = algorithm.rl_algorithm
    if not acting.has_stochastic_policy:
        raise ConfigError(
            f"{asked}: {acting.name} has no distribution to draw actions from. Leave "
            "that out: it takes the best ones."
        )


@contextlib.contextmanager
def exploring(algorithm: RLContract, is_drawn: bool) -> Iterator[None]:
    """In which actions are drawn from the policy, or are the best ones.

    Args:
        algorithm: acts, without gradients.
        is_drawn: False for the best ones.

    Raises:
        ConfigError: if they are to be drawn, and there is nothing to draw from.
    """
    if is_drawn:
        check_can_draw(algorithm, "deterministic=False")
    epsilon = algorithm.predict_epsilon
    algorithm.predict_epsilon = 1.0 if is_drawn else 0.0
    try:
        with torch.inference_mode():
            yield
    finally:
        algorithm.predict_epsilon = epsilon


class TrainedPolicy:
    """Acts as an algorithm has learned to: numpy in, numpy out.

    :func:`~alf_lite.load_policy` makes it of a run, ``algorithm.policy()`` of an
    algorithm that may be training. The latter is a view: it acts with the parameters
    and statistics of the moment, and changes nothing of the training, whose modes,
    memories and random numbers are its own.

    What a recurrent network remembers, and what frames were stacked, is kept here from
    call to call; :meth:`reset` begins new episodes. A policy that remembers nothing
    takes batches of any size at any time.

    Args:
        algorithm: that acts.
        env: the spaces of its environment.
        is_live: whether the algorithm may be training; else it is built for acting.
    """

    def __init__(
        self, algorithm: RLContract, env: SpecsOnlyEnvironment, *, is_live: bool
    ) -> None:
        assert env.recorded_values is not None, env
        self._is_live = is_live
        self._random_state: Any = None  # of a live one
        self._algorithm = algorithm
        self._env = env
        self._values = env.recorded_values
        self.remembers = algorithm.acts_on_prev_action or not all(
            nest.is_empty(spec)
            for spec in (
                algorithm.predict_state_spec,
                algorithm.data_transformer.state_spec,
            )
        )
        self._batch_size: int | None = None
        self._is_first = torch.ones(0, dtype=torch.bool)
        self._actor: PredictActor | None = None
        self._prev_action: Nest = ()
        self._leaves = list(nest.flatten_with_path(self.needed_spec))

    @property
    def algorithm(self) -> RLContract:
        """The one that acts."""
        return self._algorithm

    @property
    def observation_spec(self) -> NestedTensorSpec:
        """Of one observation, as the environment gives it."""
        return self._env.observation_spec

    @property
    def action_spec(self) -> NestedTensorSpec:
        """Of one action as the networks choose it; see ``action_space``."""
        return self._env.action_spec

    @property
    def observation_space(self) -> Any:
        """That of the environment."""
        return self._values.observation_space

    @property
    def action_space(self) -> Any:
        """That of the environment, in which the actions are."""
        return self._values.action_space

    def reset(self, done: Any = None) -> None:
        """New episodes begin with the next observation.

        Args:
            done: [B] bool, in which rows of the batch; None: in all, and the next batch
                may have another size.
        """
        if done is None or self._batch_size is None:
            self._batch_size = None
            return
        is_done = np.asarray(done, bool)
        if is_done.shape != (self._batch_size,):
            raise ValueError(
                f"reset: expected done [{self._batch_size}], got {list(is_done.shape)}"
            )
        begins = torch.from_numpy(is_done)
        self._is_first = self._is_first | begins
        # A FIRST step comes after no action, as in training
        zeros = nest.map_structure(torch.zeros_like, self._prev_action)
        begins = begins.to(self._algorithm.device)
        self._prev_action = reset_state(self._prev_action, zeros, begins)

    def predict(self, observation: Nest, deterministic: bool = True) -> Nest:
        """The action for one observation, or one for each of a batch.

        Args:
            observation: as the environment gives it, with or without [B, ...] in front.
                Entries that only critics see may be left out.
            deterministic: the best action; False draws it from the policy.

        Returns:
            what the environment's ``step`` takes, with [B, ...] if the observation has.

        Raises:
            ConfigError: if it is to be drawn from a policy that has no distribution, as
                in DQN and DDPG, and with plans.
            ValueError: if the shape or the keys are others than those of the spec, or
                an integer is out of range.
            TypeError: if it is not numbers, or these are of another kind.
        """
        tensors, batch_size = self._to_tensors(observation)
        rows = 1 if batch_size is None else batch_size
        self._begin(rows)
        assert self._actor is not None
        with (
            self._undisturbed(draws=not deterministic),
            exploring(self._algorithm, not deterministic),
        ):
            action = self._actor.act(self._time_step(tensors, rows))
        self._prev_action = action
        self._is_first = torch.zeros(rows, dtype=torch.bool)
        return self._to_environment(action, is_batch=batch_size is not None)

    def distribution(self, observation: Nest) -> Nest:
        """π(·|s) for one observation, as a batch of one, or for each of a batch.

        Args:
            observation: as :meth:`predict` takes it.

        Raises:
            ConfigError: if there is none, as in DQN and DDPG, or the policy remembers
                or searches.
        """
        algorithm: Any = without_memory(self).algorithm.rl_algorithm
        if not (algorithm.has_stochastic_policy and hasattr(algorithm, "_policy")):
            raise ConfigError(f"{algorithm.name} has no distribution of its actions")
        tensors, batch_size = self._to_tensors(observation)
        rows = 1 if batch_size is None else batch_size
        self._begin(rows)
        time_step = self._time_step(tensors, rows)
        with self._undisturbed(draws=False), torch.inference_mode():
            state = self._algorithm.get_initial_transform_state(rows)
            observation = self._algorithm.completed(time_step.observation, rows)
            time_step = time_step._replace(observation=observation)
            inputs, _ = self._algorithm.transform_timestep(time_step, state)
            inputs = self._algorithm.seen_by_policy(inputs)
            return algorithm._policy(inputs.observation)[0]

    # For algorithms that learn from it

    @property
    def needed_spec(self) -> NestedTensorSpec:
        """Of one observation, without the entries that only critics see."""
        return self._algorithm.needed(self._env.observation_spec)

    def choose(self, observation: Nest) -> Nest:
        """The best actions, for observations of an environment as they are replayed.

        Args:
            observation: tensors [B, ...]; needed entries, and perhaps others.

        Returns:
            tensors [B, ...] as the networks choose them; of a policy without memory.
        """
        observation = self._algorithm.needed(observation)
        rows = len(nest.flatten(observation)[0])
        self._begin(rows)
        assert self._actor is not None
        with exploring(self._algorithm, False):
            action = self._actor.act(self._time_step(observation, rows))
        return nest.map_structure(torch.clone, action)  # for use with gradients

    # What is remembered, for those who keep it themselves

    def new_memory(self, rows: int) -> list[np.ndarray]:
        """[rows, ...]: what it remembers where an episode begins, for predict_with."""
        self.reset()
        self._begin(rows)
        return [leaf.numpy(force=True).copy() for leaf in nest.flatten(self._memory)]

    def predict_with(
        self, observation: Nest, memory: list[np.ndarray], deterministic: bool = True
    ) -> tuple[Nest, list[np.ndarray]]:
        """As :meth:`predict` of a batch, whose rows need not be those of the last one.

        Returns:
            the actions, and what is remembered afterwards of each row.
        """
        self.new_memory(len(memory[0]))
        leaves = [torch.from_numpy(leaf).to(self._algorithm.device) for leaf in memory]
        self._memory = nest.pack_sequence_as(self._memory, leaves)
        action = self.predict(observation, deterministic)
        return action, [leaf.numpy(force=True) for leaf in nest.flatten(self._memory)]

    @property
    def _memory(self) -> Nest:
        actor = self._actor
        assert actor is not None
        return (actor._state, actor._transform_state, self._prev_action, self._is_first)

    @_memory.setter
    def _memory(self, memory: Nest) -> None:
        actor = self._actor
        assert actor is not None
        actor._state, actor._transform_state, self._prev_action, is_first = memory
        self._is_first = is_first.cpu()

    @contextlib.contextmanager
    def _undisturbed(self, *, draws: bool) -> Iterator[None]:
        """In which nothing of a training changes; draws have a stream of their own."""
        if not self._is_live:
            yield
            return
        with random_state.preserved(), eval_mode(self._algorithm):
            if draws and self._random_state is None:
                seed = torch.initial_seed() & random_state.MAX_SEED
                random_state.seed_everything(random_state.derive_seed(seed, "policy"))
            elif draws:
                random_state.set_state(self._random_state)
            yield
            if draws:
                self._random_state = random_state.get_state()

    def _begin(self, rows: int) -> None:
        is_other = rows != self._batch_size
        if self._batch_size is None or (is_other and not self.remembers):
            algorithm = self._algorithm
            self._batch_size = rows
            self._is_first = torch.ones(rows, dtype=torch.bool)
            self._actor = PredictActor(algorithm, rows)
            self._prev_action = nest.map_structure(
                lambda spec: spec.zeros((rows,)).to(algorithm.device),
                algorithm.action_spec,
            )
        elif is_other:
            raise ValueError(
                f"observation: a batch of {rows} follows batches of "
                f"{self._batch_size}, whose episodes are open. Call reset() first."
            )

    def _time_step(self, observation: Nest, rows: int) -> TimeStep:
        device = self._algorithm.device
        is_first = self._is_first.to(device)
        kinds = (int(StepType.FIRST), int(StepType.MID))
        return TimeStep(
            step_type=torch.where(is_first, *kinds).to(torch.int32),
            reward=self._algorithm.reward_spec.zeros((rows,)).to(device),
            discount=torch.ones(rows, device=device),
            observation=observation,
            prev_action=self._prev_action,
            env_id=torch.arange(rows, dtype=torch.int32, device=device),
        )

    # Between numpy and tensors

    def _to_tensors(self, observation: Nest) -> tuple[Nest, int | None]:
        """The observation [B, ...], and B; None if it was a single one."""
        spec = self._algorithm.needed(self._env.observation_spec)
        observation = self._algorithm.needed(observation)
        if isinstance(spec, TensorSpec):
            arrays = [observation]
        else:
            try:
                arrays = nest.flatten_up_to(spec, observation)
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"observation: expected the structure of {spec}: {error}"
                ) from error
        tensors, sizes = [], {}
        for (path, leaf), array in zip(self._leaves, arrays, strict=True):
            keys = tuple(path_parts(path))
            name = "".join(["observation", *(f"[{key!r}]" for key in keys)])
            array, sizes[name] = self._checked(name, leaf, keys, array)
            recorded = self._values.observations[keys]
            recorded.check_range(name, array)
            values = np.array(recorded.to_agent(array))
            tensors.append(torch.from_numpy(values).to(leaf.dtype))
        if len(set(sizes.values())) > 1:
            raise ValueError(
                f"observation: the parts are of different batches: {sizes}"
            )
        device = self._algorithm.device
        tensors = [tensor.to(device) for tensor in tensors]
        size = next(iter(sizes.values()), None)
        return nest.pack_sequence_as(spec, tensors), size

    def _checked(
        self, name: str, spec: TensorSpec, keys: tuple[str, ...], value: Any
    ) -> tuple[np.ndarray, int | None]:
        """One part as [B, ...], and B; None if it was a single one."""
        array = np.asarray(value)
        if array.dtype.kind not in "fiub":
            raise TypeError(f"{name}: expected numbers, got {array.dtype}")
        if array.dtype.kind == "f" and not spec.dtype.is_floating_point:
            raise TypeError(
                f"{name}: expected integers ({spec.dtype}), got {array.dtype}"
            )
        if not np.isfinite(array).all():
            raise ValueError(
                f"{name}: expected finite numbers, got {array[~np.isfinite(array)][0]}"
            )
        shape = tuple(spec.shape)
        if array.shape == shape:
            return array[None], None
        if array.shape[1:] == shape and array.ndim == len(shape) + 1 and len(array):
            return array, len(array)
        raise ValueError(
            f"{name}: expected shape {list(shape)}, or {['B', *shape]} for a batch, "
            f"got {list(array.shape)}"
        )

    def _to_environment(self, action: Nest, *, is_batch: bool) -> Nest:
        def convert(path: str, leaf: Tensor) -> Any:
            recorded = self._values.actions[tuple(path_parts(path))]
            array = recorded.to_environment(leaf.numpy(force=True))
            return array if is_batch else array[0]

        leaves = [convert(*item) for item in nest.flatten_with_path(action)]
        return nest.pack_sequence_as(action, leaves)


def without_memory(policy: TrainedPolicy) -> TrainedPolicy:
    """The policy, if it acts on the observation alone.

    Raises:
        ConfigError: if it remembers, so that it must be told of new episodes.
    """
    if policy.remembers:
        raise ConfigError(
            f"{policy.algorithm.name} remembers what it has seen in an episode. Write "
            "policy = algorithm.policy(), then policy.predict(observation), and "
            "policy.reset() where an episode begins."
        )
    return policy
