"""Asks which settings of a run go together: the rows of :mod:`rule_table`.

A row names what it reads: the parameters of its condition and the {names} of its text.
It is asked as soon as all of them are known: the fields of TrainerConfig when one is
built, the names of a stage when :func:`check` is told them.
"""

from __future__ import annotations

import dataclasses
import inspect
import string
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from typing import Any

import gin

from alf_lite.config.rule_table import EFFECTS, FACTS, RULES, Effect, Rule
from alf_lite.errors import ConfigError


def check(config: Any, stage: str, **facts: Any) -> None:
    """Asks the rows that read what has become known now.

    Args:
        config: the TrainerConfig of the run.
        stage: in ``FACTS``.
        **facts: all of that stage.

    Raises:
        ConfigError: naming all that cannot be.
    """
    assert facts.keys() == FACTS[stage], (stage, facts.keys() ^ FACTS[stage])
    found = list(problems(config, facts))
    if found:
        raise ConfigError("\n".join(found))


def problems(
    config: Any, facts: Mapping[str, Any], unusable: Collection[str] = ()
) -> Iterator[str]:
    """What the rows say that read one of the ``facts``, or fields alone without any.

    Args:
        config: a TrainerConfig.
        facts: what else is known.
        unusable: fields of a wrong type or range, which no row can be asked about.
    """
    fields = {k: v for k, v in vars(config).items() if k not in unusable}
    known = {**fields, **facts}
    for row in (*RULES, *EFFECTS):
        names = names_of(row)
        if not names <= known.keys() or (facts and names.isdisjoint(facts)):
            continue
        found = _ask(row, known)
        if isinstance(row, Rule):
            if found:
                yield row.text.format(**known, found=found)
        elif not found and not any(map(_is_switched_off, names)):
            words = row.otherwise.format(**known)
            for name in row.fields.split():
                if name in fields and config.sets(name):
                    yield (
                        f"{'TrainerConfig.' * bool(facts)}{name} is {fields[name]!r}, "
                        f"but {words} or leave {name} out."
                    )


def switched(config: Any, **changes: Any) -> Any:
    """A TrainerConfig with other fields, and the defaults of what is idle then."""
    known = {**vars(config), **changes}
    idle = {
        name
        for row in EFFECTS
        if names_of(row) <= known.keys() and not _ask(row, known)
        for name in row.fields.split()
    }
    fields = dataclasses.fields(config)
    defaults = {field.name: field.default for field in fields if field.name in idle}
    return dataclasses.replace(config, **{**defaults, **changes})


@cache
def names_of(row: Effect | Rule) -> set[str]:
    """What has to be known before the row is asked."""
    parsed = string.Formatter().parse(row[-1])
    in_text = {name for _, name, _, _ in parsed if name and name != "found"}
    return {*_parameters(_condition(row)), *in_text}


def _ask(row: Effect | Rule, known: Mapping[str, Any]) -> Any:
    condition = _condition(row)
    return condition(**{name: known[name] for name in _parameters(condition)})


def _condition(row: Effect | Rule) -> Callable[..., Any]:
    return row.condition if isinstance(row, Effect) else row.wrong


@cache
def _parameters(condition: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(condition).parameters)


def _is_switched_off(name: str) -> bool:
    """Whether a conf says so: then what it says beside that is not wanted for now."""
    try:
        return gin.query_parameter(f"TrainerConfig.{name}") is False
    except ValueError:  # it says nothing
        return False
