from __future__ import annotations

import dataclasses
import functools
import operator
from collections import Counter
from typing import ClassVar

import pytest
import torch

from alf_lite import nest
from alf_lite.algorithms.agent import Agent
from alf_lite.algorithms.dqn_algorithm import DqnAlgorithm
from alf_lite.algorithms.dynamic_action_repeat_agent import (
    DynamicActionRepeatAgent,
    as_decisions,
)
from alf_lite.algorithms.ppo_algorithm import PPOAlgorithm
from alf_lite.algorithms.rnd_reward import RndReward
from alf_lite.algorithms.sac_algorithm import SacAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import (
    AlgStep,
    BatchInfo,
    Experience,
    StepType,
    TimeStep,
)
from alf_lite.environments.creation import create_environment
from alf_lite.errors import ConfigError
from alf_lite.networks.actor_networks import SquashedActorNetwork
from alf_lite.networks.critic_networks import CriticNetwork
from alf_lite.networks.recurrent_networks import LSTMEncodingNetwork
from alf_lite.networks.value_networks import QNetwork
from alf_lite.optimizers.optimizers import Adam
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec
from alf_lite.testing.learning_contract import (
    GAMMA,
    Feature,
    OffPolicyLearningContract,
)

OBSERVATION = TensorSpec((3,))
BOX = BoundedTensorSpec((2,), torch.float32, -1.0, 1.0)
CHOICE = BoundedTensorSpec((), torch.int64, 0, 1)
FIRST, MID, LAST = StepType.FIRST, StepType.MID, StepType.LAST
K = 4
SHORT_RUN = TrainerConfig(
    num_iterations=20,
    mini_batch_length=K + 1,
    mini_batch_size=8,
    initial_collect_steps=10,
    random_seed=0,
)

SMALL_SAC = functools.partial(
    SacAlgorithm,
    actor_network_ctor=functools.partial(SquashedActorNetwork, fc_layer_params=(16,)),
    critic_network_ctor=functools.partial(CriticNetwork, joint_fc_layer_params=(16,)),
    optimizer=Adam(),
    gamma=0.9,
)


def agent(action_spec=BOX, ctor=SMALL_SAC, **kwargs) -> DynamicActionRepeatAgent:
    torch.manual_seed(0)
    return DynamicActionRepeatAgent(
        OBSERVATION, action_spec, rl_algorithm_ctor=ctor, max_repeats=K, **kwargs
    )


def windows(action_spec, num_windows: int = 600, reward_dims=()) -> TimeStep:
    """[B, K+1]: a third terminates at a random step, a third meets a time limit."""
    torch.manual_seed(1)
    shape = num_windows, K + 1
    step_type = torch.full(shape, MID, dtype=torch.int32)
    discount = torch.ones(shape)
    action = nest.map_structure(lambda spec: spec.sample(shape), action_spec)
    for b in range(num_windows):
        end = 1 + b % K
        if b % 3:
            step_type[b, end] = LAST
            step_type[b, end + 1 : end + 2] = FIRST
        if b % 3 == 1:
            discount[b, end] = 0.0
        for leaf in nest.flatten(action):
            for k in range(2, K + 1):
                if torch.rand(()) < 0.7 and step_type[b, k] != FIRST:
                    leaf[b, k] = leaf[b, k - 1]
    return TimeStep(
        step_type=step_type,
        reward=torch.randn(*shape, *reward_dims),
        discount=discount,
        observation=torch.randn(*shape, 3),
        prev_action=action,
        env_id=torch.zeros(shape, dtype=torch.int32),
    )


@pytest.mark.parametrize(
    ("spec", "dims"), [(BOX, ()), (CHOICE, (2,)), ({"a": BOX, "b": CHOICE}, ())]
)
def test_a_decision_has_the_rewards_and_the_discount_of_its_hold(spec, dims):
    gamma = 0.9
    steps = windows(spec, reward_dims=dims)
    decisions = as_decisions(steps, gamma)
    seen: dict[tuple[int, bool], Counter[int]] = {}
    for b in range(len(steps.reward)):
        rows = nest.map_structure(operator.itemgetter(b), steps.prev_action)
        actions = [nest.flatten(nest.map_structure(operator.itemgetter(k), rows))
                   for k in range(K + 1)]  # fmt: skip
        run = 1
        while (
            run < K
            and steps.step_type[b, run] != LAST
            and all(map(torch.equal, actions[run + 1], actions[1]))
        ):
            run += 1
        decision = nest.map_structure(operator.itemgetter(b), decisions)
        first, end = (
            nest.map_structure(operator.itemgetter(i), decision) for i in (0, 1)
        )
        wanted = int(end.prev_action["repeat"]) + 1
        m = min(wanted, run)
        is_over = steps.discount[b, run].item() == 0
        assert wanted <= (K if is_over else run)
        seen.setdefault((run, is_over), Counter())[wanted] += 1
        reward, product = torch.zeros(dims), 1.0
        for k in range(1, m + 1):
            reward = reward + product * steps.reward[b, k]
            product *= gamma * steps.discount[b, k].item()
        torch.testing.assert_close(end.reward, reward)
        assert gamma * end.discount.item() == pytest.approx(product, abs=1e-6)
        assert end.step_type == steps.step_type[b, m]
        assert torch.equal(end.observation, steps.observation[b, m])
        assert torch.equal(first.observation, steps.observation[b, 0])
        assert first.step_type == steps.step_type[b, 0]
        done = nest.flatten(end.prev_action["action"])
        assert all(map(torch.equal, done, actions[1]))
    # Every hold that the steps tell of comes up, and none other.
    for (run, is_over), counts in seen.items():
        if sum(counts.values()) > 40:
            assert set(counts) == set(range(1, (K if is_over else run) + 1))


