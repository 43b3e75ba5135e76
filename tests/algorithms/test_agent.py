from __future__ import annotations

import contextlib
import dataclasses
import functools

import pytest
import torch

import alf_lite
from alf_lite.algorithms.actor_critic_algorithm import ActorCriticAlgorithm
from alf_lite.algorithms.agent import Agent
from alf_lite.algorithms.bc_algorithm import BcAlgorithm
from alf_lite.algorithms.composition import Composition
from alf_lite.algorithms.cql_dqn_algorithm import CqlDqnAlgorithm
from alf_lite.algorithms.dqn_algorithm import DqnAlgorithm
from alf_lite.algorithms.impala_algorithm import ImpalaAlgorithm
from alf_lite.algorithms.parts.intrinsic_reward import IntrinsicReward
from alf_lite.algorithms.parts.observation_parts import RandomGoal
from alf_lite.algorithms.parts.reward_weights import LagrangianRewardWeights
from alf_lite.algorithms.ppo_algorithm import PPOAlgorithm
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.algorithms.rnd_reward import RndReward
from alf_lite.algorithms.sac_algorithm import SacAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.config import files as config_files
from alf_lite.data_structures import AlgStep, BatchInfo, LossInfo, TimeStep
from alf_lite.environments.creation import create_environment
from alf_lite.errors import ConfigError
from alf_lite.optimizers.optimizers import SGD, Adam
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec
from alf_lite.testing.probe_environments import PolicyEnv
from alf_lite.trainers.trainer import Trainer
from tests.algorithms.agent_toys import Bias, LinearRepresentation, full_agent
from tests.fast.twins import without_twins
from tests.trainers.async_toys import async_algorithm, env_fn

SETTINGS = {
    PPOAlgorithm: ("CartPole-v1", 1, {"unroll_length": 16}),
    DqnAlgorithm: (
        *("CartPole-v1", 15),
        {"initial_collect_steps": 20, "unroll_length": 4, "mini_batch_length": 2},
    ),
    SacAlgorithm: ("Pendulum-v1", 15, {"initial_collect_steps": 20}),
}
SPECS = TensorSpec((3,)), BoundedTensorSpec((), torch.int64, 0, 1)


def trained(algorithm, ctor, num_iterations=None, settings=None, **arguments):
    """After some iterations in the algorithm's environment."""
    env_name, iterations, more = SETTINGS[algorithm]
    more = {"num_iterations": 100, **more, **(settings or {})}
    config = TrainerConfig(random_seed=3, **more)
    result = ctor(env=create_environment(env_name, 2), config=config, **arguments)
    for _ in range(num_iterations or iterations):
        result.train_iter()
    return result


# An agent with nothing in it


@pytest.mark.ci
@pytest.mark.parametrize("algorithm", SETTINGS)
def test_with_nothing_in_it_it_is_the_algorithm_bit_for_bit(algorithm):
    plain = trained(algorithm, algorithm)
    agent = trained(algorithm, Agent, rl_algorithm_ctor=algorithm)
    parameters = dict(agent.named_parameters())
    for name, parameter in plain.named_parameters():
        assert torch.equal(parameters.pop(f"parts.rl.{name}"), parameter), name
    assert not parameters
    for said in (
        "gamma",
        "num_bootstrap_steps",
        "train_state_spec",
    ):
        assert getattr(agent, said) == getattr(plain, said), said
    assert (agent.step_pairing() is None) == (plain.step_pairing() is None)
    # Its settings are those that the algorithm declares.
    settings = [
        dataclasses.replace(c, algorithm_ctor=None)
        for c in (agent.config, plain.config)
    ]
    assert settings[0] == settings[1]


def test_with_nothing_in_it_its_batches_are_cut_as_those_of_the_algorithm():
    settings = {"gradient_accumulation": 2}
    plain = trained(PPOAlgorithm, PPOAlgorithm, settings=settings)
    agent = trained(
        PPOAlgorithm, Agent, settings=settings, rl_algorithm_ctor=PPOAlgorithm
    )
    for found, expected in zip(agent.parameters(), plain.parameters(), strict=True):
        assert torch.equal(found, expected)


RESETTING_SAC = functools.partial(SacAlgorithm, parameter_reset_period=5)


