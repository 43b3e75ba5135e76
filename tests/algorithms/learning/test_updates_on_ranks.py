"""N ranks with 1/N of a batch each make the update of one rank with all of it."""

from __future__ import annotations

import functools
import tempfile
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn

from alf_lite import nest
from alf_lite.algorithms.actor_critic_algorithm import (
    ActorCriticAlgorithm,
    ActorCriticInfo,
)
from alf_lite.algorithms.ddpg_algorithm import DdpgAlgorithm
from alf_lite.algorithms.dqn_algorithm import DqnAlgorithm
from alf_lite.algorithms.learning.partial_batches import with_batch_statistics
from alf_lite.algorithms.learning.training_batches import (
    TrainingBatch,
    cut_sequences,
    num_mini_batches,
    parts_of,
    passes,
    time_major,
)
from alf_lite.algorithms.learning.updates import Update, UpdateLoop
from alf_lite.algorithms.ppo_algorithm import PPOAlgorithm
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.algorithms.sac_algorithm import SacAlgorithm
from alf_lite.algorithms.td3_bc_algorithm import Td3BcAlgorithm
from alf_lite.algorithms.trac_sac_algorithm import TracSacAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import BatchInfo, Experience, LossInfo
from alf_lite.errors import ConfigError, DivergedError
from alf_lite.networks.critic_networks import CriticNetwork
from alf_lite.optimizers.gradient_average import GradientAverage
from alf_lite.optimizers.optimizers import SGD, Adam
from alf_lite.tensor_specs import BoundedTensorSpec
from alf_lite.utils import losses, summary
from alf_lite.utils.ranks import ranks
from tests.rank_processes import on_ranks
from tests.reliability.trainer_process import Launcher
from tests.replayed_steps import BOX, CHOICE, LAST, OBSERVATION, batch_of, windows

pytestmark = pytest.mark.ci

UNIT = BoundedTensorSpec((2,), torch.float32, -1.0, 1.0)
NUM_ROWS = 12


def on_policy(cls, **kwargs) -> tuple[RLAlgorithm, TrainingBatch]:
    torch.manual_seed(3)
    algorithm = cls(OBSERVATION, CHOICE, optimizer=optimizer(), **kwargs)
    steps = windows(CHOICE, length=5, batch_size=NUM_ROWS)
    with torch.no_grad():
        policy, _ = algorithm._policy(steps.observation.flatten(0, 1))
        policy = nest.map_structure(lambda t: t.unflatten(0, (NUM_ROWS, 5)), policy)
        info = ActorCriticInfo(steps.prev_action, policy if cls is PPOAlgorithm else ())
        valid = steps.step_type != LAST
        valid[:, -1] = False
        batch = algorithm.preprocess(Experience(steps, (), info), valid, BatchInfo())
    return algorithm, batch


def ppo(**kwargs) -> tuple[RLAlgorithm, TrainingBatch]:
    return on_policy(PPOAlgorithm, **kwargs)


def ppo_of_single_steps() -> tuple[RLAlgorithm, TrainingBatch]:
    algorithm, batch = ppo()
    return algorithm, cut_sequences(batch, 4, 1)


def a2c(**kwargs) -> tuple[RLAlgorithm, TrainingBatch]:
    return on_policy(ActorCriticAlgorithm, **kwargs)