class Decides(SacAlgorithm):
    """Holds for what the observation says; its action tells when it was asked."""

    def rollout_step(self, inputs, state):
        self.asked = inputs
        repeat = inputs.observation[:, 0].long()
        return AlgStep(
            output={"action": inputs.observation[:, 1:], "repeat": repeat}, state=state
        )

    training_only_modules = ()


def test_an_action_is_held_as_long_as_was_decided_but_not_into_another_episode():
    algorithm = agent(
        ctor=functools.partial(Decides, *SMALL_SAC.args, **SMALL_SAC.keywords)
    )
    step_types = [[FIRST, FIRST], [MID, MID], [MID, LAST], [MID, FIRST], [MID, MID]]
    repeats = [[2.0, 3.0], [9.0, 9.0], [9.0, 9.0], [0.0, 1.0], [1.0, 9.0]]
    state = algorithm.get_initial_rollout_state(2)
    got = []
    for t, (step_type, repeat) in enumerate(zip(step_types, repeats, strict=True)):
        observation = torch.tensor([[r, t, t + 0.5] for r in repeat])
        step_type = torch.tensor(step_type, dtype=torch.int32)
        zeros = algorithm.get_initial_rollout_state(2)
        state = nest.map_structure(
            lambda s, z, f=step_type == FIRST: torch.where(
                f.view(-1, *(1,) * (s.ndim - 1)), z, s
            ),
            state, zeros,
        )  # fmt: skip
        inputs = TimeStep(
            step_type, torch.zeros(2), torch.ones(2), observation, torch.zeros(2, 2)
        )
        step = algorithm.rollout_step(inputs, state)
        state = step.state
        got.append(step.output[:, 0].tolist())
        assert step.info == {"rl": ()}
    # Row 0 decides at 0 (three steps) and at 3 and 4; row 1 at 0, and anew at FIRST.
    assert got == [[0, 0], [0, 0], [0, 0], [3, 3], [4, 3]]


def test_random_actions_are_held_too_but_not_at_first():
    algorithm = agent()
    inputs = TimeStep(
        step_type=torch.full((4000,), MID, dtype=torch.int32),
        discount=torch.ones(4000),
        reward=torch.zeros(4000),
        observation=torch.zeros(4000, 3),
        prev_action=BOX.sample((4000,)),
    )
    action = algorithm.random_action(inputs)
    changed = (action != inputs.prev_action).any(1).float().mean().item()
    assert changed == pytest.approx(2 / (K + 1), abs=0.05)
    first = inputs._replace(step_type=torch.full((4000,), FIRST, dtype=torch.int32))
    assert (algorithm.random_action(first) != inputs.prev_action).any(1).all()


def test_it_trains_what_the_algorithm_would_train_on_decisions():
    algorithm = agent()
    steps = windows(BOX, 8)
    valid = steps.step_type != LAST
    torch.manual_seed(3)
    batch = algorithm.preprocess(Experience(steps), valid, BatchInfo())
    torch.manual_seed(3)
    decisions = as_decisions(steps, 0.9)
    inputs, info = algorithm._rl.preprocess_experience(decisions, (), BatchInfo())
    for got, expected in ((batch.inputs, inputs), (batch.rollout_info["rl"], info)):
        for x, y in zip(nest.flatten(got), nest.flatten(expected), strict=True):
            assert torch.equal(x, y)
    assert batch.valid.shape == (8, 2)


@pytest.mark.parametrize("optimizer", [Adam, None])
def test_its_networks_begin_anew(optimizer):
    ctor = functools.partial(SMALL_SAC, parameter_reset_period=6, optimizer=None)
    algorithm = DynamicActionRepeatAgent(
        env=create_environment("Pendulum-v1", 2),
        config=SHORT_RUN,
        rl_algorithm_ctor=ctor,
        max_repeats=K,
        optimizer=optimizer and optimizer(),
    )
    while algorithm.training_run.updates.num_updates < 12:
        algorithm.train_iter()
    num_steps = algorithm.num_updates % 6
    for _, optimizer_ in algorithm.optimizers():
        for state in optimizer_.state_dict()["state"].values():
            assert float(state["step"] if state else 0) == num_steps


