from __future__ import annotations

import functools

import pytest
import torch

from alf_lite.algorithms.agent import Agent
from alf_lite.algorithms.entropy_target import EntropyTarget
from alf_lite.algorithms.ppg_algorithm import (
    AuxiliaryRows,
    PPGAlgorithm,
    UnrollMemory,
)
from alf_lite.algorithms.rnd_reward import RndReward
from alf_lite.config import TrainerConfig
from alf_lite.distributions.discrete import Categorical
from alf_lite.environments.creation import create_environment
from alf_lite.errors import ConfigError
from alf_lite.networks.actor_networks import ActorDistributionNetwork
from alf_lite.networks.recurrent_networks import LSTMEncodingNetwork
from alf_lite.optimizers.optimizers import Adam
from alf_lite.policies.evaluator import evaluate
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec
from alf_lite.testing.probe_environments import ObservationPolicyEnv
from alf_lite.utils.ranks import ranks

OBSERVATION = TensorSpec((2,))
ACTION = BoundedTensorSpec((), torch.int64, 0, 1)


def build(num_iterations=40, parts=None, **arguments):
    def make():
        return create_environment(
            env_ctor=ObservationPolicyEnv,
            num_parallel_environments=8,
            vectorization_mode="sync",
        )

    config = TrainerConfig(
        num_iterations=num_iterations,
        random_seed=0,
        unroll_length=8,
        epochs=2,
        mini_batch_size=32,
        mini_batch_length=1,
    )
    ctor = functools.partial(
        PPGAlgorithm,
        auxiliary_period=4,
        auxiliary_epochs=3,
        auxiliary_mini_batch_size=64,
        **arguments,
    )
    if parts is not None:
        ctor = functools.partial(Agent, rl_algorithm_ctor=ctor, **parts)
    return ctor(env=make(), config=config, optimizer=Adam(lr=3e-3)), make


def test_the_auxiliary_loss_is_that_of_the_paper():
    torch.manual_seed(0)
    algorithm = PPGAlgorithm(OBSERVATION, ACTION, clone_weight=0.7)
    observation = torch.randn(5, 2)
    valid = torch.tensor([True, True, False, True, True])
    target = torch.tensor([1.0, 2.0, 99.0, -1.0, 0.5])
    old = Categorical(torch.randn(5, 2))
    with torch.no_grad():
        distribution, features, _ = algorithm._policy.with_features(observation)
        prediction = algorithm._auxiliary_head(features)[:, 0]
        value = algorithm._value(observation)[0]
    expected, kls = 0.0, 0.0
    for i in (0, 1, 3, 4):
        kl = 0.0
        p, q = old.logits[i].softmax(-1), distribution.logits[i].softmax(-1)
        for a in range(2):
            kl += (p[a] * (p[a] / q[a]).log()).item()
        expected += 0.5 * (prediction[i] - target[i]).item() ** 2 / 4
        expected += (0.7 * kl + 0.5 * (value[i] - target[i]).item() ** 2) / 4
        kls += kl / 4
    rows = AuxiliaryRows(observation, target, valid)
    loss_info = algorithm.auxiliary_loss(rows, old)
    assert loss_info.loss.item() == pytest.approx(expected, rel=1e-5)
    assert loss_info.extra.clone_kl.item() == pytest.approx(kls, rel=1e-5)


def test_a_phase_moves_the_policy_alike_whatever_the_scale_of_the_rewards():
    logits = []
    for scale, offset in ((1.0, 0.0), (1000.0, 5e4)):
        algorithm, _ = build()
        observation = torch.rand((256, 1), generator=torch.manual_seed(0))
        target = scale * observation[:, 0].square() + offset
        rows = AuxiliaryRows(observation, target, torch.ones(256, dtype=torch.bool))
        torch.manual_seed(0)
        algorithm.auxiliary_phase(rows)
        with torch.no_grad():
            logits.append(algorithm._policy(observation)[0].logits)
    torch.testing.assert_close(logits[0], logits[1], rtol=0, atol=1e-3)


def test_the_phase_comes_after_so_many_iterations_and_keeps_the_policy():
    algorithm, _ = build(clone_weight=100.0)
    phases = []
    train = algorithm.auxiliary_phase

    @torch.no_grad()
    def look(rows):
        distribution, features, _ = algorithm._policy.with_features(rows.observation)
        prediction = algorithm._auxiliary_head(features)[:, 0]
        error = (prediction - rows.value_target)[rows.valid].square().mean()
        return distribution.logits.softmax(-1), error

    def auxiliary_phase(rows):
        # Values that there is something to learn of, ±1
        rows = rows._replace(value_target=rows.observation[:, 0])
        before, old_error = look(rows)
        train(rows)
        after, error = look(rows)
        phases.append((rows, (before - after).abs().max(), old_error, error))

    algorithm.auxiliary_phase = auxiliary_phase
    for i in range(8):
        algorithm.train_iter()
        assert len(phases) == (i + 1) // 4
    rows, moved, old_error, error = phases[0]
    assert rows.valid.shape == (4 * 8 * 8,)
    assert moved < 0.02
    assert error < old_error


