"""What a policy thinks of what it sees: a line below the numbers of a video."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from alf_lite import nest
from alf_lite.algorithms.acting import eval_mode
from alf_lite.algorithms.dqn_algorithm import QLearningAlgorithm
from alf_lite.algorithms.parts.policy import Policy
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.data_structures import TimeStep
from alf_lite.distributions import functions as distributions
from alf_lite.errors import ConfigError
from alf_lite.utils import random_state
from alf_lite.utils.devices import moved

_MAX_SHOWN = 4  # actions, or elements of one
_NUM_SAMPLES = 256

Words = Callable[[TimeStep], list[str]]


def words_of(algorithm: RLAlgorithm) -> Words:
    """Tells the values of actions, or their distribution, of every environment.

    Of discrete actions the best ones or the most likely, as ``action:number`` from 0
    on; of continuous ones the mean and the deviation of each element, as agents choose
    them.

    Raises:
        ConfigError: if there is neither, or the policy remembers what it has seen.
    """
    learner: Any = algorithm.rl_algorithm
    remembered = algorithm.get_initial_predict_state(1)
    if nest.flatten((remembered, algorithm.get_initial_transform_state(1))):
        raise ConfigError(
            f"{algorithm.name} remembers what it has seen in an episode, so that what "
            "it thinks of a step cannot be shown"
        )
    has_values = isinstance(learner, QLearningAlgorithm)
    if not has_values and not isinstance(getattr(learner, "_policy", None), Policy):
        raise ConfigError(
            f"{learner.name} has neither a distribution of its actions nor a value of "
            "each that could be shown"
        )

    def read(observation: Any) -> list[str]:
        if not has_values:
            return _of_distribution(learner._policy(observation)[0])
        q, allowed, _ = learner._evaluate(observation, ())
        return _of_values(q if allowed is None else q.masked_fill(~allowed, -torch.inf))

    def words(time_step: TimeStep) -> list[str]:
        time_step = moved(time_step, algorithm.device)
        rows = len(time_step.reward)
        observation = algorithm.completed(time_step.observation, rows)
        state = algorithm.get_initial_transform_state(rows)  # empty tuples
        with random_state.preserved(), eval_mode(algorithm), torch.inference_mode():
            inputs, _ = algorithm.transform_timestep(
                time_step._replace(observation=observation), state
            )
            return read(algorithm.seen_by_policy(inputs).observation)

    return words


def _of_values(q: Tensor) -> list[str]:
    """[B, C, A], -inf where there is no such action."""
    components = [_best(values, ".2f") for values in q.unbind(1)]
    return ["Q " + " | ".join(row) for row in zip(*components, strict=True)]


def _of_distribution(policy: Any) -> list[str]:
    """The parts of a nest of distributions, of batch shape [B]."""
    found = [_of_part(part) for part in distributions.parts(policy)]
    return ["pi " + " | ".join(row) for row in zip(*found, strict=True)]


def _of_part(part: Distribution) -> list[str]:
    probs = getattr(part, "probs", None)
    if isinstance(probs, Tensor) and probs.ndim == 2:
        return _best(probs, ".0%")
    sample = part.sample(torch.Size([_NUM_SAMPLES])).flatten(2)
    means, deviations = sample.mean(0).tolist(), sample.std(0).tolist()
    return [
        " ".join(
            f"{m:.2f}±{s:.2f}" for m, s in list(zip(*row, strict=True))[:_MAX_SHOWN]
        )
        for row in zip(means, deviations, strict=True)
    ]


def _best(values: Tensor, form: str) -> list[str]:
    """The largest of each row [B, A], with their places."""
    numbers, places = values.sort(dim=1, descending=True)
    return [
        " ".join(
            f"{place}:{number:{form}}"
            for number, place in zip(*row, strict=True)
            if number > -torch.inf
        )
        for row in zip(
            numbers[:, :_MAX_SHOWN].tolist(),
            places[:, :_MAX_SHOWN].tolist(),
            strict=True,
        )
    ]
