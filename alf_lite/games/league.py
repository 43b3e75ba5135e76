"""Decides against whom an algorithm plays while it trains."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from alf_lite.config import configurable
from alf_lite.data_structures import TimeStep
from alf_lite.errors import ConfigError
from alf_lite.games.opponent_pool import OpponentPool
from alf_lite.games.payoff import WEIGHTINGS, Payoff, Weighting, prioritized
from alf_lite.metrics.recent_games import RecentGames
from alf_lite.trainers.hooks import Hook, Training
from alf_lite.utils import summary
from alf_lite.utils.checks import check_unused
from alf_lite.utils.game_results import ended_games, results_of
from alf_lite.utils.ranks import ranks


@configurable
class League(Hook):
    """Takes snapshots of the policy, and says how often each opponent is played.

    The environment is a :class:`BattleEnvironment` with ``num_snapshots``. A snapshot
    is taken every ``2 snapshot_interval`` steps, or after half of that if the policy
    wins more than ``strong_win_rate`` of its games against each of the others. Where
    all slots are taken, the snapshot goes that is most surely beaten, or the oldest
    one, but never the newest one.

    Summaries: ``league/win_rate/<opponent>`` of those that are met, a draw counting as
    half of one, with ``/seat_<i>`` of each seat; and ``league/snapshots``.

    Args:
        weighting: of the snapshots, see :func:`prioritized`.
        newest_share: of the games against snapshots, those against the newest one.
        bot_share: of all games, those against opponents that are no snapshots.
        snapshot_interval: in steps of the environments.
        strong_win_rate: see above.
        decay: see :class:`Payoff`; above 0.875.
        evicts_oldest: makes room by age, for the average of the latest policies.
        priority: see :class:`Hook`.

    Raises:
        ConfigError: if a number is out of its range, or an option has no effect.
    """

    on_all_ranks = takes_snapshots = True

    def __init__(
        self,
        weighting: Weighting = "uniform",
        newest_share: float = 0.5,
        bot_share: float = 0.2,
        snapshot_interval: int = 20_000,
        strong_win_rate: float = 0.7,
        decay: float = 0.99,
        evicts_oldest: bool = False,
        priority: int = 50,
    ) -> None:
        super().__init__(priority)
        shares = (newest_share, bot_share, strong_win_rate)
        if not all(0 <= share <= 1 for share in shares):
            raise ConfigError(
                "League: newest_share, bot_share and strong_win_rate must lie in "
                f"[0, 1], got {', '.join(map(str, shares))}"
            )
        if snapshot_interval < 1 or weighting not in WEIGHTINGS:
            raise ConfigError(
                "League: snapshot_interval must be at least 1 and weighting one of "
                f"{', '.join(WEIGHTINGS)}, got {snapshot_interval} and {weighting!r}"
            )
        if newest_share == 1:
            reason = "newest_share is 1, and no other snapshot is played"
            check_unused(League, reason, weighting=weighting)
        self._weighting: Weighting = weighting
        self._newest_share = newest_share
        self._bot_share = bot_share
        self._interval = snapshot_interval
        self._strong_win_rate = strong_win_rate
        self._evicts_oldest = evicts_oldest
        self.payoff = Payoff(decay)
        self._last_snapshot_at = 0
        self._num_snapshots = 1
        # [N, 3] each, the games that have ended since the last look
        self._ended: list[np.ndarray] = []

    def before_episodes(self, training: Training) -> None:
        """Raises ConfigError, if there are no snapshots, or nothing to be chosen."""
        algorithm = training.algorithm
        pool = getattr(algorithm, "opponent_pool", None)
        if not isinstance(pool, OpponentPool):
            raise ConfigError(
                "League: the environment has no snapshots to play against. Take a "
                "BattleEnvironment, and set BattleEnvironment.num_snapshots."
            )
        if not pool.bot_names:
            reason = "the environment has no opponents but snapshots"
            check_unused(League, reason, bot_share=self._bot_share)
        if len(pool.ids) == 1:
            check_unused(
                League,
                "num_snapshots is 1, and there is no choice",
                weighting=self._weighting,
                newest_share=self._newest_share,
                evicts_oldest=self._evicts_oldest,
            )
        algorithm.training_run.collector.listeners.append(self.observe)

    def observe(self, steps: TimeStep) -> None:
        """Notes the games that end in [T, B] steps."""
        self._ended.append(ended_games(steps))

    def after_iter(self, training: Training) -> None:
        algorithm: Any = training.algorithm
        pool: OpponentPool = algorithm.opponent_pool
        counts = self._counts(pool)
        for opponent in np.flatnonzero(counts.any(1)).tolist():
            self.payoff.add(opponent, counts[opponent])
        num_steps = algorithm.num_env_steps
        if self._wants_snapshot(pool, num_steps - self._last_snapshot_at):
            self._last_snapshot_at = num_steps
            self._take_snapshot(algorithm, pool)
        pool.weights.copy_(torch.from_numpy(self.weights(pool)))
        if summary.should_record():
            self._record(algorithm, pool)

    def _counts(self, pool: OpponentPool) -> np.ndarray:
        """Games of all ranks that were won, drawn and lost, [opponents, 3]."""
        counts = np.zeros((len(pool.bot_names) + self._num_snapshots, 3))
        for games in self._ended:
            np.add.at(counts, (games[:, 0].astype(int), results_of(games)), 1)
        self._ended.clear()
        if ranks.size > 1:
            counts = ranks.sum_(torch.from_numpy(counts)).numpy()
        return counts

    def _wants_snapshot(self, pool: OpponentPool, num_steps: int) -> bool:
        if num_steps < self._interval:
            return False
        if num_steps >= 2 * self._interval:
            return True
        rates = [self.payoff.win_rate(pool.opponent(n)) for n in pool.slots()]
        return min(rates) > self._strong_win_rate

    def _take_snapshot(self, algorithm: Any, pool: OpponentPool) -> None:
        number = self._num_snapshots
        self._num_snapshots += 1
        tensors = algorithm.state_dict()
        slot = pool.free_slot()
        if slot is None:
            slots = pool.slots()
            rates = {n: self.payoff.win_rate(pool.opponent(n)) for n in slots}
            older = sorted(slots)[:-1] or list(slots)
            beaten = max(older, key=rates.__getitem__)
            goes = older[0] if self._evicts_oldest else beaten
            slot = slots[goes]
            self.payoff.forget(pool.opponent(goes))
        pool.put(slot, number, {name: tensors[name] for name in pool.names})

    def weights(self, pool: OpponentPool) -> np.ndarray:
        """[bots + slots], how often each is to be played; of sum 1."""
        slots, num_bots = pool.slots(), len(pool.bot_names)
        numbers = sorted(slots)
        rates = [self.payoff.win_rate(pool.opponent(number)) for number in numbers]
        shares = prioritized(np.array(rates), self._weighting)
        shares *= 1 - self._newest_share
        shares[-1] += self._newest_share
        bot_share = self._bot_share if num_bots else 0.0
        weights = np.zeros(len(pool.weights))
        weights[:num_bots] = bot_share / max(num_bots, 1)
        for number, share in zip(numbers, shares, strict=True):
            weights[num_bots + slots[number]] = (1 - bot_share) * share
        return weights

    def _record(self, algorithm: Any, pool: OpponentPool) -> None:
        summary.scalar("league/snapshots", self._num_snapshots)
        name_of = algorithm.env.opposition.name_of
        bots = range(len(pool.bot_names))
        met = [*bots, *sorted(map(pool.opponent, pool.slots()))]
        tags = {name_of(one): f"league/win_rate/{name_of(one)}" for one in met}
        for opponent, tag in zip(met, tags.values(), strict=True):
            summary.scalar(tag, self.payoff.win_rate(opponent))
        games = next(m for m in algorithm.metrics if isinstance(m, RecentGames))
        for record in games.records(name_of):
            if record.opponent in tags:
                won = (record.won + record.drawn / 2) / record.num_games
                summary.scalar(f"{tags[record.opponent]}/seat_{record.seat}", won)

    def state_dict(self) -> dict[str, Any]:
        return {
            "payoff": self.payoff.state_dict(),
            "last_snapshot_at": self._last_snapshot_at,
            "num_snapshots": self._num_snapshots,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.payoff.load_state_dict(state["payoff"])
        self._last_snapshot_at = int(state["last_snapshot_at"])
        self._num_snapshots = int(state["num_snapshots"])
