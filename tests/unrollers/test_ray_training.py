"""Training with workers on Ray: machines that are lost, and what is left at the end."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.other_process import is_alive

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="needs the extra ray"
    ),
]

_SECONDS = 540.0


def descendants(pid: int) -> set[int]:
    """All living processes that ``pid`` has started, directly or not."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(path.parent.name)] = int(fields[1])
    found, new = set(), {pid}
    while new:
        new = {child for child, parent in parents.items() if parent in new} - found
        found |= new
    return found


def open_to_others(pids: set[int]) -> list[str]:
    """The addresses, beside those of this machine alone, at which these listen."""
    sockets = set()
    for pid in pids:
        for link in Path("/proc", str(pid), "fd").glob("*"):
            with contextlib.suppress(OSError):
                sockets.add(os.readlink(link))
    addresses = []
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            _, address, _, state, *fields = line.split()
            if state == "0A" and f"socket:[{fields[5]}]" in sockets:
                addresses.append(address.partition(":")[0])
    assert len(addresses) > 3  # of Ray
    return [address for address in addresses if not address.endswith("0100007F")]


def wait_for(condition, what: str) -> None:
    deadline = time.monotonic() + _SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


def train(root: Path, *gin_params: str) -> subprocess.Popen:
    command = [
        *(sys.executable, "-m", "alf_lite.bin.train", "--conf=async_ppo_cart_pole"),
        f"--root_dir={root / 'run'}",
        "--gin_param=TrainerConfig.unroll_engine = 'ray'",
        "--gin_param=TrainerConfig.evaluate = False",
        *(f"--gin_param={parameter}" for parameter in gin_params),
    ]
    with (root / "output.log").open("w") as output:
        return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)


def test_a_machine_is_lost_and_another_one_joins():
    result = subprocess.run(
        [sys.executable, "-m", "tests.unrollers.ray_node_loss"],
        stdout=subprocess.PIPE,
        timeout=_SECONDS,
        check=True,
    )
    seen = json.loads(result.stdout.splitlines()[-1])
    assert seen["num_machines"] == 2
    assert seen["num_ready_without"] == 1
    assert seen["num_restarts"] == 2
    assert seen["faults"] == []
    # Every iteration is that many rows of 3 workers with 2 environments.
    assert seen["stored"] == seen["iterations"] * 2 * 3 * 2


@pytest.mark.parametrize("number", [None, signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_however_the_run_ends(tmp_path, number):
    process = train(tmp_path, "TrainerConfig.num_env_steps = 3_000")
    try:
        log = tmp_path / "output.log"
        wait_for(
            lambda: "steps/s" in log.read_text() or process.poll() is not None,
            "no iteration",
        )
        children = descendants(process.pid)
        assert not open_to_others({process.pid} | children)
        if number is not None:
            process.send_signal(number)
        exit_code = process.wait(_SECONDS)
    finally:
        process.kill()
    text = log.read_text()
    assert exit_code == (0 if number is None else 128 + number), text
    assert "checkpoints/ckpt-" in text
    assert len(children) >= 4  # of Ray, and two workers
    wait_for(lambda: not any(map(is_alive, children)), "processes are left")


def test_a_wrong_address_is_said_at_once(tmp_path):
    process = train(tmp_path, "TrainerConfig.ray_address = '127.0.0.1:1'")
    assert process.wait(_SECONDS) == 2
    assert "there is no Ray at 127.0.0.1:1" in (tmp_path / "output.log").read_text()