def dqn_of_two_steps() -> tuple[RLAlgorithm, TrainingBatch]:
    """By its quick loss; most episodes end within the windows."""
    torch.manual_seed(3)
    algorithm = DqnAlgorithm(OBSERVATION, CHOICE, optimizer=optimizer(), n_step=2)
    steps = windows(CHOICE, 3, NUM_ROWS)
    steps.step_type[: NUM_ROWS // 2 + 2, 1] = LAST
    batch = batch_of(algorithm, steps)
    assert len(batch.inputs.step_type) < len(batch.valid)
    return algorithm, batch


def off_policy(cls, action_spec, **kwargs) -> tuple[RLAlgorithm, TrainingBatch]:
    torch.manual_seed(3)
    algorithm = cls(OBSERVATION, action_spec, optimizer=optimizer(), **kwargs)
    batch = batch_of(algorithm, windows(action_spec, 3, NUM_ROWS))
    weights = BatchInfo(importance_weights=torch.linspace(0.2, 1.0, NUM_ROWS))
    return algorithm, batch._replace(batch_info=weights)


CASES = {
    "ppo": ppo,
    "ppo of single steps": ppo_of_single_steps,
    "ppo that stops": functools.partial(ppo, target_kl=1e-4),
    "ppo with a rate by KL": functools.partial(ppo, desired_kl=1e-3),
    "a2c": a2c,
    "a2c in a trust region": functools.partial(
        a2c, max_policy_kl=1e-4, normalize_advantages=True
    ),
    "dqn": functools.partial(off_policy, DqnAlgorithm, CHOICE),
    "dqn of two steps": dqn_of_two_steps,
    "ddpg": functools.partial(off_policy, DdpgAlgorithm, UNIT),
    "td3_bc": functools.partial(off_policy, Td3BcAlgorithm, UNIT, target_noise_std=0.0),
    "trac_sac": functools.partial(
        off_policy, TracSacAlgorithm, CHOICE, max_policy_kl=1e-4
    ),
}


def optimizer() -> Adam:
    # With the usual ε, gradients that are 0 but for rounding move parameters.
    return Adam(lr=0.01, gradient_clipping=0.1, eps=1e-3)


def updated_in_passes(mini_batch_size: int | None) -> list[np.ndarray]:
    """The parameters after passes over this rank's part, as a run makes them."""
    algorithm, batch = ppo_of_single_steps()
    size = len(batch.valid) // ranks.size
    part = nest.narrow(batch, ranks.index * size, (ranks.index + 1) * size)
    config = TrainerConfig(mini_batch_length=1, mini_batch_size=mini_batch_size)
    algorithm._config = config.declared_for(PPOAlgorithm)
    prepare = functools.partial(with_batch_statistics, algorithm)
    before = ranks.collectives
    mini_batches = passes(part, 3, mini_batch_size, prepare)
    loop = UpdateLoop(algorithm, algorithm._config)
    number = 3 * num_mini_batches(size, mini_batch_size)
    loop.run(map(Update, mini_batches), number)
    parameters = [p.detach().numpy().copy() for p in algorithm.parameters()]
    return [*parameters, np.array([loop.num_updates, ranks.collectives - before])]


def normalized_batches() -> list[np.ndarray]:
    """This rank's columns of three batches, normalized together."""
    generator = torch.Generator().manual_seed(5)
    batches = []
    for size in (8, 6, 4):
        x = torch.randn(2, size, generator=generator) + 3.0
        valid = torch.rand(2, size, generator=generator) > 0.3
        columns = slice(
            *(size * k // ranks.size for k in (ranks.index, ranks.index + 1))
        )
        batches.append((x[:, columns], valid[:, columns]))
    return [part.numpy() for part in losses.normalize_each(batches)]


def updated(case: str, **settings) -> list[np.ndarray]:
    """The parameters after some updates, of this rank's part of the batch."""
    algorithm, batch = CASES[case]()
    config = TrainerConfig(mini_batch_length=2, **settings)
    algorithm._config = config.declared_for(type(algorithm))
    if not algorithm.on_policy:
        mini_batch = batch  # time-major
    else:
        mini_batch = time_major(batch)
    rows = torch.arange(mini_batch.valid.shape[1])
    part = list(parts_of(mini_batch, ranks.size))[ranks.index]
    assert len(rows) >= ranks.size
    loop = UpdateLoop(algorithm, algorithm._config)
    loop.run(map(Update, [part] * 4), 4)
    parameters = [p.detach().numpy().copy() for p in algorithm.parameters()]
    return [*parameters, np.array(loop.num_updates)]


def updated_cases(cases: list[str]) -> dict[str, list[np.ndarray]]:
    return {case: updated(case) for case in cases}


def updated_beside_offline_data() -> list[np.ndarray]:
    """The parameters after updates by windows of one's own and offline ones."""
    algorithm, batch = CASES["dqn"]()
    config = TrainerConfig(mini_batch_length=2)
    algorithm._config = config.declared_for(DqnAlgorithm)
    batch.valid[0, :5] = False  # so that ranks have numbers of their own
    part = list(parts_of(batch, ranks.size))[ranks.index]
    is_own = torch.arange(part.valid.shape[1]) % 3 < 2
    own = nest.map_structure(lambda t: _columns(t, is_own), part)
    offline = nest.map_structure(lambda t: _columns(t, ~is_own), part)
    loop = UpdateLoop(algorithm, algorithm._config)
    loop.run([Update(own, offline)] * 2, 2)
    return [p.detach().numpy().copy() for p in algorithm.parameters()]


def _columns(leaf: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Of [B] or [T, B, ...]."""
    return leaf[columns] if leaf.ndim == 1 else leaf[:, columns]


def updated_on_rollout() -> list[np.ndarray]:
    """The parameters after an update through the graph of this rank's unroll."""
    algorithm, batch = a2c()
    config = TrainerConfig(mini_batch_length=2)
    algorithm._config = config.declared_for(ActorCriticAlgorithm)
    part = list(parts_of(time_major(batch), ranks.size))[ranks.index]
    observation = part.inputs.observation.flatten(0, 1)
    value = algorithm._value_network(observation)[0].view(part.valid.shape)
    algorithm.calc_loss = LossInfo  # what the unroll has stored is the loss
    loop = UpdateLoop(algorithm, algorithm._config)
    loop.run_on_rollout(part._replace(rollout_info=(value - 1).square()))
    num_valid = part.valid.sum().numpy()
    return [*(p.detach().numpy().copy() for p in algorithm.parameters()), num_valid]


def logged_numbers() -> dict[str, Any]:
    """What is written of an update with this rank's part of the batch."""
    found: dict[str, Any] = {}
    for case in ("a2c", "dqn", "ddpg"):
        algorithm, batch = CASES[case]()
        config = TrainerConfig(mini_batch_length=2)
        algorithm._config = config.declared_for(type(algorithm))
        if algorithm.on_policy:
            batch = time_major(batch)
        part = list(parts_of(batch, ranks.size))[ranks.index]
        loop = UpdateLoop(algorithm, algorithm._config)
        numbers, counts = {}, []
        with (
            tempfile.TemporaryDirectory() as folder,
            mock.patch.object(summary, "scalar", numbers.__setitem__),
            # One rank writes, as in a run.
            summary.writer_to(folder) if ranks.is_first else summary.disabled(),
        ):
            for is_due in (True, False):
                before = ranks.collectives
                with summary.record_if(is_due):
                    loop.run([Update(part)], 1)
                counts.append(ranks.collectives - before)
        # A ratio of one rank's own sums has another mean than that of all.
        left_out = ("optimizer/", "explained_variance")
        numbers = {
            name: float(value)
            for name, value in numbers.items()
            if not any(part in name for part in left_out)
        }
        found[case] = {"numbers": numbers, "collectives": counts}
    return found


def all_on_two_ranks() -> dict[str, Any]:
    return {
        "cases": updated_cases([*CASES]),
        "passes": updated_in_passes(None),
        "mini-batches": updated_in_passes(8),
        "offline": updated_beside_offline_data(),
        "rollout": updated_on_rollout(),
        "normalized": normalized_batches(),
        "by hand": gradients_by_hand(),
        "divergence": sac_and_divergence(),
        "logged": logged_numbers(),
    }


@pytest.fixture(scope="module")
def two_ranks(_launcher: Launcher) -> list[dict[str, Any]]:
    """All that is asked of two ranks: processes take time to start."""
    return on_ranks(_launcher, all_on_two_ranks, 2)


def test_two_ranks_with_parts_of_a_batch_update_as_one_with_all_of_it(two_ranks):
    check_cases([of_rank["cases"] for of_rank in two_ranks])


@pytest.mark.slow
def test_four_ranks_with_parts_of_a_batch_update_as_one_with_all_of_it(launcher):
    check_cases(on_ranks(launcher, updated_cases, 4, ["ppo", "dqn"]))


def test_passes_on_ranks_meet_once_for_the_statistics_of_all_mini_batches(two_ranks):
    *expected, _ = updated_in_passes(None)
    for of_rank in two_ranks:
        *found, counts = of_rank["passes"]
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-6)
        assert counts.tolist() == [3, 3 + 1]  # the mini-batch stays the same
        num_updates, num_collectives = of_rank["mini-batches"][-1]
        assert num_updates == 9
        assert num_collectives == num_updates + 3


def test_an_update_through_unrolls_of_ranks_is_that_of_one_with_all_of_them(two_ranks):
    *expected, num_valid = updated_on_rollout()
    counts = [of_rank["rollout"][-1] for of_rank in two_ranks]
    assert sum(counts) == num_valid
    assert counts[0] != counts[1]  # so that the mean of the ranks' means is another
    for of_rank in two_ranks:
        for a, b in zip(of_rank["rollout"][:-1], expected, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-6)


def test_every_window_counts_alike_on_ranks_whichever_source_it_is_of(two_ranks):
    expected = updated_beside_offline_data()
    for of_rank in two_ranks:
        for a, b in zip(of_rank["offline"], expected, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-6)


def test_batches_are_normalized_by_those_of_all_ranks(two_ranks):
    together = zip(*(of_rank["normalized"] for of_rank in two_ranks), strict=True)
    for parts, whole in zip(together, normalized_batches(), strict=True):
        found = np.concatenate(parts, axis=1)
        np.testing.assert_allclose(found, whole, atol=1e-6)
        assert np.abs(whole).max() > 1


def check_cases(together: list[dict[str, list[np.ndarray]]]) -> None:
    alone = updated_cases([*together[0]])
    for case, expected in alone.items():
        start = [p.detach().numpy() for p in CASES[case]()[0].parameters()]
        moved = max(np.abs(a - b).max() for a, b in zip(start, expected, strict=False))
        assert moved > 1e-4, (case, moved)
        for of_rank in together:
            for found, wanted in zip(of_rank[case], expected, strict=True):
                np.testing.assert_allclose(found, wanted, atol=1e-6, err_msg=case)


class Line(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(()))
        self.unused = nn.Parameter(torch.zeros(2))
        self.only_on_the_first = nn.Parameter(torch.zeros(3))


def gradients_by_hand() -> list[float]:
    line = Line()
    sgd = SGD(lr=0.01)
    sgd.setup(list(line.named_parameters()))
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])[ranks.index]
    loss = (line.w * x - x).square().mean()
    if ranks.is_first:
        loss = loss + line.only_on_the_first.sum()
    loss.backward()
    own = line.w.grad.item()
    mean = GradientAverage(list(line.parameters()))(loss, len(x)).item()
    assert line.unused.grad is None
    assert line.only_on_the_first.grad.tolist() == [0.5] * 3
    averaged = line.w.grad.item()
    sgd.step()
    return [own, averaged, line.w.item(), mean]


