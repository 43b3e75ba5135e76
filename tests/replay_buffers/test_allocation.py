"""Memory for the buffer: refused with numbers before it is taken."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest
import torch

from alf_lite.replay_buffers.allocation import StorageOptions, allocate
from alf_lite.utils import free_memory
from tests.source_code import ROOT

CPU = torch.device("cpu")


@pytest.mark.parametrize("in_file", [False, True])
def test_memory_can_be_written_and_read(tmp_path, in_file):
    memory = allocate(1000, CPU, tmp_path if in_file else None)
    memory[:] = torch.arange(1000) % 256
    assert memory.shape == (1000,)
    assert memory.dtype == torch.uint8
    assert torch.equal(memory, (torch.arange(1000) % 256).to(torch.uint8))


def test_a_file_leaves_nothing_behind(tmp_path):
    memory = allocate(1000, CPU, tmp_path / "new" / "folder")
    memory[:] = 7
    assert list((tmp_path / "new" / "folder").iterdir()) == []
    assert memory.sum() == 7000


def test_too_much_memory_is_refused_with_the_numbers(monkeypatch):
    monkeypatch.setattr(free_memory, "_available_ram", lambda: 2_500_000_000)
    with pytest.raises(
        ValueError, match=r"needs 3\.00 GB of cpu memory, but only 2\.50 GB"
    ):
        allocate(3_000_000_000, CPU)


def test_the_limit_of_a_container_counts(monkeypatch):
    monkeypatch.setattr(free_memory, "_free_in_control_group", lambda: 1_000_000)
    with pytest.raises(ValueError, match="memmap"):
        allocate(2_000_000, CPU)


def test_a_buffer_of_petabytes_is_refused_in_memory_and_in_a_file(tmp_path):
    with pytest.raises(ValueError, match="GB are free"):
        allocate(10**15, CPU)
    with pytest.raises(ValueError, match="GB of disk space"):
        allocate(10**15, CPU, tmp_path)


def test_where_the_system_does_not_say_it_is_tried(monkeypatch):
    monkeypatch.setattr(free_memory, "_available_ram", lambda: None)
    monkeypatch.setattr(free_memory, "_free_in_control_group", lambda: None)
    assert allocate(10, CPU).shape == (10,)


@pytest.mark.parametrize("can_reserve", [False, True])
@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EDQUOT, "your quota"),
        (errno.EFBIG, "ulimit -f"),
    ],
)
def test_a_file_without_room_is_an_error_before_training(
    tmp_path, monkeypatch, can_reserve, number, reason
):
    def refuse(*arguments):
        raise OSError(number, os.strerror(number))

    if can_reserve:
        monkeypatch.setattr(os, "posix_fallocate", refuse)
    else:
        monkeypatch.delattr(os, "posix_fallocate")
        monkeypatch.setattr(os, "ftruncate", refuse)
    expected = rf"needs 1e-06 GB of space in .*, which the system refused: .*{reason}"
    with pytest.raises(ValueError, match=expected):
        allocate(1000, CPU, tmp_path)


@pytest.mark.ci
def test_a_limit_of_the_process_is_no_bug(tmp_path):
    code = (
        "import resource, signal, sys, torch\n"
        "from alf_lite.replay_buffers.allocation import allocate\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))\n"
        "try:\n"
        "    allocate(100_000, torch.device('cpu'), sys.argv[1])\n"
        "except ValueError as error:\n"
        "    assert 'ulimit -f' in str(error), error\n"
        "    sys.exit(7)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    assert subprocess.run(command, check=False, cwd=ROOT).returncode == 7


def test_a_file_system_that_cannot_reserve_is_used_all_the_same(tmp_path, monkeypatch):
    def refuse(descriptor, offset, length):
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    memory = allocate(1000, CPU, tmp_path)
    memory[:] = 1
    assert memory.sum() == 1000


def test_a_file_is_not_on_a_gpu(tmp_path):
    with pytest.raises(ValueError, match="must have device 'cpu'"):
        allocate(10, torch.device("cuda"), tmp_path)


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
        ({"storage": "disk"}, r"must be one of \('memory', 'memmap'\), got 'disk'"),
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
