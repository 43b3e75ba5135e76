"""What can be named in a conf without a decorator or an import."""

from __future__ import annotations

import ast
import copy
import inspect
import os
import sys

import gin
import gymnasium
import pytest

import alf_lite
from alf_lite import exports
from alf_lite.bin import play, train
from alf_lite.config import TrainerConfig
from alf_lite.config import files as config_files
from alf_lite.config import names as config_names
from alf_lite.environments.creation import create_environment
from alf_lite.errors import ConfigError, DataError
from alf_lite.trainers.trainer import Trainer
from tests.source_code import parse_package

TANK = '''
import enum

import gymnasium
import numpy as np

from alf_lite.algorithms.ppo_algorithm import PPOAlgorithm
from alf_lite.trainers.hooks import Hook


class Fish(gymnasium.Env):
    """Its return says its settings."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2, 2), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length: int = 3, weight: float = 1.0, render_mode=None):
        self.length, self.weight, self.render_mode = length, weight, render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros((2, 2), np.float32), {}

    def step(self, action):
        self.steps += 1
        ends = self.steps == self.length
        return np.zeros((2, 2), np.float32), self.weight, ends, False, {}


class StopAt(Hook):
    def __init__(self, iteration=2):
        super().__init__()
        self.iteration = iteration

    def after_iter(self, training):
        if training.run.iterations == self.iteration:
            training.request_stop("enough")


class OwnPPO(PPOAlgorithm):
    pass


class Kind(enum.Enum):
    KOI = "koi"


class Net(Fish):
    def __init__(self, mesh):
        super().__init__()


def make_fish(length=7):
    return Fish(length)


DEPTH = 3
'''


@pytest.fixture
def tank(tmp_path, monkeypatch):
    """A module in the current directory, which is no place of modules so far."""
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    (tmp_path / "tank.py").write_text(TANK)
    (tmp_path / "needs_extra.py").write_text("import surely_not_installed\n")
    (tmp_path / "leaves.py").write_text("raise SystemExit(3)\n")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in ("tank", "needs_extra", "leaves"):
        sys.modules.pop(name, None)


def test_a_module_beside_the_conf_is_found_from_anywhere(tank, tmp_path_factory):
    (tank / "fish.gin").write_text(
        "create_environment.env_ctor = @tank.Fish\ntank.Fish.length = 5\n"
        "create_environment.wrappers = [@gymnasium.wrappers.FlattenObservation]\n"
    )
    os.chdir(tmp_path_factory.mktemp("elsewhere"))
    config_files.parse_config(str(tank / "fish.gin"))
    assert episode_length(create_environment()) == 5


def build(conf):
    config_files.parse_config(None, [conf])
    return create_environment()


def episode_length(env):
    env.reset()
    for step in range(1, 20):
        time_step = env.step(env.action_spec.zeros((env.batch_size,)))
        if time_step.is_last().any():
            return step
    raise AssertionError("the episode does not end")


@pytest.mark.parametrize(
    ("statements", "length"),
    [
        ("create_environment.env_ctor = @tank.Fish", 3),
        ("create_environment.env_ctor = @tank.Fish\ntank.Fish.length = 5", 5),
        ("tank.Fish.length = 5\ncreate_environment.env_ctor = @tank.Fish", 5),
        ("create_environment.env_ctor = @a/tank.Fish\na/tank.Fish.length = 4", 4),
        ("create_environment.env_ctor = @tank.make_fish", 7),
        (
            "N = 6\n"
            "create_environment.env_ctor = @tank.make_fish\n"
            "tank.make_fish.length = %N",
            6,
        ),
        ("FISH = @tank.Fish\ncreate_environment.env_ctor = %FISH", 3),
    ],
)
def test_an_environment_is_named_without_a_decorator(tank, statements, length):
    assert episode_length(build(statements)) == length
    assert config_files.unused_bindings() == []


@pytest.mark.parametrize(
    "mode", ["sync", pytest.param("async", marks=pytest.mark.slow)]
)
def test_wrappers_of_other_packages_are_named(tank, mode):
    env = build(
        f"""
create_environment.env_ctor = @b/tank.Fish
b/tank.Fish.length = 6
create_environment.vectorization_mode = "{mode}"
create_environment.wrappers = [
    @gymnasium.wrappers.FlattenObservation, @short/gymnasium.wrappers.TimeLimit]
short/gymnasium.wrappers.TimeLimit.max_episode_steps = 4
"""
    )
    try:
        assert env.observation_spec.shape == (4,)
        assert episode_length(env) == 4
    finally:
        env.close()
    assert config_files.unused_bindings() == []


def test_what_is_named_stays_as_it_is(tank):
    before = gymnasium.wrappers.TimeLimit.__init__
    config_files.parse_config(
        None,
        [
            "create_environment.env_ctor = @tank.Fish",
            "tank.Fish.length = 5",
            "create_environment.wrappers = [@gymnasium.wrappers.TimeLimit]",
            "gymnasium.wrappers.TimeLimit.max_episode_steps = 2",
        ],
    )
    import tank as module

    assert gymnasium.wrappers.TimeLimit.__init__ is before
    assert module.Fish().length == 3
    fish = gin.query_parameter("create_environment.env_ctor").scoped_configurable_fn
    assert type(fish()) is module.Fish
    assert fish().length == 5
    assert list(inspect.signature(fish).parameters) == [
        "length",
        "weight",
        "render_mode",
    ]


