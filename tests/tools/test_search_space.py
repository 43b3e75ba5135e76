"""What a search tries, written like settings."""

from __future__ import annotations

import pytest

from alf_lite.errors import ConfigError
from alf_lite.tools.search_space import Dimension, draw, grid, read_space

TEXT = """
# Of PPO
Adam.lr = log_uniform(1e-5, 1e-2)  # a comment (of two)
PPOAlgorithm:
  gamma = uniform(0.9, 0.99)
  epochs = int_uniform(2, 4)
actor/EncodingNetwork.fc_layer_params = choice((64, 64), (256,), None)
T.optimizer = choice(@Adam(), "a, b", %M, -1)
"""


def test_file_and_statements_are_one_space(tmp_path):
    path = tmp_path / "space.gin"
    path.write_text(TEXT)
    space = read_space(path, ["PPOAlgorithm.gamma = choice(0.9)"])
    by_name = {dimension.name: dimension for dimension in space}
    assert by_name["Adam.lr"] == Dimension("Adam.lr", "log_uniform", (), 1e-5, 1e-2)
    assert by_name["PPOAlgorithm.gamma"].choices == ("0.9",)
    choices = by_name["actor/EncodingNetwork.fc_layer_params"].choices
    assert choices == ("(64, 64)", "(256, )", "None")
    assert by_name["T.optimizer"].choices == ("@Adam()", '"a, b"', "%M", "-1")
    # What a dimension prints is read as the same one.
    assert read_space(None, list(map(str, space))) == space


def test_draws_are_in_range_and_repeatable():
    space = read_space(
        None, ["a.x = log_uniform(1e-5, 1e-2)", "a.n = log_int_uniform(1, 9)"]
    )
    drawn = [draw(space, [0, number]) for number in range(300)]
    assert drawn == [draw(space, [0, number]) for number in range(300)]
    assert drawn != [draw(space, [1, number]) for number in range(300)]
    values = [float(one["a.x"]) for one in drawn]
    assert all(1e-5 <= value <= 1e-2 for value in values)
    assert 0.2 < sum(value < 1e-4 for value in values) / 300 < 0.47
    assert {one["a.n"] for one in drawn} == set(map(str, range(1, 10)))


def test_grid_has_all_combinations():
    space = read_space(
        None,
        ["a.x = log_uniform(1, 100)", "a.n = int_uniform(1, 2)", "a.c = choice(7, 8)"],
    )
    rows = [tuple(row.values()) for row in grid(space, 3)]
    assert len(rows) == len(set(rows)) == 3 * 2 * 2
    assert rows[0] == ("1.0", "1", "7")
    assert rows[-1] == ("100.0", "2", "8")
    assert {row[0] for row in rows} == {"1.0", "10.0", "100.0"}


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("Adam.lr = 3", "expected NAME = choice"),
        ("Adam.lr = lg_uniform(1, 2)", "Did you mean 'log_uniform'"),
        ("Adam.lr = uniform(2, 1)", "LOW not above HIGH"),
        ("Adam.lr = log_uniform(0, 1)", "numbers above 0"),
        ("Adam.lr = int_uniform(1, 2.5)", "two integers"),
        ("Adam.lr = uniform(1)", "two numbers"),
        ("Adam.lr = uniform(1, 2) + 1", "expected NAME = choice"),
        ("Adam.lr = choice()", "nothing to choose from"),
        ("Adam.lr = choice((1, 2)", "never closed"),
        ("# nothing", "nothing to search"),
    ],
)
def test_mistakes_say_what_was_expected(statement, message):
    with pytest.raises(ConfigError, match=message):
        read_space(None, [statement])
