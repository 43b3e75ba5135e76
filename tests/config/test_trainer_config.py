"""TrainerConfig: every field is checked, all at once, and conflicts are named."""

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import gin
import numpy as np
import pytest

from alf_lite.config import TrainerConfig, values
from alf_lite.errors import ConfigError
from alf_lite.trainers.trainer import Trainer
from tests.config import documented_fields

INTS = {
    "epochs": 1,
    "num_updates_per_train_iter": 1,
    "mini_batch_size": 1,
    "mini_batch_length": 1,
    "eval_interval": 0,
    "num_eval_episodes": 1,
    "num_eval_environments": 1,
    "num_checkpoints": 0,
    "keep_checkpoints": 1,
    "summary_interval": 1,
    "metric_min_buffer_size": 1,
    "num_threads": 1,
    "random_seed": 0,
    "num_iterations": 0,
    "num_env_steps": 0,
}


def problem_with(**fields):
    with pytest.raises(ConfigError) as error:
        TrainerConfig(**{"num_env_steps": 1, "evaluate": True} | fields)
    return str(error.value)


def test_the_defaults_only_lack_a_length():
    assert TrainerConfig(num_iterations=1).num_iterations == 1
    assert TrainerConfig(num_env_steps=1).random_seed is None


def test_fields_are_keyword_only_and_fixed():
    with pytest.raises(TypeError):
        TrainerConfig("runs/x")
    with pytest.raises(dataclasses.FrozenInstanceError):
        TrainerConfig(num_iterations=1).num_iterations = 2
    config = dataclasses.replace(TrainerConfig(num_iterations=1), random_seed=3)
    assert (config.num_iterations, config.random_seed) == (1, 3)


@pytest.mark.parametrize(("name", "lowest"), INTS.items())
def test_the_lowest_accepted_int(name, lowest):
    base = {"num_env_steps": 1, "num_iterations": 1, "evaluate": True}
    assert getattr(TrainerConfig(**base | {name: lowest}), name) == lowest
    assert name in problem_with(**{name: lowest - 1})


@pytest.mark.parametrize("name", INTS)
@pytest.mark.parametrize("value", ["3", 3.0, True, float("nan")])
def test_what_is_not_an_int(name, value):
    message = problem_with(**{name: value})
    assert f"{name}: got {value!r}, expected an int" in message


BOOLS = [f.name for f in dataclasses.fields(TrainerConfig) if f.type == "bool"]


@pytest.mark.parametrize("name", BOOLS)
@pytest.mark.parametrize("value", [1, "True", None])
def test_what_is_not_a_bool(name, value):
    message = problem_with(**{name: value})
    assert f"{name}: got {value!r}, expected True or False" in message


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("unroll_length", 0, "> 0"),
        ("unroll_length", float("inf"), ">= 0"),
        ("unroll_length", "8", "a number, >= 0"),
        ("epsilon_greedy", 1.5, ">= 0 and <= 1"),
        ("epsilon_greedy", float("nan"), ">= 0 and <= 1"),
        ("summaries_flush_secs", 0, "> 0"),
        ("early_stop_return", float("nan"), "finite"),
        ("early_stop_return", "500", "a number or None"),
        ("random_seed", 2**32, "<= 4294967295"),
        ("root_dir", 3, "a string"),
        ("device", "gpu", "cpu, cuda, cuda:1 or mps"),
        ("device", None, "a string"),
        ("algorithm_ctor", "PPOAlgorithm", "a callable or None"),
        ("data_transformer_ctor", ["x"], "a callable"),
        ("temporally_independent_train_step", 0, "True or False or None"),
    ],
)
def test_out_of_range_and_wrong_types(name, value, expected):
    message = problem_with(**{name: value})
    assert re.search(rf"{name}: got {re.escape(repr(value))}, expected .*", message)
    assert expected in message


def test_all_wrong_fields_are_named_at_once():
    message = problem_with(num_iterations="abc", unroll_length=0, num_threads=True)
    for name in ("num_iterations", "unroll_length", "num_threads"):
        assert f"  {name}: got" in message


def test_a_loop_of_ones_own_needs_no_limit():
    config = TrainerConfig(num_iterations=0, num_env_steps=0)
    with pytest.raises(ConfigError, match="num_env_steps are both 0"):
        Trainer(config, "unused")


def test_a_whole_number_as_a_float_is_shown_as_an_int():
    message = problem_with(num_env_steps=1e5)
    assert "got 100000.0, expected an int, >= 0: write 100_000" in message
    assert "write" not in problem_with(num_env_steps=0.5)


def test_numbers_of_numpy_and_paths_are_what_a_conf_would_say():
    config = TrainerConfig(
        num_env_steps=np.int64(500),
        random_seed=np.int64(3),
        epsilon_greedy=np.float32(0.5),
        evaluate=np.bool_(True),
        root_dir=Path("runs/x"),
    )
    assert [type(config.num_env_steps), type(config.random_seed)] == [int, int]
    assert (config.num_env_steps, config.random_seed) == (500, 3)
    assert type(config.epsilon_greedy) is float
    assert config.evaluate is True
    assert config.root_dir == "runs/x"
    both = values.as_in_a_conf([Path("a"), np.float64(0.5), "b"])
    assert both == ["a", 0.5, "b"]
    assert type(both[1]) is float
    with pytest.raises(ConfigError, match="num_env_steps"):
        TrainerConfig(num_env_steps=np.float64(0.5))


