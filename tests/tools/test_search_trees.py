"""What is shown of a search: values of one side, the most visited first."""

from __future__ import annotations

import numpy as np
import pytest

from alf_lite.algorithms.parts.tree_search import Root, Step, TreeSearch
from alf_lite.bin import search_tree
from alf_lite.tools import search_trees
from alf_lite.tools.search_trees import Searched, branches_of


def two_players():
    """State s leads to 3 s + 1 + a; -1 for the other one; values by state."""
    logits = np.log(np.array([[0.5, 0.3, 0.2]], np.float32))
    values = np.linspace(-0.5, 0.5, 400, dtype=np.float32)[::-1].copy()

    def step(state, action):
        after = 3 * state + 1 + action
        size = np.ones(len(state), np.float32)
        return Step(0 * size, -size, logits[[0] * len(state)], values[after]), after

    return TreeSearch(12).run(Root(logits, values[:1], np.zeros(1, np.int64)), step)


def test_values_are_of_who_moves_at_the_root():
    found = two_players()
    root = branches_of(found, 2, 2)
    trees = found.tree
    assert (root.action, root.visits, root.num_left_out) == (-1, 12, 1)
    assert root.value == pytest.approx(found.value[0])
    order = np.argsort(-found.visits[0], kind="stable")[:2]
    assert [child.action for child in root.branches] == order.tolist()
    for child in root.branches:
        node = trees.children[0, 0, child.action]
        assert child.visits == found.visits[0, child.action]
        assert child.value == pytest.approx(found.q[0, child.action])
        assert child.prior == pytest.approx([0.5, 0.3, 0.2][child.action])
        assert child.branches
        for reply in child.branches:
            assert reply.visits == trees.visits[0, node, reply.action]
            assert reply.value == pytest.approx(-trees.q[0, node, reply.action])
            assert not reply.branches  # two levels are shown
            number = (trees.visits[0, trees.children[0, node, reply.action]] > 0).sum()
            assert reply.num_left_out == number


def test_the_lines_are_the_tree():
    found = two_players()
    lines = search_trees.text(Searched(found, "x.\n.o", "title"), 2, 2).splitlines()
    assert lines[:3] == ["title", "x.", ".o"]
    best = [line for line in lines if line.endswith("best")]
    assert [int(line.split()[0]) for line in best] == [found.action[0]]
    assert sum(line.startswith(("├─", "└─")) for line in lines) == 4
    assert lines[-1] == "… and 1 actions more"


def test_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    file = tmp_path / "tree.svg"
    search_trees.draw(Searched(two_players(), "x.\n.o", "the title"), file, 3, 2)
    assert file.stat().st_size > 10_000


CONF = """
create_environment.env_ctor = @BothSeatsEnvironment
create_environment.num_parallel_environments = 4
BothSeatsEnvironment.game = "tic_tac_toe"
TrainerConfig.algorithm_ctor = @AlphaZeroAlgorithm
TrainerConfig.num_iterations = 1
AlphaZeroAlgorithm.game = @TicTacToe()
TreeSearch.num_simulations = 8
ValueNetwork.fc_layer_params = (8,)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    from alf_lite.bin import train

    folder = tmp_path_factory.mktemp("tree")
    (folder / "az.gin").write_text(CONF)
    run = f"--root_dir={folder / 'run'}"
    assert train.main([f"--conf={folder / 'az.gin'}", run]) == 0
    return run


def test_the_search_of_a_run_after_some_moves(run, capsys):
    assert search_tree.main([run, "4", "0", "--steps=1", "--levels=1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "8 simulations" in lines[0]
    board = "".join(lines[1:4]).replace(" ", "")
    assert board[4] == "x"
    assert board[0] == "o"
    assert board.count("x") == 2  # the third move is the policy's
    assert not any(line.startswith(("├─", "└─")) for line in lines)


MUZERO = """
create_environment.env_name = "ENV"
create_environment.num_parallel_environments = 1
TrainerConfig.algorithm_ctor = @MuzeroAlgorithm
TrainerConfig.num_iterations = 1
TreeSearch.num_simulations = 8
LearnedModel.fc_layer_params = (8,)
"""


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_the_search_in_a_learned_model(env, tmp_path, capsys):
    from alf_lite.bin import train

    (tmp_path / "mz.gin").write_text(MUZERO.replace("ENV", env))
    run = f"--root_dir={tmp_path / 'run'}"
    assert train.main([f"--conf={tmp_path / 'mz.gin'}", run]) == 0
    assert search_tree.main([run, "--steps=2"]) == 0
    assert "MuzeroAlgorithm, iteration 1: 8 simulations" in capsys.readouterr().out
    assert search_tree.main([run, "1"]) == (0 if env == "CartPole-v1" else 2)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["4", "4"], "action 4, number 2 of those given, is none that can be taken"),
        (["9"], "action 9, number 1"),
        (["centre"], "centre: an action is a number from 0 on"),
        (["--steps=9"], "the episode is over after"),
        (["--output=tree.gif"], "tree.gif: a picture is a file that ends with .png"),
    ],
)
def test_what_cannot_be_shown_is_refused(run, flags, message, capsys):
    assert search_tree.main([run, *flags]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_other_algorithms_do_not_search(trained, capsys):
    run = trained
    assert search_tree.main([f"--root_dir={run}"]) == 2
    assert "does not search in a tree" in capsys.readouterr().err