@pytest.mark.ci
@pytest.mark.parametrize("optimizer_ctor", [None, functools.partial(Adam, lr=1e-3)])
def test_with_nothing_in_it_its_networks_begin_anew_as_the_algorithm_s(optimizer_ctor):
    runs = []
    for ctor, more in (
        (RESETTING_SAC, {}),
        (Agent, {"rl_algorithm_ctor": RESETTING_SAC}),
    ):
        if optimizer_ctor is not None:
            more = {"optimizer": optimizer_ctor(), **more}
        runs.append(trained(SacAlgorithm, ctor, **more))
    plain, agent = runs
    assert plain.num_updates > 10
    for found, expected in zip(agent.parameters(), plain.parameters(), strict=True):
        assert torch.equal(found, expected)


class OwnLoss(Agent):
    num_calls = 0

    def calc_loss(self, info):
        self.num_calls += 1
        return super().calc_loss(info)


def test_a_loss_of_ones_own_is_asked_for():
    agent = trained(PPOAlgorithm, OwnLoss, rl_algorithm_ctor=PPOAlgorithm)
    assert agent.num_calls == agent.num_updates


@pytest.mark.parametrize("of_agent", [True, False])
def test_a_loss_that_is_replaced_later_is_what_every_update_trains(of_agent):
    agent = trained(PPOAlgorithm, Agent, rl_algorithm_ctor=PPOAlgorithm)
    owner = agent if of_agent else agent.rl_algorithm
    calc_loss = owner.calc_loss
    owner.calc_loss = lambda info: LossInfo(loss=0 * calc_loss(info).loss)
    before = [p.clone() for p in agent.parameters()]
    for optimizer in agent.optimizers_of_run():
        optimizer[1].forget()  # what it has gathered moves them, too
    agent.train_iter()
    for found, expected in zip(agent.parameters(), before, strict=True):
        assert torch.equal(found, expected)


def test_a_weight_of_its_reward_holds_with_nothing_else_in_it():
    agent = Agent(*SPECS, rl_algorithm_ctor=PPOAlgorithm, extrinsic_reward_weight=0.5)
    steps = some_steps()
    inputs, _ = agent._preprocess_before(steps, {}, BatchInfo())
    assert torch.equal(inputs.reward, 0.5 * steps.reward)
    assert agent.step_pairing() is None


# Its parts


@pytest.mark.ci
@pytest.mark.parametrize("algorithm", SETTINGS)
def test_every_part_is_trained_by_its_own_optimizer(algorithm):
    agent = trained(
        algorithm, full_agent(algorithm), 3 if algorithm is PPOAlgorithm else 15
    )
    names = ["parts.representation", "parts.one", "parts.other", "parts.rl"]
    assert [name for name, _ in agent.optimizers()] == names
    assert list(agent.training_run.state_dict()["optimizers"]) == names
    for name in ("one", "other"):
        part = agent.parts[name]
        assert 0.3 < part.bias.item() < 1.1  # most steps are MID, which is 1
        assert part.num_calls["after_update"] == agent.num_updates
        assert part.num_calls["after_train_iter"] > 0
        assert part.seen["observation"].shape[-1] == 3  # of the representation
        assert part.seen["goal"].shape[-1] == 4


@pytest.mark.parametrize("rnd_optimizer", [Adam, None])
def test_only_the_part_that_begins_anew_is_forgotten(rnd_optimizer):
    optimizers = {} if rnd_optimizer else {"optimizer": Adam(lr=1e-3)}
    agent = trained(
        SacAlgorithm,
        Agent,
        rl_algorithm_ctor=functools.partial(SacAlgorithm, parameter_reset_period=1000),
        intrinsic_rewards={
            "rnd": functools.partial(
                RndReward,
                predictor_update_period=1,
                optimizer=rnd_optimizer and rnd_optimizer(),
            )
        },
        **optimizers,
    )
    rl, rnd = agent.rl_algorithm, agent.parts["rnd"]
    state = {}
    for _, optimizer in agent.optimizers():
        for name, parameter in optimizer.named_parameters:
            state[name] = optimizer, parameter
    num_updates = agent.num_updates
    rl._reset_parameters()
    for name, (optimizer, _) in state.items():
        kept = optimizer.state_dict()["state"][name]
        is_kept = bool(kept) and float(kept["step"]) > 0
        assert is_kept == name.startswith("parts.rnd."), name
    assert any(p.requires_grad for p in rnd.parameters())
    agent.train_iter()
    made = agent.num_updates - num_updates
    for name, (optimizer, _) in state.items():
        step = optimizer.state_dict()["state"][name]["step"]
        is_rnd = name.startswith("parts.rnd.")
        assert step == made + (num_updates if is_rnd else 0), name


