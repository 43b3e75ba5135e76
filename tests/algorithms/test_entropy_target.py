from __future__ import annotations

import functools
import math

import pytest
import torch
from gymnasium import spaces

from alf_lite.algorithms.actor_critic_algorithm import (
    ActorCriticAlgorithm,
    ActorCriticInfo,
)
from alf_lite.algorithms.agent import Agent
from alf_lite.algorithms.dqn_algorithm import DqnAlgorithm
from alf_lite.algorithms.entropy_target import (
    EntropyInfo,
    EntropyTarget,
    SGDEntropyTarget,
)
from alf_lite.algorithms.ppo_algorithm import PPOAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import TimeStep
from alf_lite.distributions.continuous import (
    ActionBounds,
    DiagonalNormal,
    SquashedNormal,
)
from alf_lite.distributions.discrete import Categorical
from alf_lite.environments.creation import create_environment
from alf_lite.errors import ConfigError
from alf_lite.optimizers.optimizers import Adam
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec
from alf_lite.testing.probe_environments import IdentityEnv, PolicyEnv

CHOICE = BoundedTensorSpec((), torch.int64, 0, 2)
BOX = BoundedTensorSpec((2,), torch.float32, -1.0, 3.0)


def test_the_defaults_ask_for_a_little_of_every_part():
    spec = {"box": BOX, "choice": CHOICE, "switch": TensorSpec((3,), torch.bool)}
    targets = EntropyTarget(spec)._target.tolist()
    # A box twice as wide as [-1, 1] has log 2 more for each element.
    box = 2 * (math.log(2.0) - 1.0)
    choice = -0.9 * math.log(0.9) - 0.1 * math.log(0.05)
    switch = 3 * (-0.9 * math.log(0.9) - 0.1 * math.log(0.1))
    assert targets == pytest.approx([box, choice, switch])
    given = EntropyTarget(spec, target_entropy={"box": 1, "choice": 0.5, "switch": 2.0})
    assert given._target.tolist() == [1.0, 0.5, 2.0]


@pytest.mark.parametrize("cls", [EntropyTarget, SGDEntropyTarget])
def test_the_loss_weighs_the_entropy_of_every_part(cls):
    spec = (CHOICE, BOX)
    target = cls(spec, target_entropy=(0.3, -2.0), initial_alpha=0.2)
    logits = torch.randn(4, 3, requires_grad=True)
    scale = torch.rand(4, 2) + 0.1
    policy = (Categorical(logits), DiagonalNormal(torch.zeros(4, 2), scale))
    step_type = torch.tensor([0, 1, 2, 1], dtype=torch.int32)
    info = target.train_step(
        TimeStep(step_type=step_type), (), ActorCriticInfo(action_distribution=policy)
    ).info
    assert info.valid.tolist() == [True, True, False, True]
    loss = target.calc_loss(info).loss
    for i in range(4):
        p = logits[i].detach().softmax(-1)
        choice = -(p * p.log()).sum().item()
        box = sum(
            0.5 * math.log(2 * math.pi * math.e * s**2) for s in scale[i].tolist()
        )
        expected = -0.2 * (choice + box)
        if cls is SGDEntropyTarget:
            expected += math.log(0.2) * (choice - 0.3 + box + 2.0)
        assert loss[i].item() == pytest.approx(expected, rel=1e-4)
    loss.mean().backward()
    assert logits.grad is not None
    if cls is SGDEntropyTarget:  # of log α alone: the mean excess
        excess = (info.entropy.detach() - target._target).mean(0)
        torch.testing.assert_close(target._log_alpha.grad, excess)


