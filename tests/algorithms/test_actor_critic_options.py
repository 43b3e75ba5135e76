"""Options of off-policy actor-critics: what each changes, against numbers by hand."""

from __future__ import annotations

import contextlib
import functools
import math
from unittest import mock

import pytest
import torch

from alf_lite.algorithms.awac_algorithm import AwacAlgorithm
from alf_lite.algorithms.cql_algorithm import CqlAlgorithm
from alf_lite.algorithms.crossq_algorithm import CrossqAlgorithm
from alf_lite.algorithms.ddpg_algorithm import DdpgAlgorithm
from alf_lite.algorithms.edac_algorithm import EdacAlgorithm
from alf_lite.algorithms.iql_algorithm import IqlAlgorithm
from alf_lite.algorithms.learning.batch_loss import LossFunction
from alf_lite.algorithms.learning.construction import create_algorithm
from alf_lite.algorithms.oac_algorithm import OacAlgorithm
from alf_lite.algorithms.parts.critics import (
    TargetUpdater,
    UpdateCounter,
    with_clipped_slope,
)
from alf_lite.algorithms.parts.return_heads import (
    CategoricalHead,
    QuantileHead,
    quantile_huber,
)
from alf_lite.algorithms.parts.temperature import concentrated_entropy
from alf_lite.algorithms.redq_algorithm import RedqAlgorithm
from alf_lite.algorithms.sac_algorithm import SacAlgorithm
from alf_lite.algorithms.taac_algorithm import TaacAlgorithm
from alf_lite.algorithms.td3_algorithm import Td3Algorithm
from alf_lite.algorithms.tqc_algorithm import TqcAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.config import files as config_files
from alf_lite.data_structures import StepType
from alf_lite.distributions import functions as distributions
from alf_lite.distributions.action_vectors import Entropies, PolicySample
from alf_lite.environments.creation import create_environment
from alf_lite.errors import ConfigError
from alf_lite.networks.actor_networks import ActorDistributionNetwork
from alf_lite.networks.critic_networks import CriticNetwork
from alf_lite.optimizers.optimizers import Adam
from alf_lite.tensor_specs import TensorSpec
from alf_lite.utils.progress import Progress, follow_progress
from alf_lite.utils.ranks import ranks
from alf_lite.utils.schedulers import LinearScheduler
from tests.algorithms.actor_critics import GAMMA, Actor, make
from tests.algorithms.loss_contract import Case, make_batch
from tests.algorithms.loss_table import ROWS
from tests.replayed_steps import (
    BOX,
    CHOICE,
    MIXED,
    OBSERVATION,
    batch_of,
    info_of,
    randomise,
    update,
    windows,
)

# Models of the return


def test_a_quantile_critic_of_sac_fits_the_quantiles_of_the_pessimistic_target():
    algorithm = make(return_model=QuantileHead(num_quantiles=4), initial_alpha=0.3)
    steps = windows(BOX)
    info = info_of(algorithm, steps)
    assert info.q.shape == (1, 5, 2, 4)
    # By hand: of both target critics, the one with the smaller mean.
    torch.manual_seed(2)
    algorithm._actions.sample(algorithm._policy(steps.observation[:, 0])[0])
    policy, _ = algorithm._policy(steps.observation[:, 1])
    action, log_prob = policy.rsample_and_log_prob()
    vector = algorithm._actions.to_vector(action)
    outputs = algorithm._critics.target((steps.observation[:, 1], vector))[0][:, :, 0]
    for b in range(5):
        chosen = min(outputs[b], key=lambda quantiles: quantiles.mean().item())
        value = torch.cat([chosen, -0.3 * log_prob[b, None]])
        torch.testing.assert_close(info.next_value[0, b], value)
    # ... and each of the critics is drawn to it, moved by the entropy.
    value = info.next_value[0, :, :-1] + info.next_value[0, :, -1:]
    discount = GAMMA * steps.discount[:, 1, None]
    target = steps.reward[:, 1, None] + discount * value
    expected = sum(quantile_huber(info.q[0, :, k], target) for k in range(2))
    loss, td_error = algorithm._critic_loss(info)
    torch.testing.assert_close(loss[0], expected)
    distance = target.mean(-1, keepdim=True) - info.q[0].mean(-1)
    torch.testing.assert_close(td_error()[0], distance.abs().mean(1))
    assert algorithm.calc_loss(info).loss.shape == (1, 5)


