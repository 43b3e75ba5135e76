"""Shows what a search has looked at: the most visited part of its tree."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from alf_lite.algorithms.parts.tree_search import Found
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.config import files as config_files
from alf_lite.data_structures import TimeStep
from alf_lite.environments.creation import create_environment
from alf_lite.environments.environment import Environment
from alf_lite.errors import ConfigError
from alf_lite.games.game_environment import GameEnvironment
from alf_lite.policies.run_policy import (
    build_policy,
    load_policy_checkpoint,
    read_run_config,
)
from alf_lite.tools import pictures

_CONNECT = {"tee": "├─ ", "last": "└─ ", "bar": "│  ", "none": "   "}


class TreeBranch(NamedTuple):
    """A node of a tree as it is shown, with the action that leads to it.

    Values are those of who moves at the root, whoever moves at the node.
    """

    action: int  # -1 at the root
    visits: int
    prior: float  # of the action
    value: float  # Q of the action; of the root the mean of all simulations
    branches: tuple[TreeBranch, ...]  # the most visited first
    num_left_out: int  # of its actions that were tried


class Searched(NamedTuple):
    """A search, and what is to be said of it."""

    found: Found  # of one root
    position: str  # what it began with, for people
    title: str

    @property
    def priors(self) -> np.ndarray:
        """[A], of the actions of the root."""
        return _softmax(np.asarray(self.found.tree.logits)[0, 0])


def search_of_run(
    root_dir: str | Path,
    *,
    checkpoint: str | int = "latest",
    actions: Sequence[int] = (),
    num_steps: int = 0,
    seed: int = 0,
    gin_params: Sequence[str] = (),
) -> Searched:
    """The search of a trained policy, without noise, somewhere in an episode.

    The configuration of the run is read and executed: use only runs that you trust.

    Args:
        root_dir: of the run.
        checkpoint: "latest", "best" or a step.
        actions: what is done first in a new episode.
        num_steps: that the policy goes on by itself, before it is looked at.
        seed: of the environment.
        gin_params: override the configuration of the run.

    Raises:
        ConfigError: if its algorithm does not search, or there is no such action.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(config_files.own_config())
        config = read_run_config(root_dir, gin_params)
        loaded = load_policy_checkpoint(root_dir, checkpoint)
        with config_files.gin_errors():
            env = create_environment(num_parallel_environments=1, seed=seed)
        stack.callback(env.close)
        algorithm = build_policy(config, env, loaded)
        algorithm.eval()
        stack.enter_context(torch.inference_mode())
        time_step, found = _played(algorithm, env, actions, num_steps, seed)
        num_simulations = int(np.asarray(found.visits).sum())
        title = (
            f"{type(algorithm).__name__}, iteration {loaded.step}: {num_simulations} "
            f"simulations, best action {int(found.action[0])}"
        )
        return Searched(found, _position(env, time_step), title)


def _played(
    algorithm: RLAlgorithm,
    env: Environment,
    actions: Sequence[int],
    num_steps: int,
    seed: int,
) -> tuple[TimeStep, Found]:
    """The newest step of an episode, and the search there."""
    time_step = env.reset(seed=seed)
    state = algorithm.get_initial_predict_state(1)
    transformed = algorithm.get_initial_transform_state(1)
    for i in range(len(actions) + num_steps + 1):
        if i and bool(time_step.is_last()[0]):
            raise ConfigError(
                f"the episode is over after {i} of "
                f"{len(actions) + num_steps} steps: look at an earlier one"
            )
        inputs, transformed = algorithm.transform_timestep(time_step, transformed)
        step = algorithm.predict_step(inputs, state)
        if not isinstance(step.info, Found):
            raise ConfigError(
                f"{type(algorithm).__name__} does not search in a tree: give a run of "
                "AlphaZeroAlgorithm or MuzeroAlgorithm"
            )
        if i == len(actions) + num_steps:
            break
        action, state = step.output, step.state
        if i < len(actions):
            _check_action(actions[i], action, step.info, i)
            action = torch.full_like(action, actions[i])
        time_step = env.step(action)
    return time_step, step.info