def naive(entropies, target, rates, alpha=0.1):
    """The rules, one after the other, for one part."""
    fast, slow = rates
    log_alpha, rate, stage, history = math.log(alpha), fast, 2, []
    alphas = []
    for entropy in entropies:
        mean = (history[-1] + entropy) / 2 if history else entropy
        before = mean
        if len(history) >= 2:
            before = (history[-2] + history[-1]) / 2
        elif history:
            before = history[-1]
        history.append(entropy)
        if stage == 2 and mean < target:
            stage = 3
        if stage == 3:
            if (mean < target) != (before < target):
                rate = max(0.9 * rate, slow)
            if mean < 0.5 * target:
                rate = fast
            if mean < before:
                log_alpha += rate * (1.0 if mean < target else 0.5)
            elif mean > before:
                log_alpha -= rate * (0.5 if mean < target else 1.0)
        alphas.append(math.exp(log_alpha))
    return alphas


def test_the_rules_are_those_of_a_naive_loop():
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(40, 2, generator=generator)
    entropies = 1.5 - 0.1 * torch.arange(40)[:, None].clamp(max=12) + noise
    target = EntropyTarget(
        (CHOICE, CHOICE), target_entropy=(1.0, 0.8), fast_rate=0.5, slow_rate=0.1
    )
    alphas = []
    for entropy in entropies:
        target.adjust(entropy)
        alphas.append(target.alpha.tolist())
    for part, goal in enumerate((1.0, 0.8)):
        expected = naive(entropies[:, part].tolist(), goal, (0.5, 0.1))
        assert [a[part] for a in alphas] == pytest.approx(expected, rel=1e-4)
    assert len({round(a[0], 6) for a in alphas}) > 10
    # All that the rules remember is part of a checkpoint.
    other = EntropyTarget((CHOICE, CHOICE), target_entropy=(1.0, 0.8), slow_rate=0.1)
    other.load_state_dict(target.state_dict())
    other.adjust(torch.tensor([0.2, 0.9]))
    target._fast_rate = 0.7
    target.adjust(torch.tensor([0.2, 0.9]))
    torch.testing.assert_close(other.alpha, target.alpha)


def test_the_first_stage_lowers_the_entropy_slowly():
    target = EntropyTarget(
        CHOICE, target_entropy=0.5, max_entropy=0.9, first_rate=0.01, min_alpha=0.0985
    )
    for entropy in (1.0, 1.0, 0.7, 1.0, 1.0):
        target.adjust(torch.tensor([entropy]))
    # The third one has the mean 0.85: alpha stays, though it is high again later.
    assert target.alpha.item() == pytest.approx(0.0985)
    assert target._stage.item() == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"first_rate": 0.5}, "first_rate has no effect: there is no first stage"),
        ({"min_alpha": 0.2}, r"min_alpha <= initial_alpha and .*, got 0\.2, 0\.1"),
        ({"slow_rate": 0.8}, r"slow_rate <= fast_rate, got .*, 0\.8 and 0\.7"),
    ],
)
def test_numbers_that_do_not_fit_each_other_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        EntropyTarget(CHOICE, **settings)
    assert EntropyTarget(CHOICE, max_entropy=1.0, first_rate=0.5)


@pytest.mark.parametrize(
    ("spec", "given", "message"),
    [
        ({"arm": TensorSpec((2,))}, None, r"EntropyTarget: action\.arm is unbounded"),
        ({"a": CHOICE}, {"b": 1.0}, "a nest of these like the action"),
        (CHOICE, "much", "must be numbers or schedulers"),
        (CHOICE, math.nan, "must be numbers"),
        (CHOICE, [(0.0, 0.9), (1.0, 0.1)], r"a scheduler .* LinearScheduler\(points\)"),
        ([3], None, "expected a TensorSpec, got int"),
    ],
)
def test_actions_and_targets_that_do_not_fit_are_refused(spec, given, message):
    with pytest.raises(ConfigError, match=message):
        EntropyTarget(spec, target_entropy=given)


@pytest.mark.parametrize("cls", [EntropyTarget, SGDEntropyTarget])
def test_a_target_that_no_policy_reaches_is_refused(cls):
    switch = TensorSpec((3,), torch.bool)
    for spec, largest in ((CHOICE, math.log(3)), (switch, 3 * math.log(2))):
        cls(spec, target_entropy=0.99 * largest)
        message = rf"target_entropy of action must be .* below {largest:.4g}"
        with pytest.raises(ConfigError, match=message):
            cls(spec, target_entropy=largest)
    with pytest.raises(ConfigError, match=r"target_entropy of action\.1 must be"):
        cls((BOX, CHOICE), target_entropy=(9.0, 1.2))