def test_what_is_written_of_an_update_is_the_mean_over_all_ranks(two_ranks):
    alone = logged_numbers()
    for case, of_first in two_ranks[0]["logged"].items():
        expected = alone[case]["numbers"]
        assert len(expected) > 2
        assert of_first["numbers"] == pytest.approx(expected, rel=1e-4, abs=1e-6), case
        with_summary, without = of_first["collectives"]
        assert with_summary == without + 1
        assert two_ranks[1]["logged"][case]["collectives"] == [with_summary, without]


def test_gradients_by_hand(two_ranks):
    first, second = (of_rank["by hand"] for of_rank in two_ranks)
    assert (first[0], second[0]) == (-5.0, -25.0)
    for of_rank in (first, second):
        assert of_rank[1] == -15.0
        assert of_rank[2] == pytest.approx(0.15)
        assert of_rank[3] == 7.5  # the mean of 1, 4, 9 and 16


def sac_and_divergence() -> tuple[list[np.ndarray], str]:
    """Unequal batches with actions of one's own; then one rank has a bad step."""
    algorithm, batch = off_policy(
        SacAlgorithm,
        UNIT,
        critic_network_ctor=functools.partial(
            CriticNetwork, joint_fc_layer_params=(8,)
        ),
    )
    columns = [slice(0, 3), slice(3, 12)][ranks.index]
    parts = list(parts_of(batch, NUM_ROWS))[columns]
    part = nest.map_structure(
        lambda *leaves: torch.cat(leaves, min(1, leaves[0].ndim - 1)), *parts
    )
    algorithm._config = TrainerConfig(mini_batch_length=2).declared_for(SacAlgorithm)
    loop = UpdateLoop(algorithm, algorithm._config)
    torch.manual_seed(ranks.index)
    loop.run(map(Update, [part] * 3), 3)
    parameters = [p.detach().numpy().copy() for p in algorithm.parameters()]
    if ranks.index == 1:
        reward = part.rollout_info
        nest.map_structure(
            lambda t: t.fill_(torch.nan) if t.is_floating_point() else t, reward
        )
    with pytest.raises(DivergedError) as error:
        loop.run([Update(part)], 1)
    after = [p.detach().numpy() for p in algorithm.parameters()]
    for a, b in zip(parameters, after, strict=True):
        np.testing.assert_array_equal(a, b)
    return parameters, str(error.value)