def test_what_cannot_learn_from_decisions_is_refused():
    with pytest.raises(ConfigError, match="max_repeats must be a positive integer"):
        DynamicActionRepeatAgent(
            OBSERVATION, BOX, rl_algorithm_ctor=SMALL_SAC, max_repeats=0
        )
    for ctor, message in (
        (functools.partial(PPOAlgorithm, optimizer=Adam()), "is on-policy"),
        (functools.partial(SMALL_SAC, n_step=2), "set n_step = 1"),
        (functools.partial(SMALL_SAC, td_lambda=0.9), "ahead; .* and no td_lambda"),
        (
            functools.partial(
                DqnAlgorithm,
                optimizer=Adam(),
                q_network_ctor=functools.partial(
                    QNetwork, encoding_network_ctor=LSTMEncodingNetwork
                ),
            ),
            "has a memory",
        ),
        (
            functools.partial(DqnAlgorithm, optimizer=Adam(), lower_bound_targets=True),
            "returns or priorities of single steps",
        ),
        (
            functools.partial(Agent, rl_algorithm_ctor=functools.partial(DqnAlgorithm)),
            "Agent is a composition, .* Make a DynamicActionRepeatAgent the RL",
        ),
        (
            lambda *specs, **_: torch.nn.Linear(1, 1),
            "to be a RLAlgorithm, .* got a Linear",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            agent(CHOICE, ctor)
    config = dataclasses.replace(SHORT_RUN, burn_in_length=1)
    with pytest.raises(ConfigError, match=r"has no memory; leave .*burn_in_length"):
        agent(config=config)
    with pytest.raises(ConfigError, match="action masks cannot be used here"):
        DynamicActionRepeatAgent(
            {"mask": TensorSpec((2,), torch.bool), "position": OBSERVATION},
            CHOICE,
            rl_algorithm_ctor=functools.partial(DqnAlgorithm, action_mask_key="mask"),
        )
    config = TrainerConfig(num_iterations=1, mini_batch_length=3)
    with pytest.raises(ConfigError, match="mini_batch_length = 5"):
        agent(config=config)


def test_it_may_be_a_part_of_an_agent_and_stores_no_more_than_the_steps():
    whole = Agent(
        env=create_environment("Pendulum-v1", 2),
        config=SHORT_RUN,
        rl_algorithm_ctor=functools.partial(
            DynamicActionRepeatAgent, rl_algorithm_ctor=SMALL_SAC, max_repeats=K
        ),
        intrinsic_rewards={"rnd": functools.partial(RndReward, optimizer=Adam())},
    )
    before = nest.map_structure(torch.clone, dict(whole.named_parameters()))
    for _ in range(20):
        whole.train_iter()
    assert whole.num_updates > 10
    changed = {
        name.split(".")[1]
        for name, parameter in whole.named_parameters()
        if not torch.equal(parameter, before[name])
    }
    assert changed == {"rl", "rnd"}
    stored, _ = whole.replay_buffer.get_batch(16, 6)
    assert nest.is_empty(stored.rollout_info)
    held = stored.time_step.prev_action[:, 1:] == stored.time_step.prev_action[:, :-1]
    assert held.any()


@pytest.mark.slow
class TestLearning(OffPolicyLearningContract):
    """Values are those of single steps, whatever is held."""

    features = Feature.CONTINUOUS_ACTIONS
    settings: ClassVar = {"mini_batch_length": 3}

    def make(self, env, config, *, recurrent):
        networks = {
            "actor_network_ctor": functools.partial(
                SquashedActorNetwork, fc_layer_params=(32,)
            ),
            "critic_network_ctor": functools.partial(
                CriticNetwork, joint_fc_layer_params=(64,), activation="tanh"
            ),
        }
        sac = functools.partial(
            SacAlgorithm,
            optimizer=Adam(lr=1e-2),
            gamma=GAMMA,
            target_update_tau=0.2,
            initial_alpha=0.02,
            learn_alpha=False,
            **networks,
        )
        return DynamicActionRepeatAgent(
            env.observation_spec,
            env.action_spec,
            rl_algorithm_ctor=sac,
            max_repeats=2,
            env=env,
            config=config,
        )

    def value(self, algorithm, observation):
        rl = algorithm._rl
        policy, _ = rl._policy(observation)
        sample = rl._actions.sample(policy)
        features, _ = rl._critics.online.encode(observation)
        values = rl._critics.online.evaluate(features, sample.vector)
        return sample.expectation(values.amin(1))
