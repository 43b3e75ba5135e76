"""Where a program's messages go is no concern of what it does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

TRAIN = [sys.executable, "-m", "alf_lite.bin.train"]


def run(shell: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    """``shell`` with the program and its arguments in place of ``$@``."""
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {shell}", "bash", *TRAIN, *arguments],
        capture_output=True,
        timeout=120,
        env={**os.environ, **environment},
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.slow  # as tests/reliability/test_log_output.py, but in a shell
@pytest.mark.parametrize(
    "shell",
    ['"$@" >/dev/full 2>/dev/full', '"$@" >&- 2>&-', '"$@" 2>&1 | head -1'],
    ids=["full disk", "closed", "dead pipe"],
)
def test_trouble_with_the_log_does_not_end_training(conf, tmp_path, shell):
    done = run(shell, f"--conf={conf}", f"--root_dir={tmp_path}", "--seed=1")
    assert done.returncode == 0
    assert b"Traceback" not in done.stderr
    assert (tmp_path / "checkpoints" / "ckpt-4" / "manifest.json").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_result_that_cannot_be_printed_is_an_error(trained, launcher):
    arguments, full = ["--num_episodes=1", "--json"], Path("/dev/full")
    player = launcher.start(trained, arguments, module="alf_lite.bin.play", output=full)
    assert player.wait() == 1
    assert "stdout cannot be written: [Errno 28]" in player.error


@pytest.mark.parametrize(
    "imported",
    ["alf_lite.bin", "numpy", "torch._C", "gymnasium.spaces"],
)
def test_ctrl_c_while_the_program_is_imported_is_one_line(conf, tmp_path, imported):
    # Python tells on stderr what it has imported.
    command = [sys.executable, "-X", "importtime", *TRAIN[1:], f"--conf={conf}"]
    with subprocess.Popen(
        [*command, f"--root_dir={tmp_path / 'run'}"],
        stderr=subprocess.PIPE,
        text=True,
        # A test run started in the background ignores SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        for line in process.stderr:
            if line.rstrip().endswith(f" {imported}"):
                break
        process.send_signal(signal.SIGINT)
        rest = [line for line in process.stderr if not line.startswith("import time:")]
        process.wait(60)
    assert rest == ["Interrupted.\n"]
    assert process.returncode == 130


@pytest.mark.ci
def test_c_locale_and_a_root_dir_with_other_letters(conf, tmp_path):
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    root_dir = tmp_path / "Läufe-γ"
    done = run('"$@"', f"--conf={conf}", f"--root_dir={root_dir}", **locale)
    assert b"Traceback" not in done.stderr
    assert done.returncode == 0, done.stderr
    assert (root_dir / "checkpoints" / "ckpt-4" / "manifest.json").exists()
