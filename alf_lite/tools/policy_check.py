"""Compares an exported policy with the one that it was made from."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from alf_lite import nest
from alf_lite.algorithms.acting import PredictActor, eval_mode
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.data_structures import StepType, TimeStep
from alf_lite.environments.environment import Environment
from alf_lite.environments.space_specs import RecordedLeaf, RecordedValues
from alf_lite.environments.space_tree import SpaceTree
from alf_lite.policies.exported_policy import read_graph
from alf_lite.tools.policy_graph import NoiseFrom, PolicyGraph, Port
from alf_lite.utils import random_state
from alf_lite.utils.device_graphs import as_traced

Nest = Any

# Policies whose parameters differ so much, relatively, are the same but for rounding.
_ROUNDING = 1e-6
_NUM_PERTURBED = 16


class Comparison(NamedTuple):
    """How far actions are apart, in parts of half of their range."""

    largest_difference: float
    worst: str  # the action that it is of
    num_actions: int
    num_ties: int  # choices between values that are equal but for rounding


class WatchedStep(NamedTuple):
    """A step of B environments, and what the policy of the run does there."""

    time_step: TimeStep
    observation: list[np.ndarray]  # of the environment, [B, ...]
    noise: list[np.ndarray]  # [B, ...]
    action: list[np.ndarray]  # of the environment, [B, ...]


class Watched(NamedTuple):
    """The steps, and where their actions are rounded to."""

    algorithm: RLAlgorithm
    steps: list[WatchedStep]
    actions: list[RecordedLeaf]


def watch(
    graph: PolicyGraph,
    env: Environment,
    values: RecordedValues,
    num_steps: int,
    seed: int,
) -> tuple[Watched, str]:
    """Lets the policy of the run act.

    Args:
        graph: of the policy, which tells what noise it needs.
        env: is stepped if it can be; else the observations are drawn from the space.
        values: between the environment and the policy.
        num_steps: at most; it ends with whole batches.
        seed: of all that is random.

    Returns:
        what was seen, and what that is in words.
    """
    generator = np.random.default_rng(seed)
    noise_ports = [port for port in graph.inputs if port.role == "noise"]
    algorithm = graph.algorithm
    observed = [
        leaf
        for keys, leaf in values.observations.items()
        if not algorithm.optional_entries.intersection(keys[:1])
    ]
    acted = list(values.actions.values())
    steps: list[WatchedStep] = []
    with _undisturbed(algorithm, seed):
        time_step = env.reset(seed) if env.can_step else None
        rows = env.batch_size if env.can_step else 2
        actor = PredictActor(algorithm, rows)
        action: Nest = nest.zeros(algorithm.action_spec, (rows,))
        for number in range(num_steps):
            if time_step is None or not env.can_step:
                time_step = _drawn(values, algorithm, rows, number, action, seed)
            noise = [port.draw(generator, rows) for port in noise_ports]
            action = _act(actor, time_step, noise)
            steps.append(
                WatchedStep(
                    time_step,
                    _to_environment(observed, algorithm.needed(time_step.observation)),
                    [tensor.numpy() for tensor in noise],
                    _to_environment(acted, action),
                )
            )
            if env.can_step:
                time_step = env.step(action)
    told = f"{num_steps} steps of {rows} environments {env.name}"
    if not env.can_step:
        told = f"{num_steps * rows} observations drawn from the space of {env.name}"
    return Watched(algorithm, steps, acted), told


def compare(graph: PolicyGraph, path: Path, watched: Watched) -> Comparison:
    """Reads a file that was written, and compares its actions.

    In a batch as the run's policy acted in, and with one environment alone.
    """
    call = read_graph(path)
    ports = [port for port in graph.outputs if port.role == "action"]
    largest, worst, num_actions, num_ties = 0.0, ports[0].name, 0, 0
    for rows in (slice(None), slice(0, 1)):
        acted = list(_replay(graph, call, watched, rows))  # steps × actions
        for i, port in enumerate(ports):
            expected = np.stack([step.action[i][rows] for step in watched.steps])
            given = np.stack([actions[i] for actions in acted])
            num_actions += len(expected) * expected.shape[1]
            difference = _difference(port, expected, given)
            if expected.dtype.kind in "iub":
                ties = _ties(watched, i, rows, expected, given)
                num_ties += int(ties.sum())
                difference[ties] = 0.0
            # What is no number is no small difference.
            found = float(np.nan_to_num(difference, nan=np.inf).max(initial=0.0))
            if found > largest:
                largest, worst = found, port.name
    return Comparison(largest, worst, num_actions, num_ties)


def _difference(port: Port, expected: np.ndarray, given: np.ndarray) -> np.ndarray:
    if expected.dtype.kind != "f":
        return (expected != given).astype(np.float64)
    expected, given = expected.astype(np.float64), given.astype(np.float64)
    scale = np.maximum(1.0, np.abs(expected))
    box: Any = port.space.space if port.space is not None else None
    half = (box.high.astype(np.float64) - box.low) / 2
    scale = np.where(np.isfinite(half) & (half > 0), half, scale)
    return np.abs(expected - given) / scale


def _replay(
    graph: PolicyGraph, call: Any, watched: Watched, rows: slice
) -> Iterator[list[np.ndarray]]:
    """The actions of the exported policy at the watched steps."""
    num_rows = len(watched.steps[0].observation[0][rows])
    ports = [port for port in graph.inputs if port.role == "state"]
    dtypes = [np.dtype(str(port.dtype).removeprefix("torch.")) for port in ports]
    state = [
        np.zeros((num_rows, *port.shape), dtype)
        for port, dtype in zip(ports, dtypes, strict=True)
    ]
    num_actions = len(graph.outputs) - len(ports)
    for step in watched.steps:
        tensors = {
            "observation": [leaf[rows] for leaf in step.observation],
            "is_first": [step.time_step.is_first().numpy()[rows]],
            "state": state,
            "noise": [leaf[rows] for leaf in step.noise],
        }
        given = {role: iter(arrays) for role, arrays in tensors.items()}
        inputs = {
            port.name: np.asarray(
                next(given[port.role]), str(port.dtype).removeprefix("torch.")
            )
            for port in graph.inputs
        }
        outputs = call(inputs)
        state = outputs[num_actions:]
        yield [
            array.astype(leaf.dtype)
            for leaf, array in zip(watched.actions, outputs[:num_actions], strict=True)
        ]


def _ties(
    watched: Watched, index: int, rows: slice, expected: np.ndarray, given: np.ndarray
) -> np.ndarray:
    """Where a policy that is equal but for rounding does as the exported one, too."""
    open_ones = expected != given
    ties = np.zeros_like(open_ones)
    generator = torch.Generator().manual_seed(0)
    parameters = list(watched.algorithm.parameters())
    for _ in range(_NUM_PERTURBED):
        if not open_ones.any():
            break
        saved = [parameter.detach().clone() for parameter in parameters]
        with torch.no_grad():
            for parameter in parameters:
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.mul_(1 + _ROUNDING * noise)
        try:
            acted = _act_again(watched)
        finally:
            with torch.no_grad():
                for parameter, value in zip(parameters, saved, strict=True):
                    parameter.copy_(value)
        does_so = np.stack([actions[index][rows] for actions in acted]) == given
        ties |= open_ones & does_so
        open_ones &= ~does_so
    return ties


def _act_again(watched: Watched) -> list[list[np.ndarray]]:
    """The actions of the policy as it is now, at the watched steps."""
    rows = len(watched.steps[0].time_step.step_type)
    with _undisturbed(watched.algorithm, 0):
        actor = PredictActor(watched.algorithm, rows)
        return [
            _to_environment(
                watched.actions,
                _act(actor, step.time_step, list(map(torch.from_numpy, step.noise))),
            )
            for step in watched.steps
        ]


def _act(actor: PredictActor, time_step: TimeStep, noise: list[torch.Tensor]) -> Nest:
    if not noise:
        return actor.act(time_step)
    with NoiseFrom(noise), as_traced("the policy"):  # all of it is drawn, in order
        return actor.act(time_step)


@contextlib.contextmanager
def _undisturbed(algorithm: RLAlgorithm, seed: int) -> Iterator[None]:
    with random_state.preserved(), torch.inference_mode(), eval_mode(algorithm):
        random_state.seed_everything(seed)
        yield


def _to_environment(leaves: list[RecordedLeaf], values: Nest) -> list[np.ndarray]:
    arrays = [tensor.numpy(force=True) for tensor in nest.flatten(values)]
    return [
        leaf.to_environment(array) for leaf, array in zip(leaves, arrays, strict=True)
    ]


def _drawn(
    values: RecordedValues,
    algorithm: RLAlgorithm,
    rows: int,
    number: int,
    action: Nest,
    seed: int,
) -> TimeStep:
    """A step that nobody made; an episode has 50."""
    space = values.observation_space
    if number == 0:
        space.seed(seed)
    tree = SpaceTree(space, "observation")
    columns = zip(*(tree.split(space.sample()) for _ in range(rows)), strict=True)
    specs = nest.flatten(algorithm.data_transformer.observation_spec)
    leaves = [
        torch.from_numpy(np.array(leaf.to_agent(np.stack(column)))).to(spec.dtype)
        for leaf, column, spec in zip(
            values.observations.values(), columns, specs, strict=True
        )
    ]
    kind = StepType.FIRST if number % 50 == 0 else StepType.MID
    return TimeStep(
        step_type=torch.full((rows,), int(kind), dtype=torch.int32),
        reward=algorithm.reward_spec.zeros((rows,)),
        discount=torch.ones(rows),
        observation=nest.pack_sequence_as(
            algorithm.data_transformer.observation_spec, leaves
        ),
        prev_action=action,
        env_id=torch.arange(rows, dtype=torch.int32),
    )
