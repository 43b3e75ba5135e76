"""The scores of confs/README.md as the pages of docs/algorithms repeat them.

    python -m tests.documented_scores

writes them there anew.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.source_code import ROOT

FOLDER = ROOT / "docs/algorithms"
_SCORES = re.compile(
    r"^\| `(\w+)` \| (.*?) \|.*?\|.*?\| (.*?) \|", re.MULTILINE
)  # conf, environment steps, goal, seeds, mean return of each seed
_NOTES = re.compile(r" \[.*?\]|;.*")  # intervals, and what is told elsewhere
_ROW = re.compile(r"^\| `([a-z_0-9]+)` \|.*$", re.MULTILINE)


def scores() -> dict[str, str]:
    """Conf -> its row on a page: no intervals, no notes."""
    text = (ROOT / "confs/README.md").read_text(encoding="utf-8")
    return {
        conf: f"| `{conf}` | {steps} | {_NOTES.sub('', returns)} |"
        for conf, steps, returns in _SCORES.findall(text)
    }


def confs_of(page: Path) -> set[str]:
    """The confs that have a row on a page."""
    return set(_ROW.findall(page.read_text(encoding="utf-8")))


def with_scores(page: Path) -> str:
    """A page with the rows as they should be."""
    rows = scores()
    text = page.read_text(encoding="utf-8")
    return _ROW.sub(lambda match: rows.get(match[1], match[0]), text)


if __name__ == "__main__":
    for path in FOLDER.glob("*.md"):
        path.write_text(with_scores(path), encoding="utf-8")