def test_a_part_has_no_optimizers_of_its_own():
    agent = Agent(
        *SPECS, rl_algorithm_ctor=PPOAlgorithm, intrinsic_rewards=RndReward,
        optimizer=Adam(),
    )  # fmt: skip
    for _ in range(2):
        for part in agent.parts.values():
            with pytest.raises(ConfigError, match="trained as a part of Agent"):
                part.optimizers()
        agent.optimizers()


def test_goals_change_when_they_shall_and_are_stored_with_the_steps():
    settings = {"num_updates_per_train_iter": 1}
    agent = trained(DqnAlgorithm, full_agent(DqnAlgorithm), 30, settings)
    experience, _ = agent.replay_buffer.gather_all()
    goal, step_type = experience.rollout_info["goal"], experience.time_step.step_type
    assert torch.equal(goal.sum(-1), torch.ones_like(step_type, dtype=torch.float32))
    for row, types in zip(goal, step_type, strict=True):
        age = 0
        for t in range(1, len(types)):
            age = 0 if types[t] == 0 else age + 1
            if age % 5:
                assert torch.equal(row[t], row[t - 1]), t
    assert (goal[:, 1:] != goal[:, :-1]).any()


def test_rewards_are_weighted_and_the_raw_one_stays():
    agent = trained(
        DqnAlgorithm,
        Agent,
        20,
        {"num_updates_per_train_iter": 1},
        rl_algorithm_ctor=DqnAlgorithm,
        intrinsic_rewards={"bias": Bias, "more": Bias},
        extrinsic_reward_weight=0.5,
        intrinsic_reward_weights={"bias": ((0.0, 10.0), (1.0, 0.0))},
    )
    experience, info = agent.replay_buffer.gather_all()
    before = experience.time_step.reward.clone()
    step_type = experience.time_step.step_type
    inputs, _ = agent._preprocess_before(
        experience.time_step, experience.rollout_info, info
    )
    assert torch.equal(experience.time_step.reward, before)
    # After 20 of 100 iterations one weight is 8, the other 1.
    expected = 0.5 * before + (8.0 + 1.0) * 2.0 * (step_type != 0)
    assert torch.allclose(inputs.reward[:, 1:], expected[:, 1:])
    assert before.max() == 1.0  # of CartPole


@pytest.mark.parametrize("algorithm", [PPOAlgorithm, ActorCriticAlgorithm])
def test_intrinsic_rewards_have_a_value_of_their_own(algorithm):
    agent = trained(
        PPOAlgorithm,
        Agent,
        3,
        rl_algorithm_ctor=algorithm,
        intrinsic_rewards={"bias": Bias, "more": Bias},
        intrinsic_reward_weights={"bias": 10.0},
        extrinsic_reward_weight=0.5,
        intrinsic_gamma=0.25,
        optimizer=SGD(lr=0.01),
    )
    steps = some_steps()
    inputs, _ = agent._preprocess_before(steps, {}, BatchInfo())
    own = torch.full((2, 4), 22.0)
    own[:, 0] = 0.0
    assert torch.equal(inputs.reward, torch.stack([0.5 * steps.reward, own], -1))
    rl = agent.rl_algorithm
    value, _ = rl._value(torch.rand(2, 4))
    assert value.shape == (2, 2)
    values = torch.zeros(2, 4, 2)
    advantage = rl._generalized_advantage(
        inputs.reward, values, steps.step_type, torch.zeros(2, 4), time_major=False
    )
    assert torch.equal(advantage[..., 0], 0.5 * steps.reward[:, 1:])  # all terminal
    share = 0.25 * rl._td_lambda
    expected = torch.tensor([22 * (1 + share + share**2), 22 * (1 + share), 22.0])
    torch.testing.assert_close(advantage[..., 1], expected.expand(2, 3))
    # Of the outside, it is a reward of one dimension.
    assert agent.reward_spec == TensorSpec(())
    assert agent.reward_weights is None
    assert agent.scalar_reward(steps.reward) is steps.reward
    with pytest.raises(ValueError, match="only one dimension"):
        agent.set_reward_weights([1.0, 1.0])


