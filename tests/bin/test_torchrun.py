"""What a user of torchrun sees: one message from one rank, and no hang."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.source_code import ROOT

HERE = Path(__file__).parent
SECONDS = 300  # on a busy machine; torch is imported three times


def torchrun(
    what: str,
    root_dir: Path,
    *arguments: str,
    conf: str = "ppo_cart_pole",
    restarts: int = 0,
) -> str:
    """What two ranks, and torchrun, have printed."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc_per_node=2", f"--max-restarts={restarts}"),
            *(str(HERE / "rank_program.py"), what, f"--conf={conf}"),
            *(f"--root_dir={root_dir}", "--seed=1"),
            "--gin_param=TrainerConfig.num_env_steps = 0",
            "--gin_param=TrainerConfig.num_iterations = 5",
            "--gin_param=TrainerConfig.num_checkpoints = 5",
            "--gin_param=TrainerConfig.evaluate = False",
            *arguments,
        ],
        env=dict(os.environ, PYTHONPATH=os.pathsep.join([str(ROOT), str(HERE)])),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "arguments", "message", "exit_code"),
    [
        (
            "batch",
            ["--gin_param=TrainerConfig.mini_batch_size = 33"],
            "mini_batch_size is 33, which is of the whole run",
            2,
        ),
        ("conf", [], "ranks 1 of 2 were given another configuration", 2),
        ("environment", [], "no cart on this machine", 4),
        ("device", ["--device=cuda"], "torch sees no such device here", 2),
        ("flag", ["--seeds=0-2"], "--seeds and --seed exclude each other", 2),
    ],
)
def test_bad_input_is_told_once(tmp_path, what, arguments, message, exit_code):
    if what == "device" and _has_gpu():
        pytest.skip("there is one")
    said = torchrun(what, tmp_path / "run", *arguments)
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, said
    assert message in errors[0], said
    assert re.search(rf"exitcode *: {exit_code} ", said), said


@pytest.mark.slow
def test_ranks_have_unroll_workers_of_their_own(tmp_path):
    root_dir, conf = tmp_path / "run", "async_ppo_cart_pole"
    wrong = "--gin_param=TrainerConfig.num_unroll_workers = 3"
    said = torchrun("async", root_dir, wrong, conf=conf)
    assert said.count("error: TrainerConfig.num_unroll_workers is 3") == 1, said

    said = torchrun("async", root_dir, conf=conf)
    assert said.count("Trained 5 iterations") == 1, said
    longer = "--gin_param=TrainerConfig.num_iterations = 7"
    said = torchrun("async", root_dir, longer, conf=conf)
    assert re.search(r"Resuming from .*ckpt-5:", said), said
    assert said.count("Trained 7 iterations") == 1, said


@pytest.mark.slow
def test_a_bug_is_told_once_and_its_traceback_kept(tmp_path):
    said = torchrun("bug", tmp_path / "run")
    assert said.count("ZeroDivisionError: a bug of the second rank") == 1, said
    kept = re.search(r"is in (\S+\.txt)", said)
    assert kept is not None, said
    assert "in after_iter" in Path(kept[1]).read_text()


@pytest.mark.slow
def test_a_killed_rank_ends_all_and_a_restart_goes_on(tmp_path):
    said = torchrun("kill", tmp_path / "run", restarts=1)
    assert said.count("error: another rank has ended") == 1, said
    assert re.search(r"Resuming from .*ckpt-[23]:", said), said
    assert "Trained 5 iterations" in said, said


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()