def test_all_optimizers_stay_equal_and_a_bad_step_of_one_rank_stops_all(two_ranks):
    (first, said), (second, also_said) = (r["divergence"] for r in two_ranks)
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)
    assert said == also_said
    assert said.startswith("Rank 1: SacAlgorithm: the loss is nan")


@pytest.mark.parametrize("case", [c for c in CASES if c not in ("td3_bc",)])
def test_a_batch_in_parts_gives_the_update_of_the_whole(case):
    if case == "a2c in a trust region":
        with pytest.raises(ConfigError, match="gradient_accumulation = 1"):
            updated(case, gradient_accumulation=5)
        return
    whole, in_parts = updated(case), updated(case, gradient_accumulation=5)
    # What moves least of TRAC's is divided by a root of almost nothing.
    atol = 5e-6 if case == "trac_sac" else 1e-6
    for found, wanted in zip(in_parts, whole, strict=True):
        np.testing.assert_allclose(found, wanted, atol=atol)


def test_batch_normalization_needs_whole_batches():
    algorithm, _ = off_policy(
        SacAlgorithm,
        BOX,
        critic_network_ctor=functools.partial(CriticNetwork, batch_norm=True),
    )
    config = TrainerConfig(gradient_accumulation=2).declared_for(SacAlgorithm)
    with pytest.raises(ConfigError, match="BatchNorm"):
        UpdateLoop(algorithm, config)


def test_priorities_of_parts_are_those_of_the_whole_batch():
    algorithm, batch = off_policy(DqnAlgorithm, CHOICE)
    config = TrainerConfig(priority_replay=True, gradient_accumulation=5)
    algorithm._config = config.declared_for(DqnAlgorithm)
    found = []
    loop = UpdateLoop(algorithm, algorithm._config)
    whole = UpdateLoop(algorithm, TrainerConfig().declared_for(DqnAlgorithm))
    loss = whole._losses_of(Update(batch), looks=False)[0].loss_info
    loop.run(
        [Update(batch)], 1, update_priority=lambda info, p: found.append((info, p))
    )
    assert isinstance(loss, LossInfo)
    ((info, priority),) = found
    torch.testing.assert_close(priority, loss.priority)
    assert info is batch.batch_info
