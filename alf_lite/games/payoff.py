"""Who wins against whom: payoffs, what to play next by them, and ratings."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import numpy as np

from alf_lite.errors import ConfigError

Weighting = Literal["uniform", "squared", "variance"]
WEIGHTINGS = get_args(Weighting)

# Of so few games nothing is said
MIN_GAMES = 8
_WIN, _DRAW, _LOSS = range(3)


class Payoff:
    """Games against opponents, of which those that are long ago count less.

    Args:
        decay: what an earlier game counts with every later one against the same
            opponent; above 0.875, below which 8 games never count as so many.

    Raises:
        ConfigError: if the decay is another number.
    """

    def __init__(self, decay: float = 0.99) -> None:
        # All games together never count more than 1 / (1 - decay)
        least = 1 - 1 / MIN_GAMES
        if not least < decay <= 1:
            raise ConfigError(
                f"League: decay must be above {least} and at most 1, got {decay}. A "
                f"smaller one never remembers {MIN_GAMES} games, of which it tells "
                "who wins."
            )
        self._decay = decay
        self._games: dict[int, np.ndarray] = {}  # opponent → [3], won, drawn and lost

    def add(self, opponent: int, counts: np.ndarray) -> None:
        """Games that were won, drawn and lost [3], in an order that nobody knows."""
        games = self._games.setdefault(opponent, np.zeros(3))
        number = int(counts.sum())
        games *= self._decay**number
        # Each counts what a game of the batch does on average of all orders
        games += counts * np.mean(self._decay ** np.arange(number))

    def counts(self, opponent: int) -> np.ndarray:
        """[3], with decay."""
        return self._games.get(opponent, np.zeros(3)).copy()

    def win_rate(self, opponent: int) -> float:
        """The share of games won, a draw as half of one; 0.5 of fewer than 8."""
        won, drawn, lost = self.counts(opponent)
        total = won + drawn + lost
        return float((won + drawn / 2) / total) if total >= MIN_GAMES else 0.5

    def forget(self, opponent: int) -> None:
        """It will not be met again."""
        self._games.pop(opponent, None)

    def state_dict(self) -> dict[str, list[float]]:
        return {str(key): games.tolist() for key, games in self._games.items()}

    def load_state_dict(self, state: dict[str, list[float]]) -> None:
        self._games = {int(key): np.array(games) for key, games in state.items()}


def prioritized(win_rates: np.ndarray, weighting: Weighting) -> np.ndarray:
    """How often to play each opponent, from the rates of winning against it.

    Prioritised fictitious self-play (Vinyals et al. 2019, Nature 575, p. 352): (1 - x)²
    takes those that win, x (1 - x) those of the same strength. It does not find an
    equilibrium: where rock, paper and scissors go round, it goes with them.

    Args:
        win_rates: [N] in [0, 1].
        weighting: ``squared``, ``variance``, or ``uniform`` for all alike.

    Returns:
        [N], of sum 1; all alike where the weights would be 0.
    """
    if weighting == "squared":
        weights = (1 - win_rates) ** 2
    elif weighting == "variance":
        weights = win_rates * (1 - win_rates)
    else:
        weights = np.ones(len(win_rates))
    if weights.sum() < 1e-8:
        weights = np.ones(len(win_rates))
    return weights / weights.sum()


class Ratings(NamedTuple):
    """Strengths of N players."""

    elo: np.ndarray  # [N], the mean is 0
    half_width: np.ndarray  # [N], of their intervals of 95 %


# An Elo of 400 more is ten times as many wins as losses.
_ELO = 400 / np.log(10)


def bradley_terry(scores: np.ndarray, num_iterations: int = 200) -> Ratings:
    """Elo ratings that make the results the most likely ones, in whichever order.

    A wins against B with probability 1 / (1 + 10^((Elo_B - Elo_A) / 400)) (Bradley and
    Terry 1952); a draw is half a win. Every pair has drawn one game more than it has
    played, so that who has won all is not infinitely strong.

    Args:
        scores: [N, N], the points that row has made against column.
        num_iterations: of Newton's method at most.
    """
    num_players = len(scores)
    points = scores + 0.5 * (1 - np.eye(num_players))
    games = points + points.T
    strength = np.zeros(num_players)
    for _ in range(num_iterations):
        chance = 1 / (1 + np.exp(strength[None] - strength[:, None]))
        gradient = (points - games * chance).sum(1)
        information = _information(games, chance)
        # Strengths count from their mean, which makes the matrix regular
        step = np.linalg.solve(information + 1 / num_players, gradient)
        strength = strength + np.clip(step, -1, 1)
        if np.abs(step).max() < 1e-10:
            break
    covariance = np.linalg.inv(information + 1 / num_players) - 1 / num_players
    deviation = np.sqrt(np.maximum(np.diag(covariance), 0))
    return Ratings(_ELO * (strength - strength.mean()), 1.96 * _ELO * deviation)


def _information(games: np.ndarray, chance: np.ndarray) -> np.ndarray:
    """Fisher's, [N, N]."""
    weights = games * chance * (1 - chance)
    np.fill_diagonal(weights, 0)
    return np.diag(weights.sum(1)) - weights
