"""Where a buffer may be: what cannot be is refused before anything is built."""

from __future__ import annotations

import pytest
import torch

from alf_lite.replay_buffers.storage_options import StorageOptions


def test_memory_of_the_cpu_is_the_default():
    options = StorageOptions()
    assert (options.storage, options.directory, options.device) == (
        "memory",
        None,
        "cpu",
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"storage": "disk"}, "must be one of memory, memmap, got 'disk'"),
        ({"directory": "x"}, "only with storage='memmap'"),
        ({"storage": "memmap", "device": "cuda"}, "needs device='cpu', got 'cuda'"),
        ({"device": "gpu"}, "such as 'cpu' or 'cuda:0', got 'gpu'"),
        ({"device": None}, "such as 'cpu' or 'cuda:0'"),
        ({"device": "cuda:99"}, "torch sees no such one"),
    ],
)
def test_what_cannot_be_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        StorageOptions(**arguments)


def test_a_gpu_that_is_there_can_be_asked_for(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert StorageOptions(device="cuda:1").device == "cuda:1"
