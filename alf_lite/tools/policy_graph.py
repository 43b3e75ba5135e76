"""A policy as one function of tensors, from what an environment gives to what it takes.

All that lies between is inside: data transformers, action masks, the networks, the
bounds of the actions. What is remembered from step to step, stacked frames and the
states of recurrent networks, goes in and comes out, and so does the noise of a policy
that draws its actions.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from alf_lite import nest
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.data_structures import StepType, TimeStep
from alf_lite.environments import space_specs
from alf_lite.environments.space_specs import RecordedValues
from alf_lite.environments.space_tree import SpaceLeaf, SpaceTree
from alf_lite.errors import ExportError
from alf_lite.nest import path_parts
from alf_lite.utils import random_state
from alf_lite.utils.tensor_utils import reset_state

Nest = Any
Role = Literal["observation", "is_first", "state", "noise", "action"]

# More than one row: torch takes a dimension of size 1 for one that always has it.
_EXAMPLE_ROWS = 2


class Port(NamedTuple):
    """A tensor [batch, *shape] that goes in or comes out."""

    name: str
    role: Role
    path: tuple[str | int, ...]  # in the nest: keys of dicts, indices of tuples
    shape: tuple[int, ...]
    dtype: torch.dtype
    space: SpaceLeaf | None = None  # of observations and actions
    distribution: str = ""  # of noise: "normal", or "uniform" in [0, 1)

    def example(self) -> Tensor:
        """What may go in, [2, ...]."""
        shape = (_EXAMPLE_ROWS, *self.shape)
        if self.role == "is_first":
            return torch.ones(shape, dtype=self.dtype)
        if self.role == "noise":
            return self.draw(np.random.default_rng(0), _EXAMPLE_ROWS)
        if self.space is None:
            return torch.zeros(shape, dtype=self.dtype)
        space: Any = self.space.space
        low = getattr(space, "start", 0)
        if hasattr(space, "low"):
            low = np.clip(0, space.low, space.high)
        return torch.as_tensor(low).expand(shape).to(self.dtype).contiguous()

    def draw(self, generator: np.random.Generator, num_rows: int) -> Tensor:
        """Noise [num_rows, *shape]."""
        shape = (num_rows, *self.shape)
        if self.distribution == "normal":
            drawn = generator.standard_normal(shape, np.float32)
        else:
            drawn = generator.random(shape, np.float32)
        return torch.from_numpy(drawn).to(self.dtype)


class PolicyGraph(nn.Module):
    """Acts as ``predict_step``; its inputs and outputs are those of the environment.

    Args:
        algorithm: built for acting, on the CPU and in evaluation mode.
        values: between the environment and the algorithm.

    Attributes:
        inputs: of ``forward``, in their order.
        outputs: likewise.
    """

    def __init__(self, algorithm: RLAlgorithm, values: RecordedValues) -> None:
        super().__init__()
        self.algorithm = algorithm
        observation_leaves = [
            leaf
            for leaf in SpaceTree(values.observation_space, "observation").leaves
            if not algorithm.optional_entries.intersection(leaf.keys[:1])
        ]
        action_leaves = SpaceTree(values.action_space, "action").leaves
        self._from_environment = list(map(_FromEnvironment, observation_leaves))
        self._to_environment = list(map(_ToEnvironment, action_leaves))
        env_spec = space_specs.observation_spec(values.observation_space)
        env_spec = algorithm.needed(env_spec)
        self._observation_spec = env_spec
        specs = nest.flatten(env_spec)
        observations = _numbered(
            Port(
                _name("observation", leaf.keys), "observation", leaf.keys, leaf.shape,
                spec.dtype, leaf
            )
            for leaf, spec in zip(observation_leaves, specs, strict=True)
        )  # fmt: skip
        self._initial_state = (
            algorithm.get_initial_predict_state(1),
            algorithm.get_initial_transform_state(1),
        )
        states = _numbered(self._state_ports())
        self.inputs = observations + states
        if states:
            is_first = Port("is_first", "is_first", (), (), torch.bool)
            self.inputs = [*observations, is_first, *states]
        noise = NoiseRecorder(self.inputs)
        examples = [port.example() for port in self.inputs]
        with random_state.preserved(), torch.no_grad(), noise:
            outputs = self(*examples)
        self.inputs += noise.ports
        self.outputs = _numbered(
            Port(_name("action", leaf.keys), "action", leaf.keys, leaf.shape,
                 output.dtype, leaf)
            for leaf, output in zip(action_leaves, outputs, strict=False)
        )  # fmt: skip
        self.outputs += [port._replace(name=f"next_{port.name}") for port in states]

    def _state_ports(self) -> Iterator[Port]:
        for name, state in zip(
            ("memory", "transformer_state"), self._initial_state, strict=True
        ):
            for path, leaf in nest.flatten_with_path(state):
                keys = (name, *path_parts(path))
                shape = tuple(leaf.shape[1:])
                yield Port(_name("", keys), "state", keys, shape, leaf.dtype)

    def select(self, tensors: Sequence[Any], *roles: Role) -> list[Any]:
        """Those of the inputs that have one of the roles."""
        return [
            tensor
            for port, tensor in zip(self.inputs, tensors, strict=False)
            if port.role in roles
        ]

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """``inputs`` [B, ...] → ``outputs`` [B, ...]."""
        num_rows = tensors[0].shape[0]
        with contextlib.ExitStack() as stack:
            if noise := self.select(tensors, "noise"):
                stack.enter_context(NoiseFrom(noise))
            if torch.compiler.is_compiling():
                stack.enter_context(GradientsAsTheyAre())
            return self._act(tensors, num_rows)

    def _act(self, tensors: Sequence[Tensor], num_rows: int) -> tuple[Tensor, ...]:
        leaves = [
            convert(tensor)
            for convert, tensor in zip(
                self._from_environment, self.select(tensors, "observation"), strict=True
            )
        ]
        observation = self.algorithm.completed(
            nest.pack_sequence_as(self._observation_spec, leaves), num_rows
        )
        states = self.select(tensors, "state")
        if states:
            [is_first] = self.select(tensors, "is_first")
        else:
            is_first = torch.zeros(num_rows, dtype=torch.bool)
        zeros = nest.map_structure(
            lambda leaf: leaf.expand(num_rows, *leaf.shape[1:]), self._initial_state
        )
        state, transform_state = reset_state(
            nest.pack_sequence_as(self._initial_state, states), zeros, is_first
        )
        time_step = self._time_step(observation, is_first, num_rows)
        inputs, transform_state = self.algorithm.transform_timestep(
            time_step, transform_state
        )
        step = self.algorithm.predict_step(inputs, state)
        actions = [
            convert(action)
            for convert, action in zip(
                self._to_environment, nest.flatten(step.output), strict=True
            )
        ]
        return (*actions, *nest.flatten((step.state, transform_state)))

    def _time_step(
        self, observation: Nest, is_first: Tensor, num_rows: int
    ) -> TimeStep:
        """As :class:`TrainedPolicy` makes it, whose steps have no reward either."""
        algorithm = self.algorithm
        kinds = (int(StepType.FIRST), int(StepType.MID))
        return TimeStep(
            step_type=torch.where(is_first, *kinds).to(torch.int32),
            reward=algorithm.reward_spec.zeros((num_rows,)),
            discount=torch.ones(num_rows),
            observation=observation,
            prev_action=nest.zeros(algorithm.action_spec, (num_rows,)),
            env_id=torch.arange(num_rows, dtype=torch.int32),
        )

    def example(self) -> tuple[Tensor, ...]:
        """Inputs for one call, [2, ...]."""
        return tuple(port.example() for port in self.inputs)

    def traced(self) -> torch.export.ExportedProgram:
        """The graph, for batches of any size.

        Raises:
            ExportError: naming the part that has no graph.
        """
        batch = torch.export.Dim("batch")
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of torch, about its own tracing
                return torch.export.export(
                    self,
                    self.example(),
                    dynamic_shapes={"tensors": tuple({0: batch} for _ in self.inputs)},
                    strict=False,
                )
        except Exception as error:
            raise ExportError(
                f"{type(self.algorithm).__name__} cannot be exported: "
                f"{blame(error)}. What depends on the values of tensors, or leaves "
                "torch, has no graph."
            ) from error


class NoiseFrom(TorchFunctionMode):
    """Inside, what is drawn ``like`` a tensor is given, in the order of the calls."""

    def __init__(self, noise: Sequence[Tensor]) -> None:
        super().__init__()
        self._rest = iter(noise)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func in _DISTRIBUTIONS:
            # Who draws owns the result, and may overwrite it.
            return next(self._rest).clone()
        return func(*args, **(kwargs or {}))


class GradientsAsTheyAre(TorchFunctionMode):
    """Inside, nothing switches gradients on or off, where none are kept anyhow.

    A graph has none. ``torch.export`` would take the switches for operations, and write
    the whole graph anew to remove each: minutes, for a policy that plans.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is torch._C._set_grad_enabled:
            return None
        return func(*args, **(kwargs or {}))