class Chosen(IntrinsicReward):
    """1 for action 1."""

    def calc_reward(self, steps, batch_info):
        return steps.prev_action.float()


@pytest.mark.ci
@pytest.mark.parametrize(
    ("algorithm", "gamma"),
    [
        pytest.param(PPOAlgorithm, None, marks=pytest.mark.slow),
        (PPOAlgorithm, 0.9),
        (DqnAlgorithm, None),
    ],
)
def test_learns_from_an_intrinsic_reward_alone(algorithm, gamma):
    env = create_environment(env_ctor=PolicyEnv, num_parallel_environments=8)
    settings = {"unroll_length": 8}
    if algorithm is DqnAlgorithm:
        settings |= {"initial_collect_steps": 64, "num_updates_per_train_iter": 8}
    agent = Agent(
        env=env,
        config=TrainerConfig(num_iterations=30, random_seed=0, **settings),
        rl_algorithm_ctor=algorithm,
        intrinsic_rewards=lambda *specs: Chosen(*specs, name="chosen"),
        intrinsic_gamma=gamma,
        extrinsic_reward_weight=-0.25,  # by which alone action 0 would be better
        optimizer=Adam(lr=0.01),
    )
    for _ in range(30):
        agent.train_iter()
    actions = agent.predict_step(env.reset(), agent.get_initial_predict_state(8)).output
    assert (actions == 1).all()


# With everything around it


@pytest.mark.ci
@pytest.mark.parametrize("algorithm", [DqnAlgorithm, CqlDqnAlgorithm])
def test_offline_steps_are_trained_by_every_part(algorithm):
    recorded = trained(DqnAlgorithm, DqnAlgorithm)
    agent = trained(
        DqnAlgorithm,
        Agent,
        5,
        rl_algorithm_ctor=algorithm,
        intrinsic_rewards={"bias": Bias},
    )
    agent.add_offline_replay_buffer(recorded.replay_buffer)
    assert agent.has_offline_loss == algorithm.has_offline_loss
    for _ in range(10):
        agent.train_iter()
    assert 0.3 < agent.parts["bias"].bias.item() < 1.1
    before = agent.parts["bias"].bias.item()
    assert agent.train_from_replay_buffer(with_own_steps=False) > 0
    assert agent.parts["bias"].bias.item() != before


@pytest.mark.parametrize(
    ("algorithm", "num_steps"),
    [(PPOAlgorithm, 1), (DqnAlgorithm, 1), (DqnAlgorithm, 2)],
)
def test_the_quick_way_to_the_loss_changes_nothing(algorithm, num_steps):
    several = {} if num_steps == 1 else {"n_step": num_steps}
    settings = {} if num_steps == 1 else {"mini_batch_length": num_steps + 1}
    parts = {"rnd": functools.partial(RndReward, num_features=4)}
    runs = []
    for is_quick in (True, False):
        with contextlib.nullcontext() if is_quick else without_twins():
            agent = trained(
                algorithm,
                Agent,
                1 if algorithm is PPOAlgorithm else 6,
                settings=settings,
                rl_algorithm_ctor=functools.partial(algorithm, **several),
                intrinsic_rewards=parts,
                optimizer=SGD(lr=0.01),
            )
        runs.append(dict(agent.named_parameters()))
    for name, parameter in runs[0].items():
        assert torch.allclose(parameter, runs[1][name], atol=1e-5), name


def test_new_steps_are_prioritized_by_the_reward_that_is_trained():
    agent = trained(
        DqnAlgorithm,
        Agent,
        5,
        {"priority_replay": True},
        rl_algorithm_ctor=functools.partial(
            DqnAlgorithm, prioritize_new_steps=True, n_step=1
        ),
        intrinsic_rewards={"bias": Bias},
        intrinsic_reward_weights=1000.0,
    )
    assert agent.replay_buffer.total_size > 20
    steps, _ = agent.replay_buffer.get_batch(8, 2)
    assert (agent.priority_of_new_steps(steps) > 500).any()


