"""Checks of coefficients that users give, with messages that name them.

Of a schedule, the values are checked that all others lie between.
"""

from __future__ import annotations

import math
import numbers
from typing import Any, get_args

from alf_lite.config import configurables
from alf_lite.errors import ConfigError
from alf_lite.utils.schedulers import Scheduled, as_scheduler, extreme_values


def check_unit_interval(**values: Scheduled) -> None:
    """Raises ValueError, with its name, for a value that is not in [0, 1]."""
    for name, value in values.items():
        if not all(0 <= x <= 1 for x in extremes(value)):
            raise ValueError(f"{name} must lie in [0, 1], got {value}")


def check_positive(**values: Scheduled | None) -> None:
    """Raises ValueError, with its name, for what is not positive and finite, or None.

    None stands for a coefficient that is not wanted.
    """
    for name, value in values.items():
        if value is not None and not all(0 < x < math.inf for x in extremes(value)):
            raise ValueError(f"{name} must be positive and finite, got {value}")


def check_count(**values: int | None) -> None:
    """Raises ValueError, with its name, for what is no positive integer, or None."""
    for name, value in values.items():
        if value is None:
            continue
        is_whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
        if not is_whole or value < 1:
            raise ValueError(f"{name} must be a positive integer, got {value!r}")


def check_choice(choices: Any, **values: Any) -> None:
    """Raises ValueError, with its name, for a value that is none of a Literal's."""
    for name, value in values.items():
        if value not in get_args(choices):
            raise ValueError(
                f"{name} must be one of {get_args(choices)}, got {value!r}"
            )


def check_left_out(reason: str, **settings: Any) -> None:
    """Raises ConfigError, with its name, for a setting that would be ignored.

    Args:
        reason: why it has no effect.
        **settings: None stands for one that is left out.
    """
    for name, value in settings.items():
        if value is not None:
            raise ConfigError(f"{name} has no effect: {reason}. Leave it out")


def check_unused(owner: type, reason: str, **options: Any) -> None:
    """Refuses options of a class that would be ignored.

    Those that it has by default, and what is no parameter of it, say nothing.

    Raises:
        ConfigError: naming the first one.
    """
    parameters = configurables.parameters(owner) or ()
    defaults = {parameter.name: parameter.default for parameter in parameters}
    given = {k: v for k, v in options.items() if k in defaults and v != defaults[k]}
    check_left_out(reason, **given)


def check_not_negative(**values: Scheduled) -> None:
    """Raises ValueError, with its name, for a value below 0."""
    for name, value in values.items():
        if not all(x >= 0 for x in extremes(value)):
            raise ValueError(f"{name} must not be negative, got {value}")


def extremes(value: Scheduled) -> tuple[float, ...]:
    """The number; of a schedule, the values that all others lie between."""
    if isinstance(value, int | float):  # also one that is not finite
        return (value,)
    return extreme_values(as_scheduler(value))
