"""Loads the mutant that the environment names, here and in processes started here.

Python imports a module of this name at its start, if its folder is in PYTHONPATH.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
from collections.abc import Sequence
from types import CodeType, ModuleType
from typing import Any

from tests.mutants import mutants


class _Loader(importlib.machinery.SourceFileLoader):
    """Reads the file and compiles it with the mistake; nothing is cached."""

    index = -1

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        source = self.get_data(path).decode("utf-8")
        return compile(mutants.mutated(source, self.index), path, "exec")


class _Finder:
    """Finds one module, before anybody else does."""

    def __init__(self, name: str) -> None:
        self._module, _, index = name.rpartition(":")
        self._index = int(index)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> Any:
        if fullname != self._module:
            return None
        loader = _Loader(fullname, str(mutants.source_path(fullname)))
        loader.index = self._index
        return importlib.machinery.ModuleSpec(
            fullname, loader, origin=str(mutants.source_path(fullname))
        )


if mutants.VARIABLE in os.environ:
    sys.meta_path.insert(0, _Finder(os.environ[mutants.VARIABLE]))