@pytest.mark.ci
def test_unroll_workers_act_with_every_part():
    settings = {"unroll_length": 10, "initial_collect_steps": 20}
    agent = async_algorithm(
        env_fn(),
        algorithm_ctor=full_agent(DqnAlgorithm),
        num_iterations=10,
        num_updates_per_train_iter=1,
        **settings,
    )
    try:
        for _ in range(4):
            agent.train_iter()
    finally:
        agent.finish_train()
    replay = agent.replay_buffer
    for row in range(replay.num_environments):
        begin, length = replay.begin_positions[row : row + 1], int(replay.sizes[row])
        if not length:  # its worker was late
            continue
        steps = replay.get_windows(torch.tensor([row]), begin, length)
        goal, time_step = steps.rollout_info["goal"][0], steps.time_step
        assert (goal.sum(-1) == 1).all()
        is_new = (goal[1:] != goal[:-1]).any(-1)
        age = time_step.observation[0, 1:, 0]  # FaultEnv: the number of the step
        assert not is_new[age % 5 != 0].any()
    assert agent.num_updates > 0


CONF = """
create_environment.env_name = "CartPole-v1"
create_environment.num_parallel_environments = 2
TrainerConfig.algorithm_ctor = @Agent
TrainerConfig.num_iterations = 1
Agent.rl_algorithm_ctor = @PPOAlgorithm
Agent.intrinsic_rewards = {"bias": @tests.algorithms.agent_toys.Bias}
Agent.intrinsic_reward_weights = {"bias": @LinearScheduler()}
LinearScheduler.schedule = ((0.0, 1.0), (1.0, 0.0))
PPOAlgorithm.clip_epsilon = 0.1
"""


def test_a_conf_names_the_parts_and_needs_the_settings_of_none(tmp_path):
    config_files.parse_config_text(CONF)
    config = TrainerConfig()
    assert config.unroll_length == PPOAlgorithm.default_settings.unroll_length
    Trainer(config, tmp_path / "run").train()
    text = (tmp_path / "run" / "operative.gin").read_text()
    assert "Adam.lr = ((0.0, 0.0003), (1.0, 0.0))" in text
    config_files.reset()
    config_files.parse_config(str(tmp_path / "run" / "operative.gin"))
    assert TrainerConfig().epochs == PPOAlgorithm.default_settings.epochs
    config_files.reset()
    policy = alf_lite.load_policy(tmp_path / "run")
    assert policy.predict(torch.zeros(3, 4).numpy()).shape == (3,)


def test_a_run_built_in_python_is_played_from_its_directory(tmp_path):
    settings = {"num_iterations": 3}
    agent = trained(PPOAlgorithm, full_agent(PPOAlgorithm), 1, settings)
    root = tmp_path / "run"
    Trainer(agent, root).train()
    config_files.reset()
    policy = alf_lite.load_policy(root)
    first = policy.predict(torch.zeros(3, 4).numpy())
    assert first.shape == (3,)


@pytest.mark.slow  # the compiler takes seconds
def test_a_run_built_in_python_is_exported(tmp_path):
    agent = trained(PPOAlgorithm, full_agent(PPOAlgorithm), 1)
    root = tmp_path / "run"
    Trainer(agent, root).train()
    config_files.reset()
    alf_lite.export_policy(root, tmp_path / "policy", file_format="torch", num_steps=20)
    assert list((tmp_path / "policy").glob("*.pt2"))


# Who is trained by whom


class Either(RLAlgorithm):
    """Learns nothing, on-policy or off-policy."""

    def __init__(self, *specs, is_on_policy=None, **kwargs):
        super().__init__(*specs, is_on_policy=is_on_policy, **kwargs)
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def rollout_step(self, inputs, state):
        return AlgStep(self.random_action(inputs))

    def train_step(self, inputs, state, rollout_info):
        return AlgStep(info=self.weight * inputs.discount)

    def calc_loss(self, info):
        return LossInfo(loss=info)