def test_one_thing_has_one_name(tank):
    config_files.parse_config(
        None,
        [
            "A = @gymnasium.wrappers.FlattenObservation",
            "B = @gymnasium.wrappers.transform_observation.FlattenObservation",
            "create_environment.wrappers = [%A, %B]",
            # Registered by the library, under the module that defines it.
            "create_environment.env_name = 'CartPole-v1'",
            "alf_lite.environments.create_environment.num_parallel_environments = 2",
        ],
    )
    assert create_environment().batch_size == 2
    values = [gin.query_parameter(f"%{name}") for name in "AB"]
    assert values[0] == values[1]


def test_a_name_of_another_package_does_not_hide_that_of_the_library():
    config_files.parse_config(
        None, ["create_environment.env_ctor = @torch.optim.Adam", "Adam.lr = 0.5"]
    )
    (binding,) = [name for name in config_files.unused_bindings() if "lr" in name]
    assert "Adam was not called" in binding


def test_what_the_library_has_needs_no_import():
    bound = ["TrainerConfig.algorithm_ctor = @PPOAlgorithm", "Adam.lr = 1.0"]
    config_files.parse_config(None, bound)
    text = config_files.user_config_text()
    assert "import alf_lite.algorithms.ppo_algorithm" in text


def test_a_module_that_has_moved_is_found_by_its_earlier_name():
    conf = "import alf_lite.trainers.tracking_hooks\nWandbHook.project = 'p'"
    with pytest.warns(FutureWarning, match="is called 'alf_lite.tools.tracking_hooks'"):
        config_files.parse_config(None, [conf])
    text = config_files.user_config_text()
    assert "import alf_lite.tools.tracking_hooks\n" in text


def test_an_earlier_name_stands_for_the_new_one_and_warns(monkeypatch):
    renamed = {"PpoAlgorithm": "PPOAlgorithm", "Adam.rate": "Adam.lr"}
    for old, new in renamed.items():
        monkeypatch.setitem(exports.RENAMED, old, new)
    bound = ["TrainerConfig.algorithm_ctor = @PpoAlgorithm", "Adam.rate = 0.5"]
    with pytest.warns(FutureWarning) as said:
        config_files.parse_config(None, bound)
    assert {f"{old!r} is called {new!r} now." for old, new in renamed.items()} == {
        str(warning.message).partition(" The next")[0] for warning in said
    }
    assert gin.query_parameter("alf_lite.optimizers.optimizers.Adam.lr") == 0.5
    reference = gin.query_parameter("TrainerConfig.algorithm_ctor")
    assert reference.configurable.wrapped is alf_lite.PPOAlgorithm
    with pytest.warns(FutureWarning, match="'PPOAlgorithm' now"):
        assert alf_lite.PpoAlgorithm is alf_lite.PPOAlgorithm
    with pytest.warns(FutureWarning, match="'PPOAlgorithm' now"):
        assert alf_lite.algorithms.PpoAlgorithm is alf_lite.PPOAlgorithm
    monkeypatch.setitem(exports.RENAMED, "PPOAlgorithm.gama", "PPOAlgorithm.gamma")
    with pytest.raises(TypeError, match=r"Here that is `PPOAlgorithm\.gamma`"):
        alf_lite.PPOAlgorithm(gama=0.9)


@pytest.mark.ci
def test_what_is_registered_anywhere_in_the_library_is_found():
    registered = {
        node.name
        for tree in parse_package().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
        and any("configurable" in ast.unparse(d) for d in node.decorator_list)
    }
    assert {"PPOAlgorithm", "SacAlgorithm", "Adam"} <= registered
    assert registered == set(config_names.shipped())


def test_parentheses_call_what_is_named(tank):
    config_files.parse_config(
        None,
        [
            "create_environment.env_kwargs = {'kind': @tank.Kind()}",
            "tank.Kind.value = 'koi'",
        ],
    )
    import tank as module

    value = gin.query_parameter("create_environment.env_kwargs")
    assert copy.deepcopy(value) == {"kind": module.Kind.KOI}


