from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
import torch
from gymnasium import spaces

from alf_lite.algorithms.dqn_algorithm import DqnAlgorithm, DqnLossInfo
from alf_lite.algorithms.learning import updates
from alf_lite.algorithms.learning.updates import Update
from alf_lite.algorithms.ppo_algorithm import PPOAlgorithm
from alf_lite.algorithms.sac_algorithm import SacAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.environments.creation import create_environment
from alf_lite.errors import DivergedError
from alf_lite.optimizers.optimizers import Adam
from alf_lite.testing.probe_environments import IdentityEnv, PolicyEnv
from alf_lite.utils import summary
from alf_lite.utils.diagnostics import diagnostic, diagnostics_if


def test_they_are_computed_unless_a_block_says_that_nobody_looks():
    assert diagnostic(lambda: 1) == 1
    with diagnostics_if(False):
        assert diagnostic(lambda: 1) == ()
        with diagnostics_if(True):
            assert diagnostic(lambda: 1) == 1
        assert diagnostic(lambda: 1) == ()
    assert diagnostic(lambda: 1) == 1


def test_they_are_due_again_after_an_error():
    with pytest.raises(KeyError), diagnostics_if(False):
        raise KeyError
    assert diagnostic(lambda: 1) == 1


class Recorder(DqnAlgorithm):
    """Keeps the extra of every loss."""

    def __init__(self, *args, factor: float = 1.0, **kwargs):
        super().__init__(*args, **kwargs)
        self.factor = factor
        self.extras: list = []

    def calc_loss(self, info):
        loss = super().calc_loss(info)
        self.extras.append(loss.extra)
        return loss._replace(loss=self.factor * loss.loss)


class Stopping(Recorder):
    """Looks at every update."""

    stops_updates_early = True

    def should_stop_updates(self, loss_info, valid):
        return not loss_info.extra.td_error.isfinite().all()


def make(cls: type[Recorder] = Recorder, **kwargs) -> Recorder:
    torch.manual_seed(0)
    env = create_environment(env_ctor=PolicyEnv, num_parallel_environments=2, seed=0)
    return cls(
        env.observation_spec,
        env.action_spec,
        env=env,
        config=TrainerConfig(
            num_iterations=1,
            unroll_length=8,
            mini_batch_length=2,
            mini_batch_size=4,
            initial_collect_steps=0,
            num_updates_per_train_iter=1,
        ),
        optimizer=Adam(lr=1e-3),
        **kwargs,
    )


def test_updates_compute_them_only_where_summaries_are_recorded(tmp_path):
    algorithm = make()
    with summary.writer_to(tmp_path):
        for is_recorded in (False, True, False):
            with summary.record_if(is_recorded):
                algorithm.train_iter()
    assert [extra == () for extra in algorithm.extras] == [True, False, True]
    assert isinstance(algorithm.extras[1], DqnLossInfo)


def test_updates_compute_them_for_an_algorithm_that_looks_at_every_update():
    algorithm = make(Stopping)
    algorithm.train_iter()
    assert isinstance(algorithm.extras[0], DqnLossInfo)


def test_a_loss_that_is_not_finite_is_explained_by_them():
    algorithm = make()
    with torch.no_grad():
        for parameter in algorithm._q_network.parameters():
            parameter.fill_(float("inf"))
    with pytest.raises(DivergedError, match=r"parts: \['q', 'td_error'\]"):
        algorithm.train_iter()


class Norms(Adam):
    """Counts how often somebody asks for the norm of the gradients."""

    count = 0

    def clip_gradients(self):
        type(self).count += 1
        return super().clip_gradients()


OFF_POLICY = {"initial_collect_steps": 0, "num_updates_per_train_iter": 4}
ON_POLICY = {"epochs": 2}  # of two mini-batches
FOUR_UPDATES = {
    "ppo": (PPOAlgorithm, PolicyEnv, {**ON_POLICY, "mini_batch_length": 1}, {}),
    "ppo_with_target_kl": (
        PPOAlgorithm,
        PolicyEnv,
        {**ON_POLICY, "mini_batch_length": 1},
        {"target_kl": 1e9},
    ),
    "ppo_in_parts": (
        PPOAlgorithm,
        PolicyEnv,
        {**ON_POLICY, "mini_batch_length": 1, "gradient_accumulation": 2},
        {"normalize_advantages": False},
    ),
    "dqn": (DqnAlgorithm, PolicyEnv, {**OFF_POLICY, "mini_batch_length": 2}, {}),
    "sac": (
        SacAlgorithm,
        partial(IdentityEnv, spaces.Box(-1.0, 1.0, (2,))),
        {**OFF_POLICY, "mini_batch_length": 2},
        {},
    ),
}


@pytest.mark.parametrize("case", FOUR_UPDATES)
def test_of_a_recorded_iteration_the_last_update_alone_is_looked_at(
    case, tmp_path, monkeypatch
):
    cls, env_ctor, settings, options = FOUR_UPDATES[case]
    looks: list[bool] = []

    def diagnostics_of_update(condition):
        looks.append(condition)
        return diagnostics_if(condition)

    monkeypatch.setattr(updates, "diagnostics_if", diagnostics_of_update)
    monkeypatch.setattr(Norms, "count", 0)
    env = create_environment(env_ctor=env_ctor, num_parallel_environments=2, seed=0)
    algorithm = cls(
        env.observation_spec,
        env.action_spec,
        env=env,
        config=TrainerConfig(
            num_iterations=3, unroll_length=8, mini_batch_size=8, **settings
        ),
        optimizer=Norms(lr=1e-3),
        **options,
    )
    looked_at, norms = [], []
    with summary.writer_to(tmp_path):
        for is_recorded in (False, True, False):
            with summary.record_if(is_recorded):
                algorithm.train_iter()
            looked_at.append(looks.copy())
            norms.append(Norms.count)
            looks.clear()
            Norms.count = 0
    number = 1 if case != "ppo_in_parts" else 2  # looks at an update
    none, last = [False] * 4 * number, [False] * 3 * number + [True] * number
    if case == "ppo_with_target_kl":  # decides after each whether it is the last
        assert looked_at == [[True] * 4] * 3
        assert norms == [0, 4, 0]
    else:
        assert looked_at == [none, last, none]
        assert norms == [0, 1, 0]


def test_an_update_is_made_before_the_next_one_is_drawn(tmp_path):
    algorithm = make()
    algorithm.train_iter()  # so that there is something to draw from
    loop, replay = algorithm.training_run.updates, algorithm.training_run.replay
    before, drawn = loop.num_updates, []

    def draws() -> Iterator[Update]:
        for _ in range(3):
            drawn.append(loop.num_updates - before)
            yield from replay.batches.updates(with_own_steps=True)

    with summary.writer_to(tmp_path), summary.record_if(True):
        loop.run(draws(), 3)
    assert drawn == [0, 1, 2]


@pytest.mark.parametrize("number", [0, 2])
def test_more_or_fewer_updates_than_were_said_are_an_error(number):
    algorithm = make()
    algorithm.train_iter()
    run = algorithm.training_run
    with pytest.raises(ValueError, match="zip"):
        run.updates.run(run.replay.batches.updates(with_own_steps=True), number)