_DISTRIBUTIONS: dict[Any, str] = {
    torch.rand_like: "uniform",
    torch.randn_like: "normal",
}


class NoiseRecorder(TorchFunctionMode):
    """Notes what noise is drawn inside, as inputs that can replace it.

    Args:
        inputs: those there are already.

    Raises:
        ExportError: on noise that cannot be replaced.
    """

    def __init__(self, inputs: Sequence[Port]) -> None:
        super().__init__()
        self.ports: list[Port] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        before = torch.get_rng_state()
        result = func(*args, **(kwargs or {}))
        if torch.equal(before, torch.get_rng_state()):
            return result
        distribution = _DISTRIBUTIONS.get(func)
        if distribution is None or result.shape[:1] != (_EXAMPLE_ROWS,):
            name = getattr(func, "__name__", str(func))
            raise ExportError(
                f"the policy draws random numbers by {name}, which cannot be given "
                "from outside. Export the policy that takes the best action."
            )
        self.ports.append(
            Port(
                f"noise_{len(self.ports)}",
                "noise",
                (),
                tuple(result.shape[1:]),
                result.dtype,
                distribution=distribution,
            )
        )
        return result


def blame(error: BaseException) -> str:
    """Where in the code of the policy an error came up, and its first line."""
    where = ""
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        module = trace.tb_frame.f_globals.get("__name__", "")
        if not module.startswith(("torch.", "optree", __name__)) and module != "torch":
            owner = trace.tb_frame.f_locals.get("self")
            name = f"{type(owner).__name__}." if owner is not None else ""
            where = f"{name}{code.co_name} ({code.co_filename}:{trace.tb_lineno}): "
        trace = trace.tb_next
    first_line = str(error).strip().partition("\n")[0]
    return f"{where}{type(error).__name__}: {first_line}".rstrip(".")


