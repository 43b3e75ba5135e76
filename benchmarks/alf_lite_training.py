"""Our side of the comparisons: a gin file beside this one, trained by the Trainer."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def train(conf: str, bindings: list[str], hooks: Sequence[Any] = ()) -> None:
    """Trains as ``python -m alf_lite.bin.train`` does.

    Args:
        conf: file name of a conf in this folder, or the name of a shipped one.
        bindings: gin bindings that override those of the file.
        hooks: of the trainer.
    """
    from alf_lite.config import TrainerConfig
    from alf_lite.config.files import parse_config
    from alf_lite.trainers.trainer import Trainer

    own = Path(__file__).parent / conf
    parse_config(str(own) if own.exists() else conf, bindings)
    with tempfile.TemporaryDirectory() as root_dir:
        Trainer(TrainerConfig(), root_dir, hooks=hooks).train()
