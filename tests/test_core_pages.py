"""What the documents say about the size of the core is true."""

from __future__ import annotations

import re

import pytest

from tests.source_code import ROOT

_ROW = re.compile(r"^\| `(alf_lite/[\w/]+\.py)` \| (\d+) \|", re.MULTILINE)
ROWS = _ROW.findall((ROOT / "docs/concepts/core.md").read_text(encoding="utf-8"))


def num_lines(path: str) -> int:
    return len((ROOT / path).read_text(encoding="utf-8").splitlines())


@pytest.mark.parametrize(("path", "lines"), ROWS)
def test_a_file_of_the_core_is_as_long_as_the_page_says(path, lines):
    assert int(lines) == pytest.approx(num_lines(path), rel=0.05)


def test_the_core_is_read_in_an_afternoon():
    assert len(ROWS) == 8
    assert sum(num_lines(path) for path, _ in ROWS) <= 3000