def test_only_a_policy_within_bounds_has_a_largest_entropy_of_numbers():
    zeros, steps = torch.zeros(4, 2), TimeStep(step_type=torch.ones(4))
    largest = 2 * math.log(4)
    target = EntropyTarget(BOX, target_entropy=largest)
    free = DiagonalNormal(zeros, zeros + 1)
    target.train_step(steps, (), ActorCriticInfo(action_distribution=free))
    squashed = SquashedNormal(zeros, zeros + 1, ActionBounds(BOX))
    info = ActorCriticInfo(action_distribution=squashed)
    EntropyTarget(BOX, target_entropy=0.99 * largest).train_step(steps, (), info)
    with pytest.raises(ConfigError, match="target_entropy of action must be"):
        EntropyTarget(BOX, target_entropy=largest).train_step(steps, (), info)


def agent(rl, env_ctor, target_ctor, **settings):
    env = create_environment(
        env_ctor=env_ctor, num_parallel_environments=8, vectorization_mode="sync"
    )
    config = TrainerConfig(
        num_iterations=200, random_seed=0, unroll_length=8, **settings
    )
    return Agent(
        env=env, config=config, rl_algorithm_ctor=rl, entropy_target_ctor=target_ctor
    )


@pytest.mark.ci
@pytest.mark.parametrize("cls", [EntropyTarget, SGDEntropyTarget])
def test_a_policy_keeps_the_entropy_that_it_shall_keep(cls):
    # Without it the policy would become deterministic: one action is better.
    rl = functools.partial(
        ActorCriticAlgorithm, entropy_regularization=0.0, optimizer=Adam(lr=0.01)
    )
    goal = 0.4
    options = {"slow_rate": 0.02}
    if cls is SGDEntropyTarget:
        options = {"initial_alpha": 1.0, "optimizer": Adam(lr=0.03)}
    algorithm = agent(
        rl, PolicyEnv, functools.partial(cls, target_entropy=goal, **options)
    )
    entropies = []
    calc_loss = algorithm.parts["entropy_target"].calc_loss

    def look(info: EntropyInfo):
        entropies.append(info.entropy.mean().item())
        return calc_loss(info)

    algorithm.parts["entropy_target"].calc_loss = look
    for _ in range(200):
        algorithm.train_iter()
    assert entropies[0] > 0.6
    assert sum(entropies[-50:]) / 50 == pytest.approx(goal, abs=0.12)


def test_ppo_trains_a_nest_of_actions_with_targets():
    space = spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Box(-1.0, 1.0, (1,))})
    rl = functools.partial(PPOAlgorithm, optimizer=Adam(lr=0.003))
    algorithm = agent(
        rl,
        functools.partial(IdentityEnv, space),
        SGDEntropyTarget,
        epochs=2,
        mini_batch_length=1,
        mini_batch_size=32,
    )
    for _ in range(3):
        algorithm.train_iter()
    target = algorithm.parts["entropy_target"]
    assert target.alpha.shape == (2,)
    # Both have more entropy than they shall keep at the start.
    assert (target.alpha < 0.1).all()


def test_an_algorithm_without_a_policy_is_refused():
    with pytest.raises(ConfigError, match="DqnAlgorithm tells no action_distribution"):
        agent(
            functools.partial(DqnAlgorithm, optimizer=Adam(lr=0.003)),
            PolicyEnv,
            EntropyTarget,
            mini_batch_length=2,
        )


def test_histograms_of_a_policy_that_is_not_told_are_refused():
    with pytest.raises(ConfigError, match="action_distributions is True, but Dqn"):
        DqnAlgorithm(
            env=create_environment("CartPole-v1", 1),
            config=TrainerConfig(
                mini_batch_length=2, summarize_action_distributions=True
            ),
        )
