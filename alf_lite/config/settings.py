"""Reads the settings of a run back from the texts that were saved with it."""

from __future__ import annotations

import ast
import re
from typing import Any

# gin breaks long values after a backslash, and within brackets.
_BINDING = re.compile(r"^([\w./]+)[ \t]*=[ \t]*(.*(?:\n[ \t]+.*)*)", re.MULTILINE)


def settings_in(operative_text: str, user_text: str = "") -> dict[str, Any]:
    """Name -> value of every setting of a run, defaults included.

    What is no literal stays as it is written, such as ``@Adam()``; a value that is a
    macro is that of the macro.

    Args:
        operative_text: as ``operative.gin`` holds it.
        user_text: as ``user.gin`` does; it knows what was given in Python.
    """
    found = {name: _value(text) for name, text in _BINDING.findall(operative_text)}
    for name, text in _BINDING.findall(user_text):
        value = _value(text)
        if found.get(name) is None or not isinstance(value, _Source):
            found[name] = value
    return {name: _plain(value, found) for name, value in found.items() if "." in name}


class _Source(str):
    """A value that is no literal, as it is written."""


def _value(text: str) -> Any:
    text = text.replace("\\\n", "\n").strip()
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return _Source(text.partition("  #")[0])


def _plain(value: Any, found: dict[str, Any]) -> Any:
    if isinstance(value, _Source):
        value = found.get(value[1:], value) if value.startswith("%") else value
    return str(value) if isinstance(value, _Source) else value
