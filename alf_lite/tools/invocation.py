"""How the programs are called; loaded before anything else, so it imports nothing."""

from __future__ import annotations

import os
import sys

SCRIPT = "alf_lite"  # the console script, see bin/command.py


def is_script() -> bool:
    """Whether this program was called by the console script."""
    return os.path.basename(sys.argv[0] if sys.argv else "") == SCRIPT


def invocation(name: str) -> str:
    """How to call a program, in the way that this one was called."""
    return f"{SCRIPT} {name}" if is_script() else f"python -m alf_lite.bin.{name}"
