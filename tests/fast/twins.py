"""The table of twins, emptied or watched; and which twins run in which conf.

A twin that refuses changes no result, so that nothing else would show it. A change that
is meant to have other twins run writes their table anew:

    python -m tests.fast.twins
    python -m tests.fast.twins ppo_cart_pole dqn_cart_pole
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from alf_lite import fast
from alf_lite.config import TrainerConfig
from alf_lite.config import files as config_files
from alf_lite.trainers.trainer import Trainer
from tests.frozen import frozen
from tests.short_confs import CONFS, shortened
from tests.source_code import ROOT

FILE = Path(__file__).parent / "twins_of_confs.txt"
NUM_ITERATIONS = 6


@contextlib.contextmanager
def without_twins(method: str = "") -> Iterator[None]:
    """Inside, everything, or what ends so, is computed by torch's own bodies."""
    table = fast.TWINS
    fast.TWINS = {row: twin for row, twin in table.items() if not row.endswith(method)}
    fast.forget()
    try:
        yield
    finally:
        fast.TWINS = table
        fast.forget()


@contextlib.contextmanager
def watched(asked: Counter[str] | None = None) -> Iterator[Counter[str]]:
    """Counts the rows whose twins gave something inside, and those that were asked."""
    ran: Counter[str] = Counter()
    asked = Counter() if asked is None else asked
    load = fast._load

    def recording(row: str):
        twin = load(row)

        def recorded(*args, **kwargs):
            result = twin(*args, **kwargs)
            asked[row] += 1
            ran[row] += result is not None and result is not NotImplemented
            return result

        return None if twin is None else recorded

    fast._load = recording
    fast.forget()
    try:
        yield ran
    finally:
        fast._load = load
        fast.forget()


def twins_of(conf: Path) -> str:
    """Those that run while a shortened conf trains; with ~, if some calls refused."""
    asked: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder, watched(asked) as ran:
        bindings = shortened(conf, Path(folder), NUM_ITERATIONS)
        config_files.parse_config(str(ROOT / conf), bindings)
        Trainer(TrainerConfig(), Path(folder) / "run").train()
    config_files.reset()
    return " ".join(
        row + "~" * (ran[row] < asked[row]) for row in sorted(asked) if ran[row]
    )


def stored() -> dict[str, str]:
    """By the name of a conf, what it had when the table was written."""
    lines = FILE.read_text(encoding="utf-8").splitlines()
    return dict(line.split(": ") for line in lines)


def main() -> None:
    """Writes the table anew, of all confs or of those that are named."""
    found = stored() if FILE.exists() else {}
    for conf in frozen_confs():
        if len(sys.argv) == 1 or conf.stem in sys.argv:
            found[conf.stem] = twins_of(conf)
    lines = [f"{name}: {found[name]}\n" for name in sorted(found)]
    FILE.write_text("".join(lines), encoding="utf-8")


def frozen_confs() -> list[Path]:
    names = {name.removeprefix("runs/") for name in frozen.names()}
    return [conf for conf in CONFS if conf.stem in names]


if __name__ == "__main__":
    main()