def _check_action(action: int, like: Any, found: Found, index: int) -> None:
    if not isinstance(like, torch.Tensor) or like.is_floating_point():
        raise ConfigError(
            "the actions of this run are no numbers from 0 on that could be given: let "
            "the policy act, with --steps"
        )
    is_legal = np.asarray(found.tree.logits)[0, 0] > -1e8
    if not (0 <= action < len(is_legal) and is_legal[action]):
        legal = ", ".join(map(str, np.flatnonzero(is_legal)))
        raise ConfigError(
            f"action {action}, number {index + 1} of those given, is none that can be "
            f"taken there: {legal}"
        )


def _position(env: Environment, time_step: TimeStep) -> str:
    """The board of a game, if what a seat sees tells it."""
    if not isinstance(env, GameEnvironment):
        return ""
    board = time_step.observation["observation"].numpy(force=True)
    try:
        return env.game.describe(env.game.state_of(board), 0)
    except ConfigError:
        return ""


def branches_of(found: Found, num_levels: int, num_branches: int) -> TreeBranch:
    """The part of the tree that is shown.

    Args:
        found: of one root.
        num_levels: of actions.
        num_branches: of a node, at most.
    """
    tree = found.tree
    children, visits, q, logits, discount = (
        np.asarray(leaf)[0]
        for leaf in (tree.children, tree.visits, tree.q, tree.logits, tree.discount)
    )

    def at(node: int, sign: float, level: int) -> tuple[tuple[TreeBranch, ...], int]:
        tried = np.flatnonzero(visits[node])
        order = tried[np.argsort(-visits[node][tried], kind="stable")]
        priors = _softmax(logits[node])
        shown = []
        for action in order[:num_branches] if level < num_levels else []:
            edge = node, action
            turned = sign * (-1 if discount[edge] < 0 else 1)
            below = at(children[edge], turned, level + 1)
            numbers = int(visits[edge]), float(priors[action]), float(sign * q[edge])
            shown.append(TreeBranch(int(action), *numbers, *below))
        return tuple(shown), len(tried) - len(shown)

    value = float(np.asarray(found.value)[0])
    return TreeBranch(-1, int(visits[0].sum()), 1.0, value, *at(0, 1, 0))


def _softmax(logits: np.ndarray) -> np.ndarray:
    shares = np.exp(logits - logits.max())
    return shares / shares.sum()


def text(searched: Searched, num_levels: int, num_branches: int) -> str:
    """The tree in lines; a level to the right is a move later."""
    found = searched.found
    root = branches_of(found, num_levels, num_branches)
    policy = np.asarray(found.action_weights)[0]
    lines = [searched.title, *searched.position.splitlines()]
    lines.append(
        f"value {root.value:+.2f}, of the improved policy "
        f"{float(np.asarray(found.policy_value)[0]):+.2f}"
    )
    width = 3 * num_levels + 6
    lines.append(f"{'action':<{width}}  visits  prior      Q  improved policy")

    def add(branch: TreeBranch, begin: str, level: int) -> None:
        for i, child in enumerate(branch.branches):
            is_last = i == len(branch.branches) - 1
            corner = _CONNECT["last" if is_last else "tee"] if level else ""
            line = (
                f"{begin + corner + str(child.action):<{width}}  {child.visits:6}  "
                f"{child.prior:5.0%}  {child.value:+5.2f}"
            )
            if not level:
                is_best = child.action == int(found.action[0])
                line += f"  {policy[child.action]:5.0%}{'  best' if is_best else ''}"
            lines.append(line)
            bar = _CONNECT["none" if is_last else "bar"] if level else ""
            add(child, begin + bar, level + 1)

    add(root, "", 0)
    if root.num_left_out:
        lines.append(f"… and {root.num_left_out} actions more")
    return "\n".join(lines)