@pytest.mark.parametrize("name", ["unroll_length", "num_threads", "mini_batch_size"])
def test_numbers_that_no_machine_can_hold_are_refused(name):
    assert f"{name}: got 10000000000, expected" in problem_with(**{name: 10**10})


def test_evaluation_settings_without_evaluation_are_a_conflict():
    message = problem_with(evaluate=False, eval_interval=5, early_stop_return=10.0)
    assert "eval_interval is 5, but evaluate is False" in message
    assert "early_stop_return is 10.0, but evaluate is False" in message


@pytest.mark.parametrize("name", ["early_stop_return", "early_stop_patience"])
def test_an_early_stop_by_the_evaluation_at_the_end_is_a_conflict(name):
    message = problem_with(evaluate=True, **{name: 10})
    assert f"{name}=10 " in message
    assert "there is only the one at " in message
    TrainerConfig(evaluate=True, eval_interval=5, **{name: 10})


def test_a_conf_may_switch_evaluations_off_that_it_describes():
    gin.parse_config("TrainerConfig.evaluate = False\nTrainerConfig.eval_interval = 5")
    try:
        assert not TrainerConfig(num_env_steps=1, early_stop_return=10.0).evaluate
    finally:
        gin.clear_config()


def test_a_conflict_is_not_reported_on_top_of_a_wrong_value():
    message = problem_with(evaluate=False, eval_interval="5")
    assert "eval_interval: got '5'" in message
    assert "but evaluate" not in message


def test_burning_in_leaves_steps_to_train_on():
    message = problem_with(burn_in_length=4, mini_batch_length=4)
    assert "burn_in_length=4 leaves nothing of a mini_batch_length=4" in message
    TrainerConfig(num_iterations=1, burn_in_length=3, mini_batch_length=4)


def test_a_buffer_that_is_taken_whole_has_no_priorities():
    message = problem_with(priority_replay=True, whole_replay_buffer_training=True)
    assert "whole_replay_buffer_training takes everything: set one" in message


def test_a_buffer_is_cleared_only_after_it_was_taken_whole():
    message = problem_with(clear_replay_buffer=True)
    assert "clears after whole_replay_buffer_training, which is False" in message


@pytest.mark.parametrize("num_env_steps", [999, 1000])
def test_a_run_must_not_end_before_training_begins(num_env_steps):
    message = problem_with(initial_collect_steps=1000, num_env_steps=num_env_steps)
    assert f"the run ends after num_env_steps={num_env_steps}: nothing" in message
    TrainerConfig(initial_collect_steps=1000, num_env_steps=1001)
    TrainerConfig(initial_collect_steps=1000, num_iterations=5)


def test_several_data_transformers_or_one():
    for ctor in (dict, [dict, list], (dict,)):
        config = TrainerConfig(num_iterations=1, data_transformer_ctor=ctor)
        assert config.data_transformer_ctor == ctor


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:1", "mps", "xpu:0"])
def test_devices(device):
    assert TrainerConfig(num_iterations=1, device=device).device == device


def test_it_is_configurable():
    gin.parse_config("TrainerConfig.num_iterations = 5")
    assert TrainerConfig().num_iterations == 5


def test_every_field_is_in_a_group_and_says_what_it_is():
    described = documented_fields.fields()
    names = [field.name for field in dataclasses.fields(TrainerConfig)]
    assert [field.name for field in described] == names
    for field in described:
        assert field.group, field.name
        assert len(field.meaning) > 3, field.name


def test_the_fields_are_documented_as_they_are():
    page = documented_fields.PAGE.read_text(encoding="utf-8")
    assert page == documented_fields.page(), "python -m tests.config.documented_fields"


@pytest.mark.parametrize(
    "amounts",
    [
        {"epochs": 2, "num_updates_per_train_iter": 2},
        {"epochs": 2, "updates_per_env_step": 1.0},
        {"num_updates_per_train_iter": 2, "updates_per_env_step": 1.0},
    ],
)
def test_the_updates_of_an_iteration_are_said_once(amounts):
    message = problem_with(**amounts)
    assert " and ".join(amounts) in message
    assert "each says how many updates an iteration makes" in message


@pytest.mark.parametrize("given", [{"epochs": 3}, {"num_updates_per_train_iter": 3}])
def test_alfs_name_of_epochs_is_accepted_on_policy(given):
    config = TrainerConfig(num_iterations=1, **given)
    counted = config.counted(True, 8)
    assert (counted.epochs, counted.num_updates_per_train_iter) == (3, None)
    assert counted.counted(True, 8) == counted


@pytest.mark.parametrize(
    ("given", "num_updates"),
    [
        ({}, 1),
        ({"num_updates_per_train_iter": 3}, 3),
        ({"updates_per_env_step": 1.0}, 32),
        ({"updates_per_env_step": 0.25}, 8),
        ({"updates_per_env_step": 0.001}, 1),
        ({"epochs": 3, "whole_replay_buffer_training": True}, 3),
    ],
)
def test_updates_of_off_policy_algorithms(given, num_updates):
    config = TrainerConfig(num_iterations=1, unroll_length=4, **given)
    counted = config.counted(False, 8)
    assert counted.num_updates_per_train_iter == num_updates
    assert (counted.epochs, counted.updates_per_env_step) == (None, None)


def test_importing_it_does_not_import_torch():
    program = "import sys, alf_lite.config.files; print('torch' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "False"
