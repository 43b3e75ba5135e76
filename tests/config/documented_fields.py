"""The fields of TrainerConfig as docs/settings.md lists them.

    python -m tests.config.documented_fields

writes them there anew.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import NamedTuple

from alf_lite.config import TrainerConfig
from alf_lite.config.values import UNSET
from tests.source_code import ROOT

PAGE = ROOT / "docs" / "settings.md"
BEGIN, END = "<!-- fields -->\n", "<!-- end of fields -->\n"
_GROUP = re.compile(r"    # --- (.+)")
_COMMENT = re.compile(r"    # (.+)")
_FIELD = re.compile(r"    (\w+): ")


class Described(NamedTuple):
    group: str
    name: str
    meaning: str


def fields() -> list[Described]:
    """All fields in the order of the source, with the comment above each."""
    source = inspect.getsource(TrainerConfig).partition("def __post_init__")[0]
    found, group, comment = [], "", ""
    for line in source.partition('"""\n\n')[2].splitlines():
        if match := _GROUP.fullmatch(line):
            group, comment = match[1], ""
        elif match := _COMMENT.fullmatch(line):
            comment = match[1]
        elif match := _FIELD.match(line):
            found.append(Described(group, match[1], comment))
            comment = ""
    return found


def tables() -> str:
    """One table for each group."""
    defaults = {f.name: f.default for f in dataclasses.fields(TrainerConfig)}
    lines: list[str] = []
    group = ""
    for field in fields():
        if field.group != group:
            group = field.group
            lines += [f"\n## {group}\n", "| field | default | |", "|---|---|---|"]
        default = defaults[field.name]
        shown = "declared" if default is UNSET else f"`{default!r}`"
        lines.append(f"| `{field.name}` | {shown} | {field.meaning} |")
    return "\n".join([*lines, "", ""])


def page() -> str:
    """The page with the tables as they should be."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}{tables()}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
