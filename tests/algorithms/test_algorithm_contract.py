"""What holds for every algorithm of the table of losses, besides its loss."""

from __future__ import annotations

import copy
import functools
import inspect
import math

import pytest
import torch

from alf_lite import nest
from alf_lite.algorithms.agent import Agent
from alf_lite.algorithms.crossq_algorithm import CrossqAlgorithm
from alf_lite.algorithms.entropy_target import EntropyTarget, SGDEntropyTarget
from alf_lite.algorithms.gail_reward import GailReward
from alf_lite.algorithms.icm_reward import IcmReward
from alf_lite.algorithms.learning.batch_loss import LossFunction
from alf_lite.algorithms.learning.training_batches import time_major
from alf_lite.algorithms.learning.updates import update_with_gradient
from alf_lite.algorithms.ppg_algorithm import PPGAlgorithm
from alf_lite.algorithms.ppo_algorithm import PPOAlgorithm
from alf_lite.algorithms.predictive_representation import PredictiveRepresentation
from alf_lite.algorithms.rnd_reward import RndReward
from alf_lite.algorithms.taac_algorithm import TaacAlgorithm
from alf_lite.checkpoints.data import load_module_state
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import BatchInfo, Experience, StepType, TimeStep
from alf_lite.distributions import functions as distributions
from alf_lite.errors import CheckpointError, ConfigError
from alf_lite.optimizers.optimizers import Adam
from tests.algorithms.loss_contract import (
    ACTIONS,
    B,
    Case,
    Row,
    make_batch,
    make_steps,
    same_noise,
)
from tests.algorithms.loss_table import ROWS
from tests.replayed_steps import BOX, CHOICE, MIXED, OBSERVATION

CLIPS = "rho_clip", "c_clip"
by_row = pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
with_memory = pytest.mark.parametrize(
    "row",
    [row for row in ROWS.values() if True in row.memory],
    ids=[name for name, row in ROWS.items() if True in row.memory],
)


def usual(row: Row, memory: bool | None = None) -> Case:
    """One of its cases: the richest kind of action, without a mask."""
    memory = row.memory[0] if memory is None else memory
    return Case(row.actions[-1], False, 1, memory, row.n[0])


def draws(row: Row) -> bool:
    """Whether its policy is one that is sampled from."""
    network = row.networks.get("actor_network_ctor")
    return network not in (None, "deterministic") and row.algorithm is not TaacAlgorithm


def first_step(case: Case) -> TimeStep:
    return nest.map_structure(lambda x: x[:, 0], make_steps(case))


def trainable(row: Row, case: Case, **more):
    return row.build(case, optimizer=Adam(lr=1e-3), **more)


def update(row: Row, algorithm, case: Case) -> None:
    _, batch = make_batch(row, algorithm, case)
    torch.manual_seed(3)
    loss_info, info = LossFunction(algorithm)(batch)
    update_with_gradient(algorithm, loss_info)
    algorithm.after_update(batch.inputs, info)


@by_row
def test_the_same_seed_gives_the_same_parameters(row):
    case = usual(row)
    one, other = trainable(row, case), trainable(row, case)
    for algorithm in (one, other):
        before = [p.clone() for p in algorithm.parameters()]
        for _ in range(2):
            update(row, algorithm, case)
        assert not all(map(torch.equal, before, algorithm.parameters()))
    for name, parameter in one.named_parameters():
        assert torch.equal(parameter, other.get_parameter(name)), name


@by_row
def test_what_acts_is_built_for_evaluation_and_acts_the_same(row):
    case = usual(row)
    trained = row.build(case)
    acting = row.build(case, is_eval=True)
    modules = {name.split(".")[0] for name, _ in acting.named_parameters()}
    expected = {"_q_network" if "q_network_ctor" in row.networks else "_policy"}
    if row.algorithm is TaacAlgorithm:
        expected |= {"_critics", "_temperatures"}  # they decide what is repeated
    assert modules == expected
    state = trained.state_dict()
    acting.load_state_dict({name: state[name] for name in acting.state_dict()})
    outputs = [
        algorithm.predict_step(
            first_step(case), algorithm.get_initial_predict_state(B)
        ).output
        for algorithm in (trained, acting)
    ]
    nest.map_structure(torch.testing.assert_close, *outputs)


@pytest.mark.parametrize(
    "row", [row for row in ROWS.values() if draws(row)], ids=lambda r: r.loss.__name__
)
def test_a_rollout_samples_and_prediction_is_greedy(row):
    case = usual(row)
    specs = nest.flatten(ACTIONS[case.action])
    steps = nest.map_structure(
        lambda x: x[:1].expand(400, *x.shape[1:]), first_step(case)
    )

    def act(algorithm, of_rollout=False):
        if of_rollout:
            state = algorithm.get_initial_rollout_state(400)
            return algorithm.rollout_step(steps, state).output
        state = algorithm.get_initial_predict_state(400)
        return algorithm.predict_step(steps, state).output

    algorithm = row.build(case)
    policy, _ = algorithm._policy(steps.observation)
    expected = distributions.mode(policy)
    nest.map_structure(torch.testing.assert_close, act(algorithm), expected)
    config = TrainerConfig(num_iterations=1, epsilon_greedy=1.0)
    for drawn in (act(algorithm, of_rollout=True), act(row.build(case, config=config))):
        for leaf, spec in zip(nest.flatten(drawn), specs, strict=True):
            assert (leaf != leaf[0]).any(), spec
            if row.networks["actor_network_ctor"] == "squashed":
                assert (leaf >= torch.tensor(spec.minimum)).all()
                assert (leaf <= torch.tensor(spec.maximum)).all()