@pytest.mark.parametrize("cls", [DdpgAlgorithm, Td3Algorithm])
def test_a_deterministic_policy_follows_the_mean_of_a_model(cls):
    algorithm = make(cls, return_model=CategoricalHead(-2.0, 2.0, num_atoms=5))
    steps = windows(BOX)
    algorithm._actor_updates.is_due = True
    info = info_of(algorithm, steps)
    vector, _ = algorithm._policy(steps.observation[:, 0])
    outputs, _ = algorithm._critics.online((steps.observation[:, 0], vector))
    support = torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0])
    mean = outputs[:, 0].softmax(-1) @ support
    torch.testing.assert_close(info.policy_value[0], mean)
    assert algorithm.calc_loss(info).loss.shape == (1, 5)


@pytest.mark.parametrize("with_entropy", [True, False])
def test_the_entropy_moves_every_atom_of_a_categorical_critic(with_entropy):
    head = CategoricalHead(-2.0, 2.0, num_atoms=5)
    algorithm = make(
        return_model=head, initial_alpha=0.3, use_entropy_reward=with_entropy
    )
    steps = windows(BOX)
    info = info_of(algorithm, steps)
    outputs = info.next_value[0, :, :5]
    bonus = info.next_value[0, :, 5] if with_entropy else torch.zeros(5)
    loss, td_error = algorithm._critic_loss(info)
    atoms = [-2.0, -1.0, 0.0, 1.0, 2.0]
    for b in range(5):  # by hand: each atom goes to the two that are nearest
        share = [0.0] * 5
        for atom, p in zip(atoms, outputs[b].softmax(-1).tolist(), strict=True):
            moved = atom + bonus[b].item()
            discount = GAMMA * steps.discount[b, 1].item()
            place = min(max(steps.reward[b, 1].item() + discount * moved, -2), 2) + 2
            lower = min(int(place), 3)
            share[lower] += p * (lower + 1 - place)
            share[lower + 1] += p * (place - lower)
        target = torch.tensor(share)
        expected = sum(
            -(target * info.q[0, b, k].log_softmax(-1)).sum() for k in range(2)
        )
        torch.testing.assert_close(loss[0, b], expected)
        mean = steps.reward[b, 1] + discount * (head.mean(outputs[b]) + bonus[b])
        error = (mean - head.mean(info.q[0, b])).abs().mean()
        torch.testing.assert_close(td_error()[0, b], error)
    assert bool(bonus.abs().min() > 0) is with_entropy


def test_the_gap_of_a_quantile_critic_of_cql_is_that_of_expected_returns():
    algorithm, steps = make(CqlAlgorithm, return_model=QuantileHead(4)), windows(BOX)
    before = info_of(algorithm, steps)
    with torch.no_grad():  # what they tell of spread says nothing of expectations
        bias = algorithm._critics.online._critics._output_layer.bias
        bias.add_(torch.tensor([-3.0, -1.0, 1.0, 3.0]))
    after = info_of(algorithm, steps)
    torch.testing.assert_close(before.gap, after.gap)
    assert not torch.allclose(before.sac.q, after.sac.q)
    assert algorithm.calc_loss(after).loss.isfinite().all()


def test_models_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match="return_model: actions with discrete parts"):
        make(action_spec=CHOICE, return_model=QuantileHead())
    with pytest.raises(ConfigError, match="return_model: expected a model such as"):
        make(return_model=QuantileHead)
    with pytest.raises(ConfigError, match="return_model: a reward of several"):
        make(return_model=QuantileHead(), reward_spec=TensorSpec((2,)))
    with pytest.raises(TypeError, match="return_model"):
        make(AwacAlgorithm, return_model=QuantileHead())


# Ensembles


def test_the_target_is_the_smallest_of_a_few_random_critics():
    algorithm = make(RedqAlgorithm, num_critics=5)
    values = torch.randn(3, 5, 1)
    seen = set()
    for seed in range(60):
        torch.manual_seed(seed)
        smallest = algorithm._target_opinion(values)
        torch.manual_seed(seed)
        chosen = torch.randperm(5)[:2].tolist()
        torch.testing.assert_close(smallest, values[:, chosen].amin(1))
        seen.add(tuple(sorted(chosen)))
    assert len(seen) == 10  # all pairs