@pytest.mark.parametrize("is_on_policy", [True, False])
def test_the_agent_decides_for_an_algorithm_that_can_do_both(is_on_policy):
    env = create_environment("CartPole-v1", 2)
    config = TrainerConfig(num_iterations=5, unroll_length=2, mini_batch_length=2)
    agent = Agent(
        env=env,
        config=config,
        rl_algorithm_ctor=Either,
        is_on_policy=is_on_policy,
        intrinsic_rewards={"bias": Bias},
        optimizer=SGD(lr=0.1),
    )
    agent.train_iter()
    agent.train_iter()
    assert agent.on_policy == agent.rl_algorithm.on_policy == is_on_policy
    assert (agent.replay_buffer is None) == is_on_policy
    assert agent.rl_algorithm.weight.item() < 0
    for ctor in (Either, functools.partial(Agent, rl_algorithm_ctor=Either)):
        with pytest.raises(
            ConfigError, match=r"Either can train .* no parent has said"
        ):
            ctor(env=env, config=config, optimizer=SGD(lr=0.1))


def some_steps(num_rows: int = 2, length: int = 4) -> TimeStep:
    shape = num_rows, length
    return TimeStep(
        step_type=torch.ones(shape, dtype=torch.int32),
        reward=torch.rand(shape),
        discount=torch.ones(shape),
        observation=torch.rand(*shape, 3),
        prev_action=torch.zeros(shape, dtype=torch.int64),
    )


class Wrong(IntrinsicReward):
    """Of the next step only."""

    def calc_reward(self, steps, batch_info):
        return steps.reward[:, 1:]


def test_an_intrinsic_reward_of_the_wrong_shape_is_named():
    message = r"Late\.calc_reward: expected a reward \[B, T\] = \[2, 3\].*got \[2, 2\]"
    with pytest.raises(ValueError, match=message):
        Agent(
            *SPECS,
            rl_algorithm_ctor=PPOAlgorithm,
            intrinsic_rewards={"w": functools.partial(Wrong, name="Late")},
        )


NO_OPTIMIZER = functools.partial(Bias, lr=None)
VECTOR = TensorSpec((2,))
NO_PARAMETERS = {"x": lambda *specs: Chosen(*specs, name="x")}
TWO_VALUES = {"intrinsic_rewards": NO_PARAMETERS, "intrinsic_gamma": 0.9}
ERRORS = [
    (
        {"intrinsic_rewards": {"novelty": NO_OPTIMIZER}},
        r"'novelty' \(Bias\) has parameters, such as bias, but no optimizer",
    ),
    ({"intrinsic_rewards": [Bias, Bias]}, "two parts are named 'Bias'"),
    ({"intrinsic_rewards": {"rl": Bias}}, "two parts are named 'rl'"),
    ({"intrinsic_rewards": {"a b": Bias}}, "'a b' cannot be the name of a part"),
    (
        {"intrinsic_rewards": {"x": functools.partial(RandomGoal, num_categories=2)}},
        "'x' to be a IntrinsicReward, got",
    ),
    (
        {"intrinsic_rewards": {"x": Bias}, "intrinsic_reward_weights": {"y": 1.0}},
        "there is no intrinsic reward 'y'",
    ),
    (
        {"intrinsic_rewards": {"x": Bias}, "reward_spec": VECTOR},
        "a reward of one dimension",
    ),
    ({"intrinsic_reward_weights": 1.0}, "weights is 1.0, but there are no intrinsic"),
    ({"goal_generator_ctor": RandomGoal}, "RandomGoal has no goal space"),
    ({"goal_generator_ctor": Bias}, "'goal' to be a GoalGenerator, got a Bias"),
    (
        {"rl_algorithm_ctor": lambda *_, **__: ()},
        "'rl' to be a RLAlgorithm, .*, got a tu",
    ),
    ({"is_on_policy": False}, "PPOAlgorithm is on-policy, but its parent"),
    ({"intrinsic_gamma": 0.9}, "intrinsic_gamma is given, but there are no intrinsic"),
    (
        {**TWO_VALUES, "reward_weights": [1.0, 2.0]},
        r"Agent\.reward_weights is given, but with intrinsic_gamma",
    ),
    (
        {**TWO_VALUES, "reward_weights": LagrangianRewardWeights},
        r"Agent\.reward_weights is given, but with intrinsic_gamma",
    ),
    (
        {"rl_algorithm_ctor": RndReward},
        r"Agent\.rl_algorithm_ctor: .* a RLAlgorithm, such as @PPOAlgorithm, got a Rnd",
    ),
    (
        {"intrinsic_rewards": [PPOAlgorithm]},
        r"Agent\.intrinsic_rewards: .* to be a IntrinsicReward, got a PPOAlgorithm",
    ),
    (
        {**TWO_VALUES, "config": TrainerConfig(unroll_length=2, unroll_episodes=2)},
        r"Agent\.intrinsic_gamma goes on .*TrainerConfig\.unroll_episodes sees nothing",
    ),
    (
        {**TWO_VALUES, "rl_algorithm_ctor": DqnAlgorithm},
        r"DqnAlgorithm sums all rewards with one γ .*on-policy actor-critic",
    ),
    (
        {"intrinsic_rewards": NO_PARAMETERS, "rl_algorithm_ctor": BcAlgorithm},
        r"BcAlgorithm looks at no reward of a step, .*: intrinsic_rewards",
    ),
    (
        {"extrinsic_reward_weight": 0.5, "rl_algorithm_ctor": BcAlgorithm},
        r"BcAlgorithm looks at no reward .* and extrinsic_reward_weight have no effect",
    ),
    (
        {**TWO_VALUES, "rl_algorithm_ctor": ImpalaAlgorithm},
        r"ImpalaAlgorithm: the correction of a policy lag .*Agent\.intrinsic_gamma",
    ),
]


