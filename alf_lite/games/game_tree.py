"""What policies are worth in small games, exactly: by a table of all states."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from alf_lite.errors import ConfigError
from alf_lite.games.game import Game, State, copy_rows

# For each level of the tree the probabilities [N, A] of the actions of its states
Policy = Sequence[np.ndarray]
# (observations [N, ...], legal [N, A]) → probabilities [N, A]
Chooses = Callable[[np.ndarray, np.ndarray], np.ndarray]


class _Level(NamedTuple):
    """All N states that can be reached in one number of moves."""

    state: State
    mover: np.ndarray  # [N]
    legal: np.ndarray  # [N, A] bool; nothing where the game is over
    observation: np.ndarray  # [N, ...] of the mover
    parent: np.ndarray  # [M] state and action of each move,
    action: np.ndarray  # [M]
    child: np.ndarray  # [M] and the state of the next level that it leads to
    returns: np.ndarray  # [N] of seat 0, where the game is over


class GameTree:
    """The states of a game for two that is zero-sum, one of whom moves at a time.

    Who moves may not know all: states that look alike to it are one to a policy. What
    both seats see together is all there is.

    Args:
        game: whose moves are not left to chance.
        starts: the states in which it begins, all equally likely; those of the game by
            default, such as all deals of the cards.

    Raises:
        ConfigError: if it is another kind of game.
    """

    def __init__(self, game: Game, starts: State | None = None) -> None:
        self._game = game
        self._levels: list[_Level] = []
        rng = np.random.default_rng(0)
        state = game.starts() if starts is None else starts
        while len(state[0]):
            moves = game.moves(state)
            if (moves.sum(1) > 1).any():
                raise ConfigError(
                    f"GameTree: {game.name} has seats that move at the same time"
                )
            mover = moves.argmax(1)
            legal = game.legal(state, mover)
            parent, action = np.nonzero(legal)
            actions = np.repeat(action[:, None], 2, 1)
            before = rng.bit_generator.state
            after = game.play(copy_rows(state, parent), actions, rng)
            if rng.bit_generator.state != before:
                raise ConfigError(
                    f"GameTree: chance has a say in the moves of {game.name}"
                )
            state_after, child = self._distinct(after)
            seen = game.observe(state, mover)
            won = game.returns(state)[:, 0].astype(float)
            self._levels.append(
                _Level(state, mover, legal, seen, parent, action, child, won)
            )
            state = state_after

    @property
    def num_states(self) -> int:
        """In which somebody moves."""
        return sum(int(level.legal.any(1).sum()) for level in self._levels)

    def policy(self, chooses: Chooses) -> list[np.ndarray]:
        """What ``chooses`` does in each state, for the seat that moves there."""
        return [chooses(level.observation, level.legal) for level in self._levels]

    def uniform(self) -> list[np.ndarray]:
        """Any legal action."""
        return self.policy(lambda _, legal: _shares(legal))

    def average(self, policies: Sequence[Policy]) -> list[np.ndarray]:
        """What one does who takes one of the ``policies`` in each game, all as often.

        In each state they count as much as they have done to get there; for games whose
        states tell all that has led to them, as in Kuhn poker.
        """
        # [policies][seat][level] → [N], by the actions of the seat alone
        reaches = [
            [self._reaches(one, 1 - seat) for seat in (0, 1)] for one in policies
        ]
        averaged = []
        for i, level in enumerate(self._levels):
            weights = np.stack(
                [np.where(level.mover == 0, r[0][i], r[1][i]) for r in reaches]
            )
            played = (weights[..., None] * [one[i] for one in policies]).sum(0)
            total = weights.sum(0)[:, None]
            unreached = _shares(level.legal)
            share = played / np.where(total > 0, total, 1)
            averaged.append(np.where(total > 0, share, unreached))
        return averaged

    def value(self, first: Policy, second: Policy) -> float:
        """What seat 0 wins on average, if the seats play so."""
        values = np.zeros(0)
        for i, level in reversed(list(enumerate(self._levels))):
            probabilities = np.where(level.mover[:, None] == 0, first[i], second[i])
            after = self._after(level, values)
            values = level.returns + (probabilities * after).sum(1)
        return float(values.mean())

    def best_response(self, policy: Policy, seat: int) -> list[np.ndarray]:
        """What ``seat`` does best against a ``policy`` of the other one."""
        reaches = self._reaches(policy, seat)
        response = [np.zeros(level.legal.shape) for level in self._levels]
        values, sign = np.zeros(0), 1 - 2 * seat
        for i, level in reversed(list(enumerate(self._levels))):
            after = self._after(level, values)
            is_own = level.mover == seat
            # One action for all states that look alike, by how likely they are
            alike = _same_rows(_bytes(level.observation))[1]
            gains = np.zeros((alike.max() + 1, after.shape[1]))
            own = np.flatnonzero(is_own)  # the other one may see the same
            gain = sign * reaches[i][:, None] * after
            np.add.at(gains, alike[own], gain[own])
            gains = np.where(level.legal, gains[alike], -np.inf)
            best = level.legal & (gains == gains.max(1, keepdims=True))
            response[i] = _shares(best)
            chosen = np.where(is_own[:, None], response[i], policy[i])
            values = level.returns + (chosen * after).sum(1)
        return response

    def optimal(self) -> list[np.ndarray]:
        """Any of the best actions, if both know all (minimax)."""
        values = np.zeros(0)
        policy: list[np.ndarray] = []
        for level in reversed(self._levels):
            after = self._after(level, values)
            sign = 1 - 2 * level.mover[:, None]
            gains = np.where(level.legal, sign * after, -np.inf)
            best = level.legal & (gains == gains.max(1, keepdims=True))
            policy.append(_shares(best))
            values = level.returns + (policy[-1] * after).sum(1)
        return policy[::-1]

    def best_actions(self) -> dict[bytes, np.ndarray]:
        """By what the mover sees: [A] bool, see :meth:`optimal`."""
        return {
            seen.tobytes(): chosen > 0
            for level, policy in zip(self._levels, self.optimal(), strict=True)
            for seen, chosen in zip(level.observation, policy, strict=True)
            if chosen.any()
        }

    def worst_values(self, policy: Policy) -> tuple[float, float]:
        """What a policy wins as seat 0 and as seat 1 against the best response."""
        second = self.best_response(policy, 1)
        first = self.best_response(policy, 0)
        return self.value(policy, second), -self.value(first, policy)

    def exploitability(self, policy: Policy) -> float:
        """What best responses win on average of both seats; 0 in an equilibrium."""
        return -sum(self.worst_values(policy)) / 2

    def _distinct(self, state: State) -> tuple[State, np.ndarray]:
        """The different states, and which of them each one is."""
        everybody = [np.full(len(state[0]), seat) for seat in (0, 1)]
        rows = [_bytes(self._game.observe(state, seats)) for seats in everybody]
        rows.append(_bytes(self._game.moves(state)))
        rows.append(_bytes(self._game.returns(state)))
        first, same = _same_rows(np.concatenate(rows, 1))
        return copy_rows(state, first), same

    def _after(self, level: _Level, values: np.ndarray) -> np.ndarray:
        """[N, A]: the values of the states that actions lead to, 0 for illegal ones."""
        after = np.zeros(level.legal.shape)
        after[level.parent, level.action] = values[level.child]
        return after

    def _reaches(self, policy: Policy, seat: int) -> list[np.ndarray]:
        """How likely each state is, if ``seat`` does what leads to it."""
        reach = np.ones(len(self._levels[0].mover))
        found = []
        for i, level in enumerate(self._levels):
            found.append(reach)
            own = (level.mover == seat)[level.parent]
            share = np.where(own, 1, policy[i][level.parent, level.action])
            is_last = i + 1 == len(self._levels)
            following = 0 if is_last else len(self._levels[i + 1].mover)
            reach = np.zeros(following)
            np.add.at(reach, level.child, found[-1][level.parent] * share)
        return found


def _same_rows(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where each different row comes first, and which of them each row is."""
    _, first, same = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    return first, same.ravel()


def _bytes(array: np.ndarray) -> Any:
    """[N, bytes of a row] uint8."""
    row_size = math.prod(array.shape[1:])
    flat = np.ascontiguousarray(array).reshape(len(array), row_size)
    return flat.view(np.uint8).reshape(len(array), row_size * array.itemsize)


def _shares(chosen: np.ndarray) -> np.ndarray:
    """The same probability for each of some actions."""
    return chosen / np.maximum(chosen.sum(1, keepdims=True), 1)