@pytest.mark.parametrize("name", ["IQL", "AWAC", "BC"])
@pytest.mark.parametrize("network", ["normal", "squashed"])
def test_actions_on_their_bounds_have_a_finite_likelihood_and_gradient(name, network):
    row = ROWS[name]
    row = row._replace(networks={**row.networks, "actor_network_ctor": network})
    case = usual(row)._replace(action="box")
    algorithm = row.build(case, action_margin=1e-3)
    steps = make_steps(case)
    steps.prev_action[:] = torch.tensor(ACTIONS["box"].maximum)
    experience, valid = Experience(time_step=steps), steps.step_type != StepType.LAST
    batch = time_major(algorithm.preprocess(experience, valid, BatchInfo()))
    loss_info, info = LossFunction(algorithm)(batch)
    log_prob = info.imitation_loss if name == "BC" else info.log_prob
    assert (log_prob.abs() < 1000).all()
    loss_info.loss.backward()
    for parameter in algorithm.parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all()


@with_memory
def test_a_rollout_keeps_the_states_of_all_networks(row):
    case = usual(row, memory=True)
    algorithm = row.build(case)
    state = algorithm.get_initial_rollout_state(B)
    assert not nest.is_empty(state)
    assert not algorithm.is_temporally_independent
    new_state = algorithm.rollout_step(first_step(case), state).state
    nest.assert_same_structure(new_state, state)
    for path, leaf in nest.flatten_with_path(new_state):
        assert "noise" in path or leaf.abs().sum() > 0, path


@by_row
def test_every_network_may_have_an_optimizer_of_its_own(row):
    names = [
        name
        for name in inspect.signature(row.algorithm).parameters
        if name.endswith("_optimizer")
    ]
    learnt = {"cql_threshold": 0.5} if "cql_alpha_optimizer" in names else {}
    for chosen in [names, *([name] for name in names)]:
        own = {name: Adam(lr=1e-2) for name in chosen}
        algorithm = trainable(row, usual(row), **own, **learnt)
        rates = [optimizer.learning_rate for _, optimizer in algorithm.optimizers()]
        assert rates.count(1e-2) == len(chosen)
        if chosen != names:  # what is left is trained by the optimizer of all
            assert set(rates) == {1e-2, 1e-3}


@by_row
def test_the_targets_follow_with_every_update(row):
    case = usual(row)
    algorithm = row.build(case)
    modules = dict(algorithm.named_modules())
    pairs = {
        "_critics.target": "_critics.online",
        "_target_policy": "_policy",
        "_target_q_network": "_q_network",
    }
    targets = [name for name in pairs if modules.get(name) is not None]
    if not targets:
        pytest.skip("it has none")
    algorithm = trainable(row, case, target_update_tau=0.25, target_update_period=2)
    for is_due in (False, True):
        before = copy.deepcopy(algorithm)
        update(row, algorithm, case)
        for name in targets:
            moved = algorithm.get_submodule(name).parameters()
            sources = algorithm.get_submodule(pairs[name]).parameters()
            old = before.get_submodule(name).parameters()
            for new, source, was in zip(moved, sources, old, strict=True):
                assert not new.requires_grad
                expected = was + 0.25 * (source - was) if is_due else was
                torch.testing.assert_close(new, expected)