def test_tqc_pools_the_quantiles_and_leaves_the_largest_out():
    algorithm = make(
        TqcAlgorithm,
        num_critics=3,
        num_dropped_quantiles=2,
        return_model=QuantileHead(5),
        initial_alpha=0.3,
    )
    values = torch.randn(4, 3, 1, 5)
    pooled = algorithm._target_opinion(values)
    assert pooled.shape == (4, 1, 9)
    for b in range(4):
        expected = sorted(values[b].flatten().tolist())[:9]
        assert pooled[b, 0].tolist() == pytest.approx(expected)
    torch.testing.assert_close(
        algorithm._opinion(algorithm._weigh(values)), values.mean((1, 3))
    )
    info = info_of(algorithm, steps := windows(BOX))
    assert info.next_value.shape == (1, 5, 10)  # and the entropy
    loss, _ = algorithm._critic_loss(info)
    value = info.next_value[0, :, :-1] + info.next_value[0, :, -1:]
    target = steps.reward[:, 1, None] + GAMMA * steps.discount[:, 1, None] * value
    expected = sum(quantile_huber(info.q[0, :, k], target) for k in range(3))
    torch.testing.assert_close(loss[0], expected)


def test_tqc_refuses_what_has_no_quantiles_to_leave_out():
    with pytest.raises(ConfigError, match=r"needs a QuantileHead\(\); got C"):
        make(TqcAlgorithm, return_model=CategoricalHead())
    with pytest.raises(ValueError, match="less than the 25 of a critic, got 25"):
        make(TqcAlgorithm, num_dropped_quantiles=25)


def of_the_droq_conf():
    """As ``droq_pendulum`` builds it, but that nothing is dropped at random."""
    with config_files.own_config():
        config_files.parse_config("droq_pendulum", ["CriticNetwork.dropout = 0.0"])
        env = create_environment()
        algorithm = create_algorithm(TrainerConfig(), env)
        env.close()
    return algorithm


def test_the_actor_of_droq_follows_the_mean_of_all_critics():
    algorithm = of_the_droq_conf()
    observation = torch.randn(5, 3)
    policy, _ = algorithm._policy(observation)
    sample = algorithm._actions.sample(policy)
    critics = algorithm._critics
    features, _ = critics.online.encode(observation)
    values = critics.online.evaluate(features, sample.vector)
    value = algorithm._policy_value(features, values, sample)
    torch.testing.assert_close(value, values.mean(1).squeeze(1))


def test_the_targets_of_droq_ask_both_critics():
    algorithm = of_the_droq_conf()
    values = torch.randn(3, 2, 1)
    torch.testing.assert_close(algorithm._target_opinion(values), values.amin(1))


def test_droq_drops_units_of_critics_of_targets_and_of_those_the_actor_follows():
    row, layers = ROWS["REDQ"], {"joint_fc_layer_params": (8, 8), "layer_norm": True}
    ctor = functools.partial(CriticNetwork, dropout=0.5, **layers)
    case = Case("box", masked=False, dims=1, memory=False, n=1)
    algorithm = row.build(case, critic_network_ctor=ctor)
    _, batch = make_batch(row, algorithm, case)
    drop = torch.nn.functional.dropout
    with mock.patch("torch.nn.functional.dropout", side_effect=drop) as dropout:
        LossFunction(algorithm)(batch)
    trains = [training for _, _, training, _ in (c.args for c in dropout.mock_calls)]
    assert trains == [True] * (2 * 3)  # layers of the targets, of both losses


def test_the_actor_of_redq_follows_the_mean_of_what_critics_of_atoms_expect():
    head = CategoricalHead(-2.0, 2.0, num_atoms=5)
    algorithm = make(RedqAlgorithm, num_critics=4, return_model=head)
    observation, online = torch.randn(5, 3), algorithm._critics.online
    with torch.no_grad():
        for parameter in online.parameters():
            parameter += torch.randn_like(parameter)
    sample = algorithm._actions.sample(algorithm._policy(observation)[0])
    features, _ = online.encode(observation)
    values = online.evaluate(features, sample.vector)  # [5, 4, 1, 5], logits
    value = algorithm._policy_value(features, values, sample)
    expected = (values.softmax(-1) @ torch.linspace(-2, 2, 5)).mean((1, 2))
    torch.testing.assert_close(value, expected)


def test_redq_updates_the_actor_as_often_as_it_acts():
    defaults = RedqAlgorithm.default_settings
    assert defaults.updates_per_env_step == 20
    algorithm = make(RedqAlgorithm)
    due = []
    for _ in range(40):
        due.append(algorithm._actor_updates.is_due)
        algorithm._actor_updates.advance()
    assert [i for i, is_due in enumerate(due, 1) if is_due] == [20, 40]