def draw(
    searched: Searched, file: str | Path, num_levels: int, num_branches: int
) -> None:
    """The tree from left to right, and what the actions of the root are worth.

    Args:
        searched: what is drawn.
        file: a picture.
        num_levels: of actions.
        num_branches: of a node, at most.
    """
    root = branches_of(searched.found, num_levels, num_branches)
    num_rows = _num_leaves(root)
    height = max(3.0, 0.36 * num_rows)
    with pictures.picture(file, 1, 2, (4.6, height)) as (figure, (tree, bars)):
        columns = tree.get_gridspec()
        assert columns is not None
        columns.set_width_ratios([2.6, 1])
        _draw_tree(tree, root, int(searched.found.action[0]), num_levels)
        _draw_bars(bars, searched)
        figure.suptitle(searched.title, fontsize=11)
        if searched.position:
            font: Any = {"family": "monospace", "size": 7, "va": "top"}
            tree.text(0, 1, searched.position, transform=tree.transAxes, **font)


def _num_leaves(branch: TreeBranch) -> int:
    return sum(map(_num_leaves, branch.branches)) or 1


def _draw_tree(axes: Any, root: TreeBranch, best: int, num_levels: int) -> None:
    from matplotlib import colormaps

    colour: Callable[[float], Any] = colormaps["RdBu"]
    largest = max(1e-6, *map(abs, _values(root)))
    next_row = 0.0

    def place(branch: TreeBranch, level: int) -> float:
        """Draws what is below first; returns the row of the branch."""
        nonlocal next_row
        rows = [place(child, level + 1) for child in branch.branches]
        if not rows:
            rows, next_row = [next_row], next_row + 1
        row = (rows[0] + rows[-1]) / 2
        for child, below in zip(branch.branches, rows, strict=False):
            is_best = level == 0 and child.action == best
            axes.plot(
                [level, level + 0.35, level + 1],
                [row, below, below],
                color="#333333" if is_best else "#999999",
                linewidth=0.4 + 5 * child.prior,
                solid_capstyle="round",
                alpha=0.8,
                zorder=1,
            )
            axes.text(
                level + 0.62,
                below,
                str(child.action),
                **{"size": 7, "ha": "center", "va": "center", "zorder": 3},
                weight="bold" if is_best else "normal",
                bbox={"boxstyle": "round,pad=0.15", "fc": "white", "ec": "#bbbbbb"},
            )
        axes.scatter(
            level,
            row,
            s=10 + 170 * math.sqrt(branch.visits / root.visits),
            color=colour((branch.value / largest + 1) / 2),
            edgecolor="#555555",
            linewidth=0.6,
            zorder=2,
        )
        left_out = f"  +{branch.num_left_out} …" if branch.num_left_out else ""
        axes.annotate(
            f"{branch.visits}  {branch.value:+.2f}{left_out}",
            (level, row),
            **{"xytext": (0, 9), "textcoords": "offset points", "size": 6.5},
            **{"ha": "center", "zorder": 4},
        )
        return row

    place(root, 0)
    axes.invert_yaxis()
    axes.margins(0.05, 0.06)
    axes.set_xlim(-0.3, num_levels + 0.4)
    axes.set_xticks(range(num_levels + 1))
    axes.set_yticks([])
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(
        "actions from the root; of each node visits and value, for who moves at the "
        "root; width: prior",
        fontsize=8,
    )


def _values(branch: TreeBranch) -> list[float]:
    return [branch.value, *(v for child in branch.branches for v in _values(child))]


def _draw_bars(axes: Any, searched: Searched) -> None:
    found = searched.found
    visits = np.asarray(found.visits)[0]
    shares = {
        "prior": searched.priors,
        "visits": visits / visits.sum(),
        "improved policy": np.asarray(found.action_weights)[0],
    }
    actions = np.flatnonzero(searched.priors > 0)
    rows, width = np.arange(len(actions)), 0.8 / len(shares)
    for i, (name, share) in enumerate(shares.items()):
        colour = pictures.line_style((4, 6, 0)[i])["color"]
        place = rows + (i - 1) * width
        axes.barh(place, share[actions], 0.9 * width, label=name, color=colour)
    axes.set_yticks(rows, [str(action) for action in actions])
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.set_ylabel("action")
    axes.set_xlabel("share")
    axes.legend(fontsize=7, loc="best")