REFUSED = [
    *[(name, "gamma", 1.1) for name, row in ROWS.items() if "gamma" in row.options],
    *[(name, "n_step", 0) for name, row in ROWS.items() if row.n != (1,)],
    *[(name, "action_margin", -0.1) for name in ("IQL", "AWAC", "BC")],
    *[(name, "initial_alpha", 0.0) for name in ("SAC", "CQL")],
    *[(name, "cql_alpha", -1.0) for name in ("CQL", "CQL-DQN")],
    *[(name, "cql_temperature", 0.0) for name in ("CQL", "CQL-DQN")],
    ("CQL", "backup", "mean"),
    ("CQL", "num_sampled_actions", 0),
    ("DDPG", "actor_update_period", 0),
    ("TD3", "target_noise_std", -0.1),
    ("TD3", "target_noise_clip", -1.0),
    ("TD3+BC", "bc_alpha", -0.1),
    ("TD3+BC", "bc_alpha", math.inf),
    ("IQL", "expectile", 1.0),
    ("IQL", "beta", 0.0),
    ("IQL", "max_weight", -1.0),
    ("AWAC", "temperature", 0.0),
    ("AWAC", "max_weight", -1.0),
    ("AWAC", "num_action_samples", 0),
    ("DQN", "rollout_epsilon_greedy", 1.5),
    ("Munchausen DQN", "munchausen_alpha", 1.5),
    ("Munchausen DQN", "munchausen_temperature", 0.0),
    ("Munchausen DQN", "munchausen_clipping", 0.0),
    *[(name, "td_lambda", -0.1) for name in ("A2C", "PPO", "IMPALA")],
    *[(name, option, -1.0) for name in ("PPO", "IMPALA") for option in CLIPS],
    ("PPO", "clip_epsilon", 0.0),
    ("PPO", "value_clip", -1.0),
    ("PPO", "target_kl", 0.0),
    ("PPO", "desired_kl", -1.0),
    ("PPO", "log_prob_clip", -1.0),
    ("PPO", "advantage_clip", -1.0),
    ("PPO", "max_policy_kl", -1.0),
    ("PPO", "off_policy_correction", "impala"),
]


@pytest.mark.parametrize(("name", "option", "value"), REFUSED)
def test_a_coefficient_out_of_range_is_refused_by_its_name(name, option, value):
    row = ROWS[name]
    words = option.removeprefix("rollout_").replace("epsilon_greedy", "epsilon")
    with pytest.raises(ValueError, match=words):
        row.build(usual(row), **{option: value})


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        *[(name, "action_margin", 0.1) for name in ("IQL", "AWAC", "BC")],
        ("AWAC", "num_action_samples", 4),
        ("CQL", "num_sampled_actions", 4),
        ("CQL", "importance_weighted", False),
    ],
)
def test_an_option_of_continuous_actions_is_refused_without_them(name, option, value):
    case = usual(ROWS[name])._replace(action="choice")
    with pytest.raises(ConfigError, match=f"{option} has no effect: .*continuous"):
        ROWS[name].build(case, **{option: value})


@pytest.mark.parametrize("name", ["CQL", "CQL-DQN", "TD3+BC"])
@pytest.mark.parametrize("memory", [False, True])
def test_only_rows_of_offline_buffers_are_treated_so_if_asked_for(name, memory):
    row = ROWS[name]
    case = usual(row, memory)

    def loss(batch_info, **options):
        algorithm = row.build(case, **options)
        _, batch = make_batch(row, algorithm, case, batch_info)
        with same_noise():
            return algorithm.calc_loss(LossFunction(algorithm).info(batch)[0]).loss

    source = torch.tensor([1, 0, 2, 1, 0])
    found = loss(BatchInfo(source=source), offline_rows_only=True)
    everywhere = loss(BatchInfo())
    nowhere = loss(BatchInfo(), offline_rows_only=True)  # it does not say: its own
    assert (everywhere != nowhere).all()
    torch.testing.assert_close(found, torch.where(source > 0, everywhere, nowhere))


# The state


def of_agent() -> Agent:
    return Agent(
        OBSERVATION,
        CHOICE,
        rl_algorithm_ctor=PPOAlgorithm,
        intrinsic_rewards={"rnd": RndReward},
        optimizer=Adam(),
        entropy_target_ctor=EntropyTarget,
    )


STATES = {
    **{name: functools.partial(row.build, usual(row)) for name, row in ROWS.items()},
    **{
        kind.__name__: functools.partial(kind, OBSERVATION, action)
        for kind, action in (
            (CrossqAlgorithm, BOX),
            (PPGAlgorithm, CHOICE),
            (RndReward, CHOICE),
            (IcmReward, MIXED),
            (GailReward, BOX),
            (PredictiveRepresentation, CHOICE),
        )
    },
    "EntropyTarget": functools.partial(EntropyTarget, MIXED),
    "SGDEntropyTarget": functools.partial(SGDEntropyTarget, MIXED),
    "Agent": of_agent,
}
by_state = pytest.mark.parametrize("build", STATES.values(), ids=STATES)


@by_state
def test_the_state_is_saved_and_loaded(build):
    one, other = build(), build()
    for value in one.state_dict().values():
        value.copy_(3 * torch.rand(value.shape))
    load_module_state(other, one.state_dict(), "it")
    found, expected = other.state_dict(), one.state_dict()
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


@by_state
def test_a_state_with_a_damaged_leaf_is_refused_by_its_name(build):
    module = build()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    assert before
    for name, value in before.items():
        without = {k: v for k, v in before.items() if k != name}
        for damaged in (
            without,
            {**without, name: value[None]},
            {**without, name: value.to(torch.complex64)},
            {**before, f"{name}_too": value},
        ):
            with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
                load_module_state(module, damaged, "it")
    # EntropyTarget begins with NaN where it has seen nothing.
    for name, value in module.state_dict().items():
        torch.testing.assert_close(
            value, before[name], rtol=0.0, atol=0.0, equal_nan=True, msg=name
        )