def test_a_subset_is_not_larger_than_the_ensemble():
    with pytest.raises(ValueError, match="between 1 and num_critics=2, got 3"):
        make(RedqAlgorithm, num_critics=2, num_target_critics=3)


# λ-returns


@pytest.mark.ci
@pytest.mark.parametrize(
    "cls", [SacAlgorithm, DdpgAlgorithm, IqlAlgorithm, AwacAlgorithm]
)
def test_lambda_returns_carry_a_late_reward_to_the_first_step(cls):
    """1 comes at the end of eight steps; targets of one step bring it back slowly."""
    steps = windows(BOX, length=8, batch_size=16)
    step_type = torch.full((16, 8), StepType.MID, dtype=torch.int32)
    step_type[:, -1] = StepType.LAST
    reward, discount = torch.zeros(16, 8), torch.ones(16, 8)
    reward[:, -1], discount[:, -1] = 1.0, 0.0
    steps = steps._replace(step_type=step_type, reward=reward, discount=discount)
    sac = {"initial_alpha": 1e-3, "learn_alpha": False}
    found = []
    for td_lambda in (None, 1.0):
        algorithm = make(
            cls,
            td_lambda=td_lambda,
            gamma=1.0,
            **{"target_update_tau": 0.005, "optimizer": Adam(lr=1e-2)},
            **sac if cls is SacAlgorithm else {},
        )
        for module in (algorithm._critics.online, algorithm._critics.target):
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter.mul_(0.3)
        update(algorithm, steps, 60)
        q = info_of(algorithm, steps).q[:6]
        found.append((q - 1).abs().mean().item())
    assert found[1] < 0.2
    assert found[0] > 0.4


def test_lambda_returns_that_would_be_ignored_are_refused():
    config = functools.partial(TrainerConfig, num_iterations=1)
    for options, message in (
        ({"td_lambda": 1.5}, r"td_lambda must lie in \[0, 1\], got 1.5"),
        ({"n_step": 3}, "td_lambda mixes targets of one step: n_step must be 1"),
        ({"config": config(mini_batch_length=2)}, r"\(td_lambda\) take 3 or more"),
        ({"return_model": QuantileHead()}, "td_lambda has no effect: distributions"),
        ({"cls": TaacAlgorithm}, "td_lambda mixes targets of one step: n_step must"),
        ({"cls": TqcAlgorithm}, "td_lambda has no effect: distributions"),
    ):
        with pytest.raises((ConfigError, ValueError), match=message):
            make(**{"td_lambda": 0.5, **options})


# The slope of the critic


def test_a_clipped_slope_leaves_the_value_alone():
    vector = torch.tensor([[1.0, 2.0], [-0.1, 0.3]], requires_grad=True)
    value = vector.square().sum(-1)
    clipped = with_clipped_slope(value, vector, 1.0)
    torch.testing.assert_close(clipped, value)
    weights = torch.tensor([0.5, 2.0])
    (slope,) = torch.autograd.grad((weights * clipped).sum(), vector)
    expected = weights.unsqueeze(1) * torch.tensor([[1.0, 1.0], [-0.2, 0.6]])
    torch.testing.assert_close(slope, expected)


@pytest.mark.parametrize(
    ("cls", "options"),
    [
        (SacAlgorithm, {"dqda_clipping": 1.0}),
        (DdpgAlgorithm, {"dqda_clipping": 1.0}),
        (EdacAlgorithm, {"num_critics": 3}),
    ],
)
def test_a_loss_that_is_only_looked_at_needs_no_slope(cls, options):
    """As where recorded steps are evaluated on."""
    algorithm = make(cls, **options)
    randomise(algorithm)
    batch = batch_of(algorithm, windows(BOX))
    losses = []
    for context in (contextlib.nullcontext, torch.no_grad):
        torch.manual_seed(0)
        with context():
            losses.append(LossFunction(algorithm)(batch)[0].loss)
    torch.testing.assert_close(*losses)


@pytest.mark.parametrize("cls", [SacAlgorithm, DdpgAlgorithm])
def test_the_actor_learns_from_clipped_slopes(cls):
    """With a limit so small that all are clipped, a step is ±limit per element."""
    algorithm = make(cls, dqda_clipping=1e-3)
    observation = torch.randn(5, 3)
    features, _ = algorithm._critics.online.encode(observation)
    vector = torch.zeros(5, 2, requires_grad=True)
    if cls is SacAlgorithm:
        sample = PolicySample(vector, None, Entropies())
        value = algorithm._policy_value(features, torch.zeros(0), sample)
    else:
        algorithm._policy.forward = lambda inputs, state=(): (vector, state)
        _, value, _ = algorithm._evaluate_policy(observation, features, ())
    (slope,) = torch.autograd.grad(value.sum(), vector)
    assert slope.abs().max().item() == pytest.approx(1e-3, rel=1e-3)
    assert (slope.abs() > 0.99e-3).float().mean() > 0.8