@pytest.mark.parametrize(("arguments", "message"), ERRORS)
def test_what_does_not_fit_is_refused_when_it_is_built(arguments, message):
    with pytest.raises(ConfigError, match=message):
        Agent(*SPECS, **{"rl_algorithm_ctor": PPOAlgorithm, **arguments})


MASKED = {"action_mask": TensorSpec((2,), torch.bool), "position": TensorSpec((3,))}


class LinearPosition(LinearRepresentation):
    def __init__(self, observation_spec, action_spec) -> None:
        super().__init__(observation_spec["position"], action_spec)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (
            {"goal_generator_ctor": functools.partial(RandomGoal, num_categories=2)},
            r"'goal' \(RandomGoal\)",
        ),
        (
            {"representation_learner_ctor": LinearPosition},
            r"'representation' \(LinearPosition\)",
        ),
    ],
)
def test_a_part_that_hides_the_action_mask_is_named(arguments, part):
    ctor = functools.partial(PPOAlgorithm, action_mask_key="action_mask")
    Agent(MASKED, SPECS[1], rl_algorithm_ctor=ctor)
    with pytest.raises(ConfigError, match=f"{part} .*Action masks cannot be used with"):
        Agent(MASKED, SPECS[1], rl_algorithm_ctor=ctor, **arguments)
    with pytest.raises(
        ConfigError, match=r"^action mask: expected a dict .* key 'mask'"
    ):
        Agent(
            MASKED,
            SPECS[1],
            rl_algorithm_ctor=functools.partial(PPOAlgorithm, action_mask_key="mask"),
        )


@pytest.mark.parametrize("epsilons", [[0.1], [0.1, 0.2, 0.3]])
@pytest.mark.parametrize("parts", [{}, {"intrinsic_rewards": {"bias": Bias}}])
def test_there_is_an_epsilon_for_every_environment(parts, epsilons):
    def build(ctor, epsilons):
        rl = functools.partial(DqnAlgorithm, rollout_epsilon_greedy=epsilons)
        return Agent(
            env=create_environment("CartPole-v1", 2),
            config=TrainerConfig(num_iterations=1),
            rl_algorithm_ctor=functools.partial(ctor, rl_algorithm_ctor=rl),
            **parts,
        )

    ctor = functools.partial(Agent, optimizer=Adam())
    build(ctor, [0.1, 0.2])
    message = f"DqnAlgorithm.rollout_epsilon_greedy: {len(epsilons)} values .* of 2"
    with pytest.raises(ConfigError, match=message):
        build(ctor, epsilons)


# Parts of one's own whose output is not what they say


class TooLong(LinearRepresentation):
    representation_spec = TensorSpec((5,))


