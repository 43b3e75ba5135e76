"""What is in a run's directory, and who else works there, destroys nothing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.reliability.disturbance import environ
from tests.reliability.test_kills import check_curves
from tests.reliability.trainer_process import newest_step
from tests.trainers.run_comparison import assert_same_run


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory):
    """Builds a run that was killed after 42 of 50 iterations; to be copied."""
    made: list[Path] = []

    def build(launcher, conf) -> Path:
        if not made:
            root_dir = tmp_path_factory.mktemp("killed") / "run"
            killing = environ(signals=[(43, "SIGKILL", 0)])
            arguments = [f"--conf={conf['ppo']}"]
            assert launcher.start(root_dir, arguments, environ=killing).wait() == -9
            made.append(root_dir)
        return made[0]

    return build


# Things in the way


IN_THE_WAY = [
    ("run.json", ".run.json.tmp"),
    ("user.gin", ".user.gin.tmp"),
    (".lock",),
    ("operative.gin", ".operative.gin.tmp"),
]


@pytest.mark.ci
@pytest.mark.parametrize(
    "names",
    [
        *(pytest.param(names, marks=pytest.mark.slow) for names in IN_THE_WAY),
        tuple(name for names in IN_THE_WAY for name in names),
    ],
    ids=lambda names: names[0] if len(names) < 3 else "all",
)
@pytest.mark.parametrize("kind", ["link", "FIFO", "directory"])
def test_nothing_is_written_through_what_lies_in_the_way(
    launcher, conf, killed, tmp_path, names, kind
):
    root_dir, victim = tmp_path / "run", tmp_path / "victim"
    shutil.copytree(killed(launcher, conf), root_dir)
    victim.write_text("precious\n")
    make: dict[str, Callable[[Path], object]] = {
        "link": lambda path: path.symlink_to(victim),
        "FIFO": os.mkfifo,
        "directory": lambda path: path.mkdir(),
    }
    for name in names:
        (root_dir / name).unlink(missing_ok=True)
        make[kind](root_dir / name)
    run = launcher.start(root_dir, [f"--conf={conf['ppo']}"])
    code = run.wait(seconds=60)
    assert code in (0, 2, 3), (code, run.error)
    assert "Traceback" not in run.error
    assert victim.read_text() == "precious\n"
    # It says what is wrong, or it does what it always does.
    assert newest_step(root_dir) == (50 if code == 0 else 40)


@pytest.mark.ci
def test_event_files_of_others_stay_as_they_are(launcher, conf, killed, tmp_path):
    root_dir, victim = tmp_path / "run", tmp_path / "victim"
    shutil.copytree(killed(launcher, conf), root_dir)
    victim.mkdir()
    own = next((root_dir / "train").iterdir())
    content = own.read_bytes()
    linked = victim / "events.out.tfevents.1111111111.linked"
    linked.write_bytes(content * 2)
    copied = root_dir / "train" / "events.out.tfevents.2222222222.copied"
    copied.write_bytes(content * 2)
    (root_dir / "train" / "events.out.tfevents.3333333333.link").symlink_to(linked)
    own.write_bytes(content + content[-100:])
    launcher.start(root_dir, [f"--conf={conf['ppo']}"]).finish()
    assert linked.read_bytes() == content * 2
    assert copied.read_bytes() == content * 2


@pytest.mark.ci
def test_a_linked_directory_of_summaries_keeps_what_is_there(
    launcher, conf, killed, tmp_path
):
    root_dir, victim = tmp_path / "run", tmp_path / "victim"
    shutil.copytree(killed(launcher, conf), root_dir)
    shutil.copytree(root_dir / "train", victim)
    foreign = victim / "events.out.tfevents.1111111111.foreign"
    shutil.copy(next((root_dir / "train").iterdir()), foreign)
    content = foreign.read_bytes()
    shutil.rmtree(root_dir / "train")
    (root_dir / "train").symlink_to(victim)
    run = launcher.start(root_dir, [f"--conf={conf['ppo']}"])
    assert run.wait() in (0, 2), run.error
    assert "Traceback" not in run.error
    assert foreign.read_bytes() == content


# Others in the same directory


@pytest.mark.ci
@pytest.mark.parametrize(
    "times", [2, pytest.param(20, marks=pytest.mark.slow)], ids=str
)
def test_of_two_trainers_in_one_directory_one_trains(
    launcher, conf, killed, tmp_path, times
):
    for number in range(times):
        root_dir = tmp_path / str(number)
        if number % 2:
            shutil.copytree(killed(launcher, conf), root_dir)
        both = [launcher.start(root_dir, [f"--conf={conf['ppo']}"]) for _ in range(2)]
        codes = [trainer.wait() for trainer in both]
        # On a busy machine one may come when the other has finished.
        assert sorted(codes) in ([0, 2], [0, 0]), [trainer.error for trainer in both]
        for trainer, other in zip(both, reversed(both), strict=True):
            assert "Traceback" not in trainer.error
            if trainer.exit_code == 2:
                assert f"process {other.pid}" in trainer.error
        assert newest_step(root_dir) == 50
        check_curves(root_dir)


@pytest.mark.slow
def test_a_directory_that_is_deleted_and_used_anew_belongs_to_the_new_run(
    launcher, straight, conf, tmp_path
):
    arguments = [f"--conf={conf['ppo']}"]
    root_dir = tmp_path / "run"
    endless = ["TrainerConfig.num_iterations = 1_000_000"]
    endless.append("TrainerConfig.num_checkpoints = 200_000")
    old = launcher.start(root_dir, arguments, settings=endless)
    old.wait_for_checkpoint()
    while root_dir.exists():
        # It may be writing a checkpoint.
        shutil.rmtree(root_dir, ignore_errors=True)
    new = launcher.start(root_dir, arguments)
    new.finish()
    code = old.wait()
    assert code in (1, 2, 3), (code, old.error)
    assert "Traceback" not in old.error
    assert str(root_dir) in old.error
    assert_same_run(straight(conf["ppo"]), root_dir)


# A wrong clock


@pytest.mark.slow
def test_curves_are_in_order_when_the_clock_is_set_back(
    launcher, straight, conf, tmp_path
):
    root_dir = tmp_path / "run"
    arguments = [f"--conf={conf['ppo']}"]
    for clock, iteration in ((0, 13), (-86_400, 27), (86_400, None)):
        signals = [] if iteration is None else [(iteration, "SIGTERM", 0)]
        run = launcher.start(
            root_dir, arguments, environ=environ(signals=signals, clock=clock)
        )
        run.finish(expected=0 if iteration is None else 143)
    assert_same_run(straight(conf["ppo"]), root_dir)
    check_curves(root_dir)
