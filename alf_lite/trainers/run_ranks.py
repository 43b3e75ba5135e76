"""What the ranks of a run agree on between two iterations, and before the first one."""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from alf_lite.checkpoints.data import RANKS_FOLDER
from alf_lite.config import files as config_files
from alf_lite.errors import ConfigError
from alf_lite.trainers.hooks import Hook
from alf_lite.trainers.signals import StopSignals
from alf_lite.utils.ranks import ranks

# The first one counts if ranks have received different ones.
_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


class Agreement(NamedTuple):
    """What holds for all ranks, because it does for one of them."""

    stops: bool
    wants_checkpoint: bool


def agree(signals: StopSignals, *, stops: bool, wants_checkpoint: bool) -> Agreement:
    """Whether the run ends here, or is saved; all ranks ask at the same time.

    Args:
        signals: to this rank; are told what another one has received.
        stops: whether this rank has a reason to end the run.
        wants_checkpoint: whether this rank was asked for a checkpoint.
    """
    received = [signals.received == number for number in _SIGNALS]
    *counts, stopping, wanting = ranks.total(*received, stops, wants_checkpoint)
    for number, count in zip(_SIGNALS, counts, strict=True):
        if count:
            signals.hear_of(number)
    return Agreement(bool(stopping or sum(counts)), bool(wanting))


def check_same_config(given: Mapping[str, str], seed: int | None) -> None:
    """Makes sure that all ranks were given the same configuration.

    Args:
        given: in Python, as a conf writes it.
        seed: of the run, if one was given.

    Raises:
        ConfigError: naming the ranks that were given another one than the first.
    """
    if ranks.size == 1:
        return
    text = f"{config_files.user_config_text(given)}\n{seed}"
    others = ranks.differing(hashlib.sha256(text.encode()).digest())
    if others:
        raise ConfigError(
            f"ranks {', '.join(map(str, others))} of {ranks.size} were given another "
            "configuration than rank 0. Give all ranks the same conf, the same "
            "--gin_param and, on other machines, the same files."
        )


def directory_of_rank(root_dir: Path) -> Path:
    """What this rank keeps for itself: that of the run, for the first one."""
    return root_dir if ranks.is_first else root_dir / RANKS_FOLDER / str(ranks.index)


def hooks_of_rank(hooks: Iterable[Hook]) -> list[Hook]:
    """Those of the first rank are all; others have those that change environments."""
    return [hook for hook in hooks if ranks.is_first or hook.on_all_ranks]
