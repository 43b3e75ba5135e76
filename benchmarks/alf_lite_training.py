"""Our side of the comparisons: a gin file beside this one, trained by the Trainer."""

from __future__ import annotations

import tempfile
from pathlib import Path


def train(conf: str, bindings: list[str]) -> None:
    """Trains as ``python -m alf_lite.bin.train`` does.

    Args:
        conf: file name of a conf in this folder.
        bindings: gin bindings that override those of the file.
    """
    from alf_lite.config import TrainerConfig
    from alf_lite.config_files import parse_config
    from alf_lite.trainers.trainer import Trainer

    parse_config(str(Path(__file__).parent / conf), bindings)
    with tempfile.TemporaryDirectory() as root_dir:
        Trainer(TrainerConfig(), root_dir).train()
