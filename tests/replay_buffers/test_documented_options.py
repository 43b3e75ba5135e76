"""docs/replay_buffer.md says what there is."""

from __future__ import annotations

import dataclasses
import re

import pytest

from alf_lite.config import TrainerConfig
from alf_lite.config import files as config_files
from alf_lite.replay_buffers.allocation import StorageOptions
from alf_lite.replay_buffers.priority_options import PriorityOptions
from alf_lite.replay_buffers.window_sampler import SamplingOptions
from alf_lite.utils import schedulers  # noqa: F401 - the conf of the page uses one
from alf_lite.utils.progress import Progress
from tests.source_code import ROOT

PAGE = (ROOT / "docs" / "replay_buffer.md").read_text(encoding="utf-8")
GROUPS = (StorageOptions, SamplingOptions, PriorityOptions)
DOCUMENTED = dict(re.findall(r"^\| `(\w+\.\w+)` \| `(.*?)` \|", PAGE, re.MULTILINE))


@pytest.mark.parametrize("group", GROUPS)
def test_every_option_is_listed_with_its_default(group):
    listed = {
        name.partition(".")[2]: default
        for name, default in DOCUMENTED.items()
        if name.startswith(f"{group.__name__}.")
    }
    assert listed == {
        field.name: repr(field.default) for field in dataclasses.fields(group)
    }


def test_the_settings_of_the_trainer_have_these_defaults():
    config = TrainerConfig(num_iterations=1)  # of no algorithm that declares others
    listed = {
        name: default
        for name, default in DOCUMENTED.items()
        if name.startswith("TrainerConfig.")
    }
    assert len(listed) == 8
    for name, default in listed.items():
        assert repr(getattr(config, name.partition(".")[2])) == default


def test_the_conf_of_the_page_can_be_used():
    [conf] = re.findall(r"```gin\n(.*?)```", PAGE, re.DOTALL)
    config_files.parse_config_text(conf)
    assert StorageOptions().storage == "memmap"
    assert SamplingOptions().max_staleness == 10_000
    priority = PriorityOptions()
    priority.follow(Progress())
    assert (priority.alpha, priority.beta()) == (0.7, 0.4)
    assert TrainerConfig(num_iterations=1).replay_buffer_length == 1_000_000


def test_the_buffer_of_the_page_can_be_built():
    [code] = re.findall(r"```python\n(import torch.*?)```", PAGE, re.DOTALL)
    exec(code, {})
