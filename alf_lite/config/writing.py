"""Writes objects that were built in Python as statements of a conf."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

from alf_lite.config import bindings, configurables

# Of an object, its class and the arguments that build it again; None if unknown.
Recipe = Callable[[Any], tuple[Callable[..., Any], dict[str, Any]] | None]


class ConfWriter:
    """Statements that build the same again, and what no conf can say.

    Args:
        recipe: how an object was built.

    Attributes:
        statements: ``"PPOAlgorithm.gamma"`` → its value as a conf writes it.
        left_out: the parameters whose values are lambdas, objects or otherwise without
            a name that another process can find.
    """

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self.statements: dict[str, str] = {}
        self.left_out: list[str] = []

    def bind(self, key: str, value: Any) -> None:
        """Notes the value of a parameter, ``scope/Name.parameter``."""
        statements: dict[str, str] = {}
        text = self._expression(key.rpartition(".")[2], value, statements)
        if text is None:
            self.left_out.append(key)
            return
        self.statements |= {**statements, key: text}

    def text(self) -> str:
        """The statements as a conf."""
        return "".join(f"{key} = {text}\n" for key, text in self.statements.items())

    def _expression(
        self, scope: str, value: Any, statements: dict[str, str]
    ) -> str | None:
        """The value as a conf writes it; None if it cannot be written."""
        if bindings.is_literal(value):
            return repr(value)
        if isinstance(value, list | tuple):
            items = [
                self._expression(f"{scope}_{i}", item, statements)
                for i, item in enumerate(value)
            ]
            if None in items:
                return None
            return f"[{', '.join(filter(None, items))}]"
        if isinstance(value, functools.partial) and not value.args:
            return self._reference(scope, value.func, value.keywords, statements)
        if inspect.isclass(value) or inspect.isfunction(value):
            name = importable_name(value)
            return None if name is None else f"@{name}"
        recipe = self._recipe(value)
        if recipe is None and dataclasses.is_dataclass(value):
            fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
            recipe = type(value), fields
        if recipe is None:
            return None
        reference = self._reference(scope, *recipe, statements)
        return None if reference is None else f"{reference}()"

    def _reference(
        self,
        scope: str,
        target: Any,
        arguments: Mapping[str, Any],
        statements: dict[str, str],
    ) -> str | None:
        name = importable_name(target)
        if name is None:
            return None
        for parameter, value in arguments.items():
            text = self._expression(f"{scope}_{parameter}", value, statements)
            if text is None:
                return None
            statements[f"{scope}/{name}.{parameter}"] = text
        return f"@{scope}/{name}"


def importable_name(target: Any) -> str | None:
    """What a conf calls a class or function; None if another process finds none."""
    selector = configurables.selector_of(target)
    module, name = (
        getattr(target, "__module__", ""),
        getattr(target, "__qualname__", ""),
    )
    if module in ("__main__", "") or module not in sys.modules:
        return None
    if selector is not None and module.startswith("alf_lite."):
        return configurables.short_name(selector)
    found: Any = sys.modules[module]
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module}.{name}" if found is target else None
