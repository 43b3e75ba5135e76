"""Sends objects and the configuration that they depend on to other processes.

Functions and classes travel by name, and a fresh process would run them with their
defaults. So the text of the configuration travels along and is parsed again there.
References of gin with a scope have no name that could travel: the other process takes
them from the configuration.
"""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import reduction
from typing import Any, NamedTuple

from alf_lite.errors import ConfigError


class _Shipment(NamedTuple):
    """What travels."""

    value: Any
    config_text: str | None
    config_scope: str
    # Fields of the value that were left out -> scope/configurable.parameter
    from_config: dict[str, str]


class Arrived(NamedTuple):
    """What :func:`load` returns."""

    value: Any
    config_scope: str  # in which it was sent
    has_config: bool  # whether the configuration came along, and has been parsed


def dump(
    value: Any,
    bound_fields: Mapping[str, str] | None = None,
    *,
    with_config: bool = True,
) -> bytes:
    """``value`` as bytes for another process of this program.

    Args:
        value: picklable but for the fields below; a dataclass if there are any.
        bound_fields: fields of ``value`` that a conf may bind → which parameter that
            is, such as ``create_environment.env_ctor``. What cannot be pickled there
            is taken from the configuration.
        with_config: whether anything in ``value`` reads the configuration.

    Raises:
        Exception: what pickle raises for ``value``.
    """
    text, scope = _current_config() if with_config else (None, "")
    try:
        return _pickle(_Shipment(value, text, scope, {}))
    except Exception:
        if not (text and bound_fields):
            raise
    references = _from_config(value, bound_fields, scope)
    left_out: dict[str, Any] = dict.fromkeys(references)
    named = dataclasses.replace(value, **left_out)
    # What cannot be pickled now is what the message should name.
    return _pickle(_Shipment(named, text, scope, references))


def load(dumped: bytes) -> Arrived:
    """The other side of :func:`dump`; reads the configuration that came."""
    shipment: _Shipment = reduction.ForkingPickler.loads(dumped)
    value, text = shipment.value, shipment.config_text
    if text is None:
        return Arrived(value, "", has_config=False)

    from alf_lite.config import files as config_files

    if config_files.user_config_text() != text:
        config_files.reset()
        config_files.parse_config_text(text)
    if shipment.from_config:
        keys = shipment.from_config
        values = {name: _bound_value(key) for name, key in keys.items()}
        value = dataclasses.replace(value, **values)
    return Arrived(value, shipment.config_scope, has_config=True)


def dump_for(what: str, value: Any, bound_fields: Mapping[str, str]) -> bytes:
    """As :func:`dump`; ``what`` begins the message if that is not possible.

    Raises:
        ConfigError: for whatever pickle raises.
    """
    try:
        return dump(value, bound_fields)
    except Exception as error:
        raise ConfigError(
            f"{what} cannot be sent to their processes: {type(error).__name__}: "
            f"{error}. Use classes and functions defined at the top level of a module, "
            "or bind them in a conf."
        ) from error


def load_for(what: str, dumped: bytes) -> Arrived:
    """As :func:`load`, the other side of :func:`dump_for`.

    Raises:
        ConfigError: if something in it cannot be imported in this process.
    """
    try:
        return load(dumped)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{what} cannot be imported in their processes: {type(error).__name__}: "
            f"{error}. Define it at the top level of a module that is installed, or "
            "that PYTHONPATH finds."
        ) from error


def needs_main_module(dumped: bytes) -> bool:
    """Whether loading needs a function or class of the program's main module."""
    return b"__main__" in dumped


def export_config_use() -> Any:
    """What the configuration was used for in this process; None if it has none."""
    if "alf_lite.config.files" not in sys.modules:
        return None

    from alf_lite.config import bindings as config_bindings

    return config_bindings.export_use()


def import_config_use(exported: Any) -> None:
    """Counts what another process used as used, so that no binding seems forgotten."""
    if exported is None:
        return

    from alf_lite.config import bindings as config_bindings

    config_bindings.import_use(exported)


def _current_config() -> tuple[str | None, str]:
    """The text and the scope of this process's configuration, None if it has none."""
    if "alf_lite.config.files" not in sys.modules:
        return None, ""
    import gin

    from alf_lite.config import files as config_files

    return config_files.user_config_text() or None, gin.current_scope_str()


def _from_config(
    value: Any, bound_fields: Mapping[str, str], scope: str
) -> dict[str, str]:
    """The fields of ``value`` that hold what the configuration binds, and where."""
    found = {}
    for name, parameter in bound_fields.items():
        parts = scope.split("/") if scope else []
        for length in range(len(parts), -1, -1):
            prefix = "".join(f"{part}/" for part in parts[:length])
            key = f"{prefix}{parameter}"
            if _is_same(_bound_value(key), getattr(value, name)):
                found[name] = key
                break
    return found


def _bound_value(key: str) -> Any:
    import gin

    try:
        # A copy replaces gin's references by what they refer to.
        return copy.deepcopy(gin.query_parameter(key))
    except ValueError:  # not bound
        return None


def _is_same(bound: Any, value: Any) -> bool:
    if isinstance(value, Sequence):
        return (
            isinstance(bound, Sequence)
            and len(bound) == len(value)
            and all(map(_is_same, bound, value))
        )
    return bound is value and value is not None


def _pickle(value: Any) -> bytes:
    return bytes(reduction.ForkingPickler.dumps(value))
