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
from alf_lite.utils.ranks import ranks

# The first one counts if ranks have received different ones.
_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


class Agreement(NamedTuple):
    """What ends the run, or saves it: on all ranks, because it does so on one of them.

    What comes to a rank while it waits for the others is not in it.
    """

    signal: signal.Signals | None
    reason: str  # to end it; "" if there is none
    wants_checkpoint: bool


def agree(own: Agreement) -> Agreement:
    """What holds for all ranks, of what does for each; all ask at the same time."""
    if ranks.size == 1:
        return own
    received = [own.signal == number for number in _SIGNALS]
    *counts, stopping, wanting = ranks.total(
        *received, bool(own.reason), own.wants_checkpoint
    )
    of_all = (n for n, count in zip(_SIGNALS, counts, strict=True) if count)
    reason = own.reason or ("as another rank says" if stopping else "")
    return Agreement(next(of_all, None), reason, bool(wanting))


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