# Entropy


def test_the_target_entropy_of_alf_by_hand():
    # A tenth of the range of each element: log 0.2 and log 1 in units of actions.
    algorithm = make(target_entropy=concentrated_entropy)
    target = algorithm._temperatures["continuous"].target_entropy
    assert target == pytest.approx(math.log(0.2) + math.log(1.0))
    with pytest.raises(ValueError, match="share must lie in"):
        concentrated_entropy(algorithm._actions, share=0.0)


def test_targets_that_no_policy_reaches_are_refused():
    largest = math.log(2 * 10)
    make(target_entropy=0.99 * largest)
    with pytest.raises(ConfigError, match=r"^target_entropy must be .* below 2\.996"):
        make(target_entropy=1.01 * largest)
    with pytest.raises(ConfigError, match=r"^target_entropy must be a number"):
        make(target_entropy=-math.inf)
    make(action_spec=MIXED, discrete_target_entropy=1.09)
    with pytest.raises(ConfigError, match=r"^discrete_target_entropy .* below 1\.099"):
        make(action_spec=MIXED, discrete_target_entropy=math.log(3))
    with pytest.raises(ConfigError, match=r"^switch_target_entropy .* below 0\.6931"):
        TaacAlgorithm(OBSERVATION, BOX, switch_target_entropy=0.7)
    with pytest.raises(ConfigError, match=r"^target_entropy must be"):
        TaacAlgorithm(OBSERVATION, BOX, target_entropy=3.0)
    one_hot = functools.partial(ActorDistributionNetwork, one_hot=True)
    with pytest.raises(ConfigError, match=r"^target_entropy .* below 0\.6931"):
        make(actor_network_ctor=one_hot, target_entropy=0.7)
    for build in (make, functools.partial(TaacAlgorithm, OBSERVATION, BOX)):
        with pytest.raises(ConfigError, match="target_entropy of a one-hot choice"):
            build(actor_network_ctor=one_hot)


@pytest.mark.parametrize(
    ("action_spec", "settings", "message"),
    [
        (CHOICE, {"target_entropy": -1.0}, "target_entropy .* no continuous part"),
        (CHOICE, {"dqda_clipping": 1.0}, "dqda_clipping .* no continuous part"),
        (BOX, {"discrete_target_entropy": 0.1}, "discrete_target_entropy .* discrete"),
        (
            BOX,
            {"target_kld_per_dim": -1.0},
            "target_kld_per_dim .* no prior_actor_ctor",
        ),
        (
            BOX,
            {"prior_actor_ctor": Actor, "target_entropy": -1.0},
            "target_entropy .* prior_actor_ctor",
        ),
        (
            BOX,
            {"learn_alpha": False, "target_entropy": -1.0},
            "target_entropy .* keeps",
        ),
        (
            CHOICE,
            {"learn_alpha": False, "discrete_target_entropy": 0.1},
            "discrete_target_entropy .* keeps",
        ),
        (
            BOX,
            {
                "learn_alpha": False,
                "prior_actor_ctor": Actor,
                "target_kld_per_dim": 1.0,
            },
            "target_kld_per_dim .* keeps",
        ),
        (
            BOX,
            {"learn_alpha": False, "alpha_optimizer": Adam(lr=0.1)},
            "alpha_optimizer .* keeps",
        ),
        (BOX, {"learn_alpha": False, "max_log_alpha": -1.0}, "max_log_alpha .* keeps"),
    ],
)
def test_settings_without_effect_are_refused(action_spec, settings, message):
    with pytest.raises(ConfigError, match=f"^{message}"):
        make(action_spec=action_spec, **settings)


def test_fixed_temperatures_need_no_target():
    one_hot = functools.partial(ActorDistributionNetwork, one_hot=True)
    make(actor_network_ctor=one_hot, learn_alpha=False)
    make(prior_actor_ctor=Actor, learn_alpha=False)
    with pytest.raises(ConfigError, match="switch_target_entropy has no effect"):
        TaacAlgorithm(OBSERVATION, BOX, learn_alpha=False, switch_target_entropy=0.1)
    with pytest.raises(ConfigError, match="alpha_optimizer has no effect"):
        TaacAlgorithm(OBSERVATION, BOX, learn_alpha=False, alpha_optimizer=Adam())


