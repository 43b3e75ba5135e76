from __future__ import annotations

import pytest
import torch

from alf_lite.algorithms.dqn_algorithm import DqnAlgorithm, DqnLossInfo
from alf_lite.config import TrainerConfig
from alf_lite.environments.creation import create_environment
from alf_lite.errors import DivergedError
from alf_lite.optimizers.optimizers import Adam
from alf_lite.testing.probe_environments import PolicyEnv
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
