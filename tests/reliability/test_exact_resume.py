"""A run that is stopped anywhere and started again is the same run, to the bit."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from alf_lite.config import files as config_files
from alf_lite.datasets.writing import write_source
from alf_lite.environments.creation import create_environment
from alf_lite.tools.collector import NumSteps, RandomPolicy, collect
from tests.reliability.disturbance import environ
from tests.reliability.trainer_process import REPOSITORY, newest_step
from tests.trainers.run_comparison import assert_same_run

EXIT_CODES = {"SIGTERM": 143, "SIGINT": 130, "SIGHUP": 129, "SIGKILL": -9}


def stop_and_compare(
    launcher, straight, directory: Path, conf: Path, stops: list
) -> None:
    """Trains twice: without a stop, and with all of them one after the other."""
    arguments = [f"--conf={conf}"]
    root_dir = directory / "stopped"
    for iteration, name, seconds in stops:
        disturbed = launcher.start(
            root_dir, arguments, environ=environ(signals=[(iteration, name, seconds)])
        )
        assert disturbed.wait(600) == EXIT_CODES[name], (stops, disturbed.error)
        assert "Traceback" not in disturbed.error
        if name != "SIGKILL":
            # One that takes long is broken off, and the one before it saved.
            assert newest_step(root_dir) >= iteration - 1, stops
    launcher.start(root_dir, arguments).finish(seconds=600)
    assert_same_run(straight(conf), root_dir)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("sac", ["SIGTERM", "SIGKILL"]),
        *(
            pytest.param(name, list(EXIT_CODES), marks=pytest.mark.slow)
            for name in ("ppo", "sac")
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{len(value)} signals",
)
def test_stopped_by_every_signal_in_turn(
    launcher, straight, conf, tmp_path, name, names
):
    rng = random.Random(name)
    stops = [
        (3 + 12 * i + rng.randrange(8), signal_name, rng.random() / 200)
        for i, signal_name in enumerate(names)
    ]
    stop_and_compare(launcher, straight, tmp_path, conf[name], stops)


SHORTENED = """
include "{conf}"
import tests.reliability.disturbance
TrainerConfig:
  hook_ctors = [@Disturbance]
  num_iterations = 40
  num_env_steps = 0
  num_checkpoints = 4
  num_updates_per_train_iter = 1
  evaluate = False
  random_seed = 3
"""
# Of confs that collect first, so that they train; of those that train on data first.
COLLECTED = {
    "initial_collect_steps": "TrainerConfig.initial_collect_steps = 20\n",
    "rl_train_after_update_steps": "TrainerConfig.rl_train_after_update_steps = 10\n",
}
# Unroll workers promise less.
CONFS = [
    path.stem
    for path in sorted((REPOSITORY / "confs").glob("*.gin"))
    if "async_unroll = True" not in path.read_text()
]


def shortened(path: Path, directory: Path) -> Path:
    """The conf with few iterations, some of which train, and with data if it asks."""
    text = path.read_text()
    for name, module in (("atari", "ale_py"), ("box2d", "Box2D"), ("mujoco", "mujoco")):
        if f"alf_lite[{name}]" in text:
            pytest.importorskip(module)
    if path.stem in ("dqn_pong", "sac_pong"):
        pytest.skip("takes too long on a CPU")
    short = SHORTENED.format(conf=path)
    short += "".join(line for name, line in COLLECTED.items() if name in text)
    if (unroll := re.search(r"unroll_length = (\d+)", text)) and int(unroll[1]) > 32:
        short += "TrainerConfig.unroll_length = 32\n"
    conf = directory / f"{path.stem}.gin"
    conf.write_text(short)
    if "DATA = %gin.REQUIRED" in text:
        conf.write_text(f'{short}DATA = "{random_steps(path, directory)}"\n')
    return conf


def random_steps(path: Path, directory: Path) -> Path:
    config_files.parse_config(str(path), ['DATA = ""'])
    source = directory / "data.replay"
    env = create_environment(max_episode_steps=100, seed=0)
    write_source(
        collect(env, RandomPolicy(env), NumSteps(250)), env, source, "alf_lite"
    )
    env.close()
    config_files.reset()
    return source


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFS)
def test_a_shipped_conf_stopped_at_random_moments(launcher, straight, tmp_path, name):
    conf = shortened(REPOSITORY / "confs" / f"{name}.gin", tmp_path)
    rng = random.Random(name)
    moments = sorted(rng.sample(range(2, 38), 4))
    # The timer may ring an iteration later than asked for.
    moments = [m for m, n in zip(moments, [*moments[1:], 99], strict=True) if n > m + 1]
    names = rng.sample(sorted(EXIT_CODES), len(moments))
    stops = [(m, n, rng.random() / 50) for m, n in zip(moments, names, strict=True)]
    stop_and_compare(launcher, straight, tmp_path, conf, stops)