def test_log_alpha_has_a_limit():
    algorithm = make(max_log_alpha=-1.0, initial_alpha=1.0)
    algorithm.after_update((), ())
    alpha = algorithm._temperatures.alpha.continuous
    assert alpha.item() == pytest.approx(math.exp(-1.0))


# Policies


@pytest.mark.parametrize(
    "cls",
    [
        SacAlgorithm,
        RedqAlgorithm,
        OacAlgorithm,
        CqlAlgorithm,
        CrossqAlgorithm,
        TaacAlgorithm,
    ],
)
def test_policies_that_leave_the_bounds_are_refused_when_they_are_built(cls):
    message = "actor_network_ctor: action: .* Take SquashedActorNetwork"
    for kind in ("tanh_mixture", "normal"):
        actor = functools.partial(ActorDistributionNetwork, continuous_projection=kind)
        with pytest.raises(ConfigError, match=message):
            cls(OBSERVATION, BOX, actor_network_ctor=actor)
    cls(OBSERVATION, BOX, actor_network_ctor=actor, is_eval=True)  # of an older run


def test_a_regression_on_actions_takes_any_policy():
    for cls in (AwacAlgorithm, IqlAlgorithm):
        algorithm = make(cls, actor_network_ctor=ActorDistributionNetwork)
        ((_, _, part),) = algorithm._policy.parts()
        assert distributions.is_unbounded(part)


# Schedules and resets


def test_tau_and_periods_follow_schedules():
    progress = Progress()
    source, target = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    tau = LinearScheduler(((0.0, 0.5), (1.0, 0.1)), "percent")
    updater = TargetUpdater([source], [target], tau=tau)
    follow_progress(vars(updater).values(), progress)
    for percent, expected in ((0.0, 0.5), (1.0, 0.1)):
        progress.percent = percent
        with torch.no_grad():
            source.weight.fill_(1.0)
            target.weight.fill_(0.0)
        updater()
        assert target.weight.item() == pytest.approx(expected)
    counter = UpdateCounter(LinearScheduler(((0.0, 2.0), (1.0, 3.0)), "percent"))
    counter._schedule.follow(progress)
    progress.percent = 0.0
    assert [counter.advance() for _ in range(4)] == [False, True, False, True]
    progress.percent = 1.0
    counter.advance()
    assert [counter.advance() for _ in range(4)] == [True, False, False, True]
    with pytest.raises(ValueError, match="target_update_tau must lie in"):
        TargetUpdater([source], [target], tau=LinearScheduler(((0, 2.0), (1, 1.0))))


@pytest.mark.parametrize("cls", [SacAlgorithm, DdpgAlgorithm])
def test_networks_begin_anew_once_in_a_period(cls):
    algorithm = make(cls, parameter_reset_period=2)
    algorithm.setup_training()
    before = [p.clone() for p in algorithm.parameters()]
    loss = sum(p.square().sum() for p in algorithm.parameters() if p.requires_grad)
    loss.backward()
    (_, optimizer), *_ = algorithm.optimizers()
    optimizer.apply_gradients()
    for at_least, at_most in ((0.0, 0.1), (0.9, 1.0)):
        algorithm.after_update((), ())
        changed = [
            not torch.allclose(a, b, atol=0.01)
            for a, b in zip(before, algorithm.parameters(), strict=True)
            if b.numel() > 8
        ]
        assert at_least <= sum(changed) / len(changed) <= at_most
    assert not optimizer._torch_optimizer.state
    online, target = algorithm._critics.online, algorithm._critics.target
    for a, b in zip(online.parameters(), target.parameters(), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(ValueError, match="parameter_reset_period must be positive"):
        make(parameter_reset_period=0)


def test_networks_that_begin_anew_are_those_of_the_first_rank(monkeypatch):
    """Each rank draws by a generator of its own."""
    algorithm = make(parameter_reset_period=1)
    algorithm.setup_training()

    def of_the_first(tensors):
        for tensor in tensors:
            tensor.fill_(0.25)

    monkeypatch.setattr(ranks, "broadcast_", of_the_first)
    algorithm.after_update((), ())
    networks = algorithm._policy, algorithm._critics.online, algorithm._critics.target
    for network in networks:
        for parameter in network.parameters():
            assert parameter.eq(0.25).all()
