"""A rule of the contract of battles notices who breaks it, and no other rule does."""

from __future__ import annotations

import pytest

from alf_lite.algorithms.ppo_algorithm import PPOAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.games.battle_environment import BattleEnvironment
from alf_lite.games.opponent_pool import OpponentPool, Opponents
from alf_lite.games.opponents import OnePlyOpponent, RandomOpponent
from alf_lite.testing.game_contract import BattleContract, GameEnvironmentContract


class Contract(BattleContract):
    def make(self, num_environments, seed):
        env = BattleEnvironment(
            num_environments,
            opponents=[RandomOpponent(), OnePlyOpponent()],
            num_snapshots=2,
            seed=seed,
        )
        config = TrainerConfig(num_iterations=9, unroll_length=8, random_seed=0)
        PPOAlgorithm(env=env, config=config, action_mask_key="action_mask")
        return env


def broken_rules() -> list[str]:
    broken = []
    for name in (*vars(BattleContract), *vars(GameEnvironmentContract)):
        if name.startswith("test_"):
            try:
                getattr(Contract(), name)()
            except AssertionError:
                broken.append(name.removeprefix("test_"))
    return broken


def change_opponents_in_mid_game(monkeypatch):
    """New games choose for those, too, that go on."""
    choose = Opponents.choose
    monkeypatch.setattr(
        Opponents,
        "choose",
        lambda self, ids, rows, rng: choose(self, ids, range(len(ids)), rng),
    )


def follow_the_learner(monkeypatch):
    """The pool keeps references to the tensors that train, and no copies."""
    put, tensors = OpponentPool.put, {}

    def put_references(self, slot, number, given):
        put(self, slot, number, given)
        tensors[slot] = dict(given)

    monkeypatch.setattr(OpponentPool, "put", put_references)
    monkeypatch.setattr(OpponentPool, "tensors_of", lambda self, slot: tensors[slot])


@pytest.mark.ci
@pytest.mark.parametrize(
    ("breaks", "rule"),
    [
        (
            change_opponents_in_mid_game,
            "seats_alternate_and_nothing_changes_within_a_game",
        ),
        (follow_the_learner, "snapshots_stay_as_they_are_while_the_policy_trains"),
    ],
)
def test_a_rule_that_is_broken_is_named_alone(breaks, rule, monkeypatch):
    breaks(monkeypatch)
    assert broken_rules() == [rule]
