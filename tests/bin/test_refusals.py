"""What programs refuse: one message, the exit code, and nothing is written."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import pytest

from alf_lite.bin import command

# Of each program, before what a row says
DEFAULTS = {
    "check_env": ["--seconds=0"],
    "collect": ["--output=OUT/a"],
    "convert_buffer": ["--output=OUT/a"],
    "train": ["--conf=CONF", "--root_dir=OUT/run"],
}
ENV, CART_POLE = "--env=Pendulum-v1", ["--env=CartPole-v1", "--policy=random"]
AGENT = "--gin_param=TrainerConfig.algorithm_ctor=@Agent"
WIDTH = "--gin_param=ActorDistributionNetwork.fc_layer_params = (3,)"

ROWS = [
    ("check_env", ["CartPole-v1", "--arg=colour=red"], 1, "colour"),
    ("check_env", ["CartPol-v1"], 2, "Did you mean 'CartPole-v1'"),
    ("check_env", ["dm_control/walker-walk-v0"], 2, "alf_lite[dm_control]"),
    ("check_env", ["alf_lite.testing.goal_environment.PointGoal"], 2, "Did you mean"),
    ("check_env", ["no_such_module.MyEnv"], 2, "no module 'no_such_module'"),
    ("check_env", [], 2, "such as CartPole-v1"),
    ("check_env", ["CartPole-v1", "--conf=ppo_cart_pole"], 2, "give one of both"),
    ("check_env", ["--conf=ppo_cartpole"], 2, "Did you mean 'ppo_cart_pole'"),
    ("check_env", ["A-v0", "B-v0"], 2, "got A-v0, B-v0"),
    ("check_env", ["CartPole-v1", "--arg=5"], 2, "expected name=value"),
    ("check_env", ["CartPole-v1", "--seconds=-1"], 2, "--seconds=-1"),
    ("collect", ["--policy=random", "--num_episodes=1"], 2, "no environment is named"),
    ("collect", [ENV, "--num_episodes=1"], 2, "--policy is missing"),
    ("collect", CART_POLE, 2, "--num_env_steps or"),
    ("collect", [ENV, "--policy=no", "--num_episodes=1"], 2, "or module:function"),
    ("collect", ["--root_dir=/nowhere", "--num_episodes=1"], 2, "holds no run"),
    ("collect", ["--root_dir=a", "--conf=b"], 2, "exclude each other"),
    ("collect", [*CART_POLE, "--whole_episodes"], 2, "needs --num_env_steps"),
    ("collect", [*CART_POLE, "--num_episodes=0"], 2, "not a positive integer"),
    (
        "collect",
        ["--conf=ddpg_pendulum", "--num_episodes=1", "--epsilon_greedy=0.5"],
        2,
        "--epsilon_greedy: DdpgAlgorithm always takes its best action",
    ),
    ("collect", [*CART_POLE, "--checkpoint=5"], 2, "--checkpoint needs --root_dir"),
    ("collect", [*CART_POLE, "--device=cuda"], 2, "--device and --policy exclude each"),
    (
        "collect",
        [*CART_POLE, "--num_episodes=1", "--format=csv"],
        2,
        "must be one of alf_lite, npz, minari",
    ),
    ("collect", [*CART_POLE, "--env=CartPoel-v1", "--num_episodes=1"], 2, "CartPole"),
    (
        "collect",
        [*CART_POLE, "--output=", "--num_episodes=1"],
        2,
        "--output is missing",
    ),
    ("convert_buffer", [ENV], 2, "expected one SOURCE to convert, got 0"),
    ("convert_buffer", ["a", "b", ENV], 2, "expected one SOURCE to convert, got 2"),
    ("convert_buffer", ["RUN"], 2, "no environment is named"),
    ("convert_buffer", ["/nowhere/a", ENV], 3, "/nowhere/a"),
    ("inspect_buffer", [], 2, "no PATH is given: what should be inspected?"),
    ("list", [], 2, "no WHAT is given: what should be listed? One of: confs"),
    ("export", [], 2, "--root_dir is missing: which run should be exported?"),
    ("play", [], 2, "--root_dir is missing"),
    ("play", ["--root_dir=/nowhere"], 2, "holds no run"),
    ("play", ["--root_dir=RUN", "--checkpoint=newest"], 2, "latest, best or a step"),
    ("play", ["--root_dir=RUN", "--checkpoint=77"], 3, "present: steps 2, 4"),
    ("play", ["--root_dir=RUN", "--num_episodes=0"], 2, "not a positive integer"),
    ("play", ["--root_dir=RUN", "--seed=-4"], 2, "flag --seed=-4"),
    (
        "play",
        ["--root_dir=RUN", "--record=worst_median_best"],
        2,
        "needs --record_file",
    ),
    ("play", ["--root_dir=RUN", "--record_file=play.xyz"], 2, "one of .mp4, .gif"),
    pytest.param(
        "play",
        ["--root_dir=RUN", "--record_file=/dev/null/a.gif"],
        2,
        "cannot be written",
        marks=pytest.mark.skipif(find_spec("imageio") is None, reason="video"),
    ),
    ("play", ["--root_dir=RUN", "--render", "--record_file=a.gif"], 2, "exclude each"),
    ("play", ["--root_dir=RUN", WIDTH], 3, "_policy"),
    ("train", ["--gin_param=TrainerConfig.num_iteration = 3"], 2, "num_iterations"),
    ("train", ["--gin_param=PPOAlgorihm.gamma = 0.9"], 2, "PPOAlgorithm"),
    ("train", ["--gin_param=TrainerConfig.num_iterations = 'x'"], 2, "num_iterations"),
    ("train", ["--gin_param=PPOAlgorithm.gamma = 1.5"], 2, "gamma"),
    ("train", ["--strict_config", "--gin_param=SGD.lr = 1.0"], 2, "SGD.lr"),
    ("train", ["--conf=ppo_cart_pol"], 2, "ppo_cart_pole"),
    (
        "train",
        ["--gin_param=create_environment.env_name = 'CartPol-v1'"],
        2,
        "Did you mean 'CartPole-v1'",
    ),
    ("train", ["--root_dir="], 2, "--root_dir is missing"),
    ("train", ["--root_dir=/dev/null/run"], 2, "Not a directory"),
    ("train", [f"--root_dir={'x' * 300}"], 2, "File name too long"),
    (
        "train",
        [AGENT, "--gin_param=Agent.rl_algorithm_ctor=@Agent"],
        2,
        "Agent.rl_algorithm_ctor=@Agent",
    ),
    ("train", ["--device=cuda:77"], 2, "cuda"),
    ("train", ["--seeds=0-1", "--seed=3"], 2, "exclude each other"),
    ("train", ["--seeds=0-1", "--jobs=0"], 2, "--jobs=0"),
    ("train", ["--jobs=2"], 2, "--jobs needs --seeds"),
]


@pytest.mark.parametrize(("program", "arguments", "exit_code", "message"), ROWS)
def test_what_cannot_be_done_is_one_message(
    trained, conf, tmp_path, capsys, monkeypatch, program, arguments, exit_code, message
):
    monkeypatch.setitem(sys.modules, "shimmy", None)
    out = tmp_path / "out"
    out.mkdir()
    places = {"RUN": trained, "CONF": conf, "OUT": out}
    given = [*DEFAULTS.get(program, ()), *arguments]
    for name, path in places.items():
        given = [argument.replace(name, str(path)) for argument in given]
    assert command.load(program).main(given) == exit_code
    captured = capsys.readouterr()
    assert message in captured.out + captured.err
    assert "Traceback" not in captured.err
    assert not [*out.rglob("a"), *out.rglob("ckpt-*")]
