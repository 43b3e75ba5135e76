"""The parts of a composition: how they are built, named, and what they must be."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from torch import nn

from alf_lite import nest
from alf_lite.algorithms.algorithm import Algorithm
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.errors import ConfigError

Named = Sequence[tuple[str, Algorithm]]


def built_part(
    owner: str,
    name: str,
    kind: type,
    parameter: str,
    ctor: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """A part, by its constructor, which is called with what follows it.

    Args:
        owner: the composition, in messages.
        name: of the part.
        kind: what it has to be.
        parameter: of the owner, which gave the constructor.
        ctor: a class that is of another kind is not called.

    Raises:
        ConfigError: if something else is built.
    """

    def check(got: type) -> None:
        if not issubclass(got, kind):
            example = ", such as @PPOAlgorithm" if kind is RLAlgorithm else ""
            raise ConfigError(
                f"{owner}.{parameter}: expected the part {name!r} to be a "
                f"{kind.__name__}{example}, got a {got.__name__}"
            )

    if inspect.isclass(ctor):
        check(ctor)
    part = ctor(*args, **kwargs)
    check(type(part))
    return part


def by_name(owner: str, named: Named) -> nn.ModuleDict:
    """The parts as modules.

    Raises:
        ConfigError: for two of one name, or one that is no word.
    """
    parts = nn.ModuleDict()
    for name, part in named:
        if name in parts:
            raise ConfigError(
                f"{owner}: two parts are named {name!r}: {parts[name].name} and "
                f"{part.name}. Give one of them another name."
            )
        # The infos of parts are a dict; its "action" would be the executed one.
        if not name.isidentifier() or hasattr(parts, name) or name == "action":
            raise ConfigError(
                f"{owner}: {name!r} cannot be the name of a part ({part.name}). Take "
                'another word, such as "novelty".'
            )
        parts[name] = part
    return parts


def check_rl(owner: str, rl: RLAlgorithm) -> None:
    """Refuses an RL algorithm that has to see the steps as they came.

    Raises:
        ConfigError: says why.
    """
    config = rl.config
    # With a train_step, that setting is refused when all is built.
    has_train_step = type(rl).train_step is not Algorithm.train_step
    unrolls_with_grad = config is not None and config.unroll_with_grad
    if rl.on_policy and (
        rl.trains_on_rollout_info or (unrolls_with_grad and not has_train_step)
    ):
        raise ConfigError(
            f"{owner}: {rl.name} computes its loss from the graph of rollout_step, "
            "before other parts and weights of rewards could change what it is "
            "trained on. Use an algorithm that has a train_step."
        )
    if rl.uses_episode_returns:
        raise ConfigError(
            f"{owner}: lower_bound_targets of {rl.name} are returns of the "
            "environment's reward, and other parts may change what it is trained on. "
            "Leave them out, or train it on its own."
        )


def check_part(owner: str, name: str, part: Algorithm, *, is_trained: bool) -> None:
    """Refuses another part that remembers something, or that nobody trains.

    Raises:
        ConfigError: says why.
    """
    who = f"{owner}: the part {name!r} ({type(part).__name__})"
    if not nest.is_empty(part.train_state_spec):
        raise ConfigError(
            f"{who} has a train_state_spec, but only the RL algorithm may remember "
            "something in training"
        )
    parameters = [n for n, p in part.named_parameters() if p.requires_grad]
    if parameters and not is_trained:
        raise ConfigError(
            f"{who} has parameters, such as {parameters[0]}, but no optimizer. Give it "
            f"one, in a conf {type(part).__name__}.optimizer = @Adam()"
        )