def test_the_phase_sees_every_unroll_in_the_mirror_too():
    algorithm, _ = build(symmetries=[lambda seen, action: (-seen, 1 - action)])
    phases = []
    algorithm.auxiliary_phase = phases.append
    for _ in range(4):
        algorithm.train_iter()
    [rows] = phases
    seen, mirror = rows.observation.view(4, 2, -1).unbind(1)  # of each unroll
    assert seen.shape == (4, 8 * 8)
    torch.testing.assert_close(mirror, -seen)
    for field in (rows.value_target, rows.valid):
        assert torch.equal(*field.view(4, 2, -1).unbind(1))


def test_the_stored_steps_are_part_of_a_checkpoint():
    algorithm, _ = build()
    for _ in range(3):
        algorithm.train_iter()
    other, _ = build()
    other.load_state_dict(algorithm.state_dict())
    kept, rows = other._memory.rows(), algorithm._memory.rows()
    assert kept.valid.shape == (3 * 64,)
    for mine, theirs in zip(kept, rows, strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.ci
def test_learns_what_the_observation_asks_for():
    algorithm, make = build()
    for _ in range(30):
        algorithm.train_iter()
    result = evaluate(algorithm, make(), num_episodes=40)
    assert result.mean > 0.9


@pytest.mark.ci
def test_as_a_part_of_nothing_else_it_is_itself_bit_for_bit():
    runs = []
    for parts in (None, {}):
        algorithm, _ = build(parts=parts)
        for _ in range(9):
            algorithm.train_iter()
        runs.append(algorithm.state_dict())
    plain, agent = runs
    assert plain["_memory._num_unrolls"] == 1
    for name, value in plain.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(agent.pop(f"parts.rl.{name}"), value), name


@pytest.mark.ci
@pytest.mark.parametrize(
    "own_optimizer", [pytest.param(True, marks=pytest.mark.slow), False]
)
def test_as_a_part_its_phases_train_nothing_else(own_optimizer):
    rnd = functools.partial(RndReward, optimizer=Adam() if own_optimizer else None)
    agent, make = build(
        parts={
            "intrinsic_rewards": {"rnd": rnd},
            "intrinsic_reward_weights": 0.01,
            "intrinsic_gamma": 0.9,
            "entropy_target_ctor": EntropyTarget,
        }
    )
    ppg, moved = agent.rl_algorithm, []
    train = ppg.auxiliary_phase

    def auxiliary_phase(rows):
        assert rows.value_target.shape == (4 * 8 * 8, 2)
        before = {n: p.clone() for n, p in agent.named_parameters()}
        train(rows)
        moved.append(
            {n for n, p in agent.named_parameters() if not torch.equal(p, before[n])}
        )

    ppg.auxiliary_phase = auxiliary_phase
    for _ in range(30):
        agent.train_iter()
    own = {f"parts.rl.{n}" for n, p in ppg.named_parameters() if p.requires_grad}
    assert moved == [own] * 7
    assert evaluate(agent, make(), num_episodes=40).mean > 0.9


def test_it_must_be_told_of_how_many_environments():
    config = TrainerConfig(num_iterations=1)
    algorithm = PPGAlgorithm(OBSERVATION, ACTION, config=config)
    with pytest.raises(ConfigError, match="call set_num_environments"):
        algorithm.after_train_iter((), ())


def test_memory_of_nests_is_read_as_it_was_written():
    spec = {"a": TensorSpec((2,)), "b": TensorSpec((), torch.int64)}
    memory = UnrollMemory(spec, TensorSpec((3,)), num_unrolls=2, num_rows=4)
    for i in range(2):
        assert not memory.is_full
        memory.add(
            AuxiliaryRows(
                {"a": torch.full((4, 2), float(i)), "b": torch.full((4,), i)},
                torch.full((4, 3), float(i)),
                torch.ones(4, dtype=torch.bool),
            )
        )
    assert memory.is_full
    assert memory.rows().observation["b"].tolist() == [0] * 4 + [1] * 4
    memory.clear()
    assert memory.rows().valid.shape == (0,)


def test_what_has_no_features_for_the_head_is_refused():
    recurrent = functools.partial(
        ActorDistributionNetwork, encoding_network_ctor=LSTMEncodingNetwork
    )
    with pytest.raises(ConfigError, match="policy without memory"):
        PPGAlgorithm(OBSERVATION, ACTION, actor_network_ctor=recurrent)

    class Plain(torch.nn.Linear):
        def forward(self, x):
            return torch.distributions.Categorical(logits=super().forward(x))

    def plain(observation_spec, action_spec):
        return Plain(2, 2)

    with pytest.raises(ConfigError, match="with_features"):
        PPGAlgorithm(OBSERVATION, ACTION, actor_network_ctor=plain)
    with pytest.raises(ValueError, match="auxiliary_period"):
        PPGAlgorithm(OBSERVATION, ACTION, auxiliary_period=0)


def test_ranks_share_the_auxiliary_mini_batch(monkeypatch):
    monkeypatch.setattr(ranks, "size", 2)
    with pytest.raises(ConfigError, match=r"auxiliary_mini_batch_size is 33, .*Take 3"):
        PPGAlgorithm(OBSERVATION, ACTION, auxiliary_mini_batch_size=33)
    algorithm = PPGAlgorithm(OBSERVATION, ACTION, auxiliary_mini_batch_size=64)
    assert algorithm._auxiliary_mini_batch_size == 32
