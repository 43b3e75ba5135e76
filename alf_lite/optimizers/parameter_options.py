"""Hyperparameters of some of the parameters, by patterns of their names."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import Parameter

from alf_lite.errors import ConfigError

# Pattern of names -> hyperparameters
ParameterOptions = Mapping[str, Mapping[str, Any]]
NamedParameter = tuple[str, Parameter]

RATE_FACTOR = "lr_factor"  # times the learning rate of the others


def check_parameter_options(
    owner: str,
    options: ParameterOptions,
    torch_class: Callable[..., torch.optim.Optimizer],
    hyperparameters: Mapping[str, Any],
) -> None:
    """Refuses values that are not options of ``torch_class``.

    Args:
        owner: the name of the optimizer, for errors.
        options: of each pattern.
        torch_class: the optimizer of torch.
        hyperparameters: of all other parameters; only these can be set.

    Raises:
        ConfigError: if one is unknown or out of range.
    """
    known = {RATE_FACTOR, *hyperparameters}
    for pattern, values in options.items():
        where = f"{owner}.parameter_options[{pattern!r}]"
        if not isinstance(values, Mapping) or not values or set(values) - known:
            raise ConfigError(
                f"{where}: expected values of some of {sorted(known)}, got {values!r}"
            )
        factor = values.get(RATE_FACTOR, 1.0)
        if not isinstance(factor, int | float) or not 0 <= factor < math.inf:
            raise ConfigError(f"{where}: lr_factor must be at least 0, got {factor!r}")
        own = {k: v for k, v in values.items() if k != RATE_FACTOR}
        try:
            torch_class([Parameter(torch.zeros(1))], **{**hyperparameters, **own})
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{where}: {error}") from error


def group_parameters(
    owner: str, options: ParameterOptions, named_parameters: Sequence[NamedParameter]
) -> list[tuple[Mapping[str, Any], list[NamedParameter]]]:
    """The options of each pattern and what it counts for; the others come first.

    Raises:
        ConfigError: if a pattern counts for none of the parameters.
    """
    groups: dict[str, list[NamedParameter]] = {"": []}
    groups |= {pattern: [] for pattern in options}
    for name, parameter in named_parameters:
        fits = (x for x in options if fnmatch.fnmatchcase(name, x))
        groups[next(fits, "")].append((name, parameter))
    for pattern in options:
        if not groups[pattern]:
            names = [name for name, _ in named_parameters]
            raise ConfigError(
                f"{owner}.parameter_options: {pattern!r} fits no parameter that is "
                f"left: it trains {names[:8]}{' and more' if len(names) > 8 else ''}"
            )
    return [(options.get(x, {}), group) for x, group in groups.items()]