def _name(root: str, keys: Sequence[Any]) -> str:
    """Of an input: what graphs may call one."""
    words = [root, *map(str, keys)] if root else list(map(str, keys))
    return "_".join("".join(c if c.isalnum() else "_" for c in w) for w in words)


def _numbered(ports: Iterable[Port]) -> list[Port]:
    """With numbers behind names that others before have: "a b" and "a_b" are one."""
    named: dict[str, Port] = {}
    for port in ports:
        name, number = port.name, 1
        while name in named:
            number += 1
            name = f"{port.name}_{number}"
        named[name] = port._replace(name=name)
    return list(named.values())


class _FromEnvironment:
    """What the environment observes, as the agent sees it."""

    def __init__(self, leaf: SpaceLeaf) -> None:
        offset = space_specs.offset(leaf.space)
        self._offset = None if offset is None else torch.as_tensor(offset)

    def __call__(self, tensor: Tensor) -> Tensor:
        return tensor if self._offset is None else tensor - self._offset


class _ToEnvironment:
    """An action [B, ...] as the environment takes it; see ``RecordedLeaf``."""

    def __init__(self, leaf: SpaceLeaf) -> None:
        self._dtype = _tensor_dtype(leaf.dtype)
        self._rescaling: list[Tensor] | None = None
        self._offset: Tensor | None = None
        if space_specs.action_leaf_spec(leaf).is_continuous:
            box: Any = leaf.space
            self._rescaling = list(map(torch.as_tensor, space_specs.rescaling(box)))
        elif (offset := space_specs.action_offset(leaf.space)) is not None:
            self._offset = torch.as_tensor(offset)

    def __call__(self, action: Tensor) -> Tensor:
        if self._rescaling is not None:
            scale, shift, low, high = self._rescaling
            scaled = action.double() * scale + shift
            action = torch.minimum(torch.maximum(scaled, low), high)
        elif self._offset is not None:
            action = action.long() + self._offset
        return action.to(self._dtype)


def _tensor_dtype(dtype: np.dtype) -> torch.dtype:
    """That of torch, or int64 for those that few of its functions know."""
    if dtype.kind == "u" and dtype.itemsize > 1:
        return torch.int64
    return torch.from_numpy(np.empty(0, dtype)).dtype