class InADict(LinearRepresentation):
    def encode(self, observation):
        return {"x": super().encode(observation)}


class WrongGoal(RandomGoal):
    def draw(self, inputs):
        return super().draw(inputs)[:, :2]


class ShortInfo(Bias):
    def preprocess_experience(self, root_inputs, rollout_info, batch_info):
        return root_inputs, root_inputs.step_type[:, :-3].float()


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            {"representation_learner_ctor": TooLong},
            r"TooLong\.encode: expected \[B, \.\.\.\] = \[2, 5\], .* got \[2, 3\]",
        ),
        (
            {"representation_learner_ctor": InADict},
            r"InADict\.encode returned another nest: .* a dict with 1 leaves",
        ),
        (
            {"goal_generator_ctor": functools.partial(WrongGoal, num_categories=3)},
            r"WrongGoal\.draw: expected .* = \[2, 3\], .* got \[2, 2\]",
        ),
        (
            {"intrinsic_rewards": {"short": ShortInfo}},
            r"ShortInfo\.preprocess_experience \(part 'short'\): .* "
            r"trains \[2, 17\], got \[2, 14\]",
        ),
    ],
)
def test_an_output_of_another_shape_is_named(parts, message):
    with pytest.raises(ConfigError, match=message):
        trained(PPOAlgorithm, Agent, rl_algorithm_ctor=PPOAlgorithm, **parts)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_an_agent_of_several_parts_is_compiled():
    agents = [
        trained(
            PPOAlgorithm,
            Agent,
            2,
            {"compile": compiles, "epochs": 2, "mini_batch_size": 16},
            rl_algorithm_ctor=PPOAlgorithm,
            intrinsic_rewards={"rnd": RndReward},
            optimizer=Adam(lr=1e-3),
        )
        for compiles in (False, True)
    ]
    plain, compiled = (dict(agent.named_parameters()) for agent in agents)
    torch.testing.assert_close(compiled, plain, rtol=1e-3, atol=1e-5)


class BreaksTheGraph(Bias):
    def train_step(self, inputs, state, rollout_info):
        torch._dynamo.graph_break()
        return super().train_step(inputs, state, rollout_info)


@pytest.mark.ci
def test_a_part_may_break_the_compiled_graph():
    agent = trained(
        PPOAlgorithm,
        Agent,
        1,
        {"unroll_length": 2},
        rl_algorithm_ctor=PPOAlgorithm,
        intrinsic_rewards={"x": BreaksTheGraph},
    )

    def infos(algorithm, x):
        before = algorithm._before
        return {n: algorithm._named[n].train_step((), (), x).info for n in before}

    def quick_loss_and_infos(algorithm, x):
        return algorithm.quick_loss(()), infos(algorithm, x)

    x = torch.ones(2)
    found = torch.compile(quick_loss_and_infos, backend="eager")(agent, x)
    torch.testing.assert_close(found, (None, infos(agent, x)))


def test_a_rate_by_the_kl_needs_an_optimizer_of_its_own_before_anything_runs():
    env = create_environment("CartPole-v1", 2)
    ctor = functools.partial(PPOAlgorithm, desired_kl=0.01)
    agent = Agent(
        env=env,
        config=TrainerConfig(num_iterations=1),
        rl_algorithm_ctor=ctor,
        optimizer=Adam(lr=1e-3),
    )
    with pytest.raises(ConfigError, match=r"set PPOAlgorithm\.optimizer = @Adam"):
        agent.setup_training()
    env.close()


class WithHelper(Composition):
    """Has a part, and a child that it has forgotten."""

    def __init__(self, observation_spec, action_spec, **kwargs):
        specs = observation_spec, action_spec
        super().__init__(*specs, rl_algorithm=PPOAlgorithm(*specs), **kwargs)
        self.helper = Bias(*specs)


def test_a_forgotten_child_is_named_when_the_root_is_built():
    env = create_environment("CartPole-v1", 2)
    with pytest.raises(ConfigError, match=r"nobody trains its child .* helper \(Bias"):
        WithHelper(env=env, config=TrainerConfig(num_iterations=1))


@pytest.fixture(autouse=True)
def no_configuration():
    yield
    config_files.reset()