def test_a_class_that_is_defined_anew_replaces_the_earlier_one(tank):
    assert episode_length(build("create_environment.env_ctor = @tank.Fish")) == 3
    config_files.reset()
    sys.modules.pop("tank")
    (tank / "tank.py").write_text(
        TANK.replace("length: int = 3", "length: int = 2 * 2")
    )
    assert episode_length(build("create_environment.env_ctor = @tank.Fish")) == 4


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        (
            "create_environment.env_ctor = @tnk.Fish",
            "there is no module 'tnk'. Did you mean",
        ),
        (
            "create_environment.env_ctor = @fishing_lake.Fish",
            "there is no module 'fishing_lake'. A module of your own has to be beside "
            "the conf, in the current directory or on PYTHONPATH.",
        ),
        (
            "X = @gymnasium.wrapprs.FlattenObservation",
            "no module 'gymnasium.wrapprs'. Did you mean 'gymnasium.wrappers'?",
        ),
        (
            "X = [@gymnasium.wrappers.FlattnObservation]",
            "the module 'gymnasium.wrappers' has no 'FlattnObservation'. Did you mean "
            "'FlattenObservation'",
        ),
        (
            "X = @alf_lite.bin.PPOAlgorithm",
            "the module 'alf_lite.bin' has no 'PPOAlgorithm'. Did you mean "
            "'PPOAlgorithm' alone?",
        ),
        ("X = @tank.DEPTH", "'tank.DEPTH' is 3, and a conf can only refer to what can"),
        ("X = @gymnasium.wrappers", "'gymnasium.wrappers' is a module, and"),
        ("X = @tank.Fish.stp", "'tank.Fish' has no 'stp'. Did you mean 'step'"),
        (
            "X = @needs_extra.Fish",
            "importing 'needs_extra' failed: ModuleNotFoundError: No module named "
            "'surely_not_installed'",
        ),
        ("X = @leaves.Fish", "importing 'leaves' failed: SystemExit: 3"),
        ("tank.Fish.longth = 3", "has no parameter 'longth'. Did you mean 'length'"),
        ("Fish.length = 3", "there is no configurable 'Fish'"),
    ],
)
def test_what_cannot_be_named_says_why_and_where(tank, statement, message):
    (tank / "main.gin").write_text(f"# A conf\n{statement}\n")
    with pytest.raises(ConfigError) as error:
        config_files.parse_config("main.gin")
    assert str(error.value).startswith("main.gin:2: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


NO_STEPS = (
    "create_environment.env_ctor = @recorded_environment\n"
    "recorded_environment.source = '/nowhere/steps.npz'",
    DataError,
    "/nowhere/steps.npz: there is no such file or directory",
)
NO_MESH = (
    "create_environment.env_ctor = @tank.Net",
    ConfigError,
    "`Net.mesh` must be set, in the conf or by --gin_param.",
)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("mode", "what"), [("sync", NO_STEPS), ("sync", NO_MESH), ("async", NO_MESH)]
)
def test_what_an_environment_lacks_is_told_in_one_line(tank, mode, what):
    statement, kind, message = what
    mode = f"create_environment.vectorization_mode = {mode!r}"
    with pytest.raises(kind) as error:
        build(f"{statement}\n{mode}")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


RUN = """
TrainerConfig:
  algorithm_ctor = @tank.OwnPPO
  hook_ctors = [@tank.StopAt]
  num_iterations = 3
  unroll_length = 8
  evaluate = True
  num_eval_episodes = 1
tank.StopAt.iteration = 2
tank.OwnPPO.optimizer = @Adam()
create_environment:
  env_ctor = @strong/tank.Fish
  wrappers = [@gymnasium.wrappers.FlattenObservation]
strong/tank.Fish.weight = 2.0
"""


WORKERS = """
TrainerConfig.async_unroll = True
TrainerConfig.max_policy_lag = 0
"""


@pytest.mark.ci
def test_parts_are_named_in_workers_too(tank, capsys):
    (tank / "main.gin").write_text(RUN + WORKERS)
    arguments = ["--conf=main.gin", "--root_dir=run", "--strict_config"]
    assert train.main(arguments) == 0
    assert "(enough)" in capsys.readouterr().out


def test_a_run_of_named_parts_trains_resumes_and_plays(tank, capsys):
    (tank / "main.gin").write_text(RUN)
    arguments = ["--conf=main.gin", "--root_dir=run", "--seed=1", "--strict_config"]
    assert train.main(arguments) == 0
    assert "(enough)" in capsys.readouterr().out
    operative = (tank / "run" / "operative.gin").read_text()
    assert "tank.StopAt.iteration = 2" in operative
    assert "strong/tank.Fish.weight = 2.0" in operative
    config_files.reset()
    assert train.main(["--root_dir=run", "--gin_param=tank.StopAt.iteration = 9"]) == 0
    assert "Trained 3 iterations" in capsys.readouterr().out
    config_files.reset()
    assert play.main(["--root_dir=run", "--num_episodes=1"]) == 0
    assert "6" in capsys.readouterr().out  # three steps of 2.0


def test_the_operative_config_gives_the_same_run(tank):
    (tank / "main.gin").write_text(RUN)
    config_files.parse_config("main.gin")
    Trainer(TrainerConfig(random_seed=1), tank / "first").train()
    (tank / "again.gin").write_text(config_files.operative_config_text())
    config_files.reset()
    sys.modules.pop("tank")
    config_files.parse_config("again.gin")
    result = Trainer(TrainerConfig(random_seed=1), tank / "second").train()
    assert result.stop_reason == "enough"
    text = (tank / "second" / "operative.gin").read_text()
    assert "tank.StopAt.iteration = 2" in text
    assert "strong/tank.Fish.weight = 2.0" in text
