from __future__ import annotations

import functools

import pytest
import torch

from alf_lite import nest
from alf_lite.algorithms.ddpg_algorithm import DdpgAlgorithm, DdpgInfo, DdpgState
from alf_lite.algorithms.learning.batch_loss import LossFunction, batch_loss
from alf_lite.algorithms.learning.training_batches import TrainingBatch, transpose
from alf_lite.algorithms.learning.updates import update_with_gradient
from alf_lite.data_structures import BatchInfo, StepType, TimeStep
from alf_lite.distributions.exploration import GaussianNoise, OrnsteinUhlenbeckNoise
from alf_lite.networks.actor_networks import ActorNetwork
from alf_lite.networks.critic_networks import CriticNetwork
from alf_lite.networks.encoding_networks import EncodingNetwork
from alf_lite.networks.recurrent_networks import GRUEncodingNetwork
from alf_lite.optimizers.optimizers import Adam
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec

OBSERVATION = TensorSpec((3,))
BOX = BoundedTensorSpec((2,), torch.float32, [-1.0, 0.0], [1.0, 10.0])
NESTED = {"b": BOX, "a": BoundedTensorSpec((), torch.float32, -1, 1)}
FIRST, MID, LAST = StepType.FIRST, StepType.MID, StepType.LAST
GAMMA = 0.9

Actor = functools.partial(ActorNetwork, fc_layer_params=(16,))
Critic = functools.partial(CriticNetwork, joint_fc_layer_params=(16,))


def make(cls=DdpgAlgorithm, action_spec=BOX, *, spread: float = 0.3, **kwargs):
    """With random parameters, so that no two networks agree."""
    arguments = {
        "gamma": GAMMA,
        "actor_network_ctor": Actor,
        "critic_network_ctor": Critic,
        "optimizer": Adam(lr=3e-3),
        **kwargs,
    }
    torch.manual_seed(0)
    algorithm = cls(OBSERVATION, action_spec, **arguments)
    with torch.no_grad():
        for parameter in algorithm.parameters():
            parameter.add_(spread * torch.randn_like(parameter))
    return algorithm


def windows(action_spec=BOX, length: int = 2, reward_dims=()) -> TimeStep:
    """[B=5, T] of random steps; the second row terminates, the third hits a limit."""
    torch.manual_seed(1)
    step_type = torch.full((5, length), MID, dtype=torch.int32)
    step_type[1:3, 1] = LAST
    discount = torch.ones(5, length)
    discount[1, 1] = 0.0
    if length > 2:
        step_type[1:3, 2] = FIRST
    return TimeStep(
        step_type=step_type,
        reward=torch.randn(5, length, *reward_dims),
        discount=discount,
        observation=torch.randn(5, length, 3),
        prev_action=nest.map_structure(lambda s: s.sample((5, length)), action_spec),
    )


def batch_of(algorithm: DdpgAlgorithm, steps: TimeStep) -> TrainingBatch:
    with torch.no_grad():
        inputs, info = algorithm.preprocess_experience(steps, (), BatchInfo())
    inputs, info, valid = transpose((inputs, info, steps.step_type != LAST))
    return TrainingBatch(inputs, info, (), valid)


def info_of(algorithm: DdpgAlgorithm, steps: TimeStep) -> DdpgInfo:
    batch = batch_of(algorithm, steps)
    state = algorithm.get_initial_train_state(batch.valid.shape[1])
    return LossFunction(algorithm).info(batch, state)[0]


def scaled(action: torch.Tensor) -> torch.Tensor:
    """BOX → [-1, 1], by hand."""
    return torch.stack([action[:, 0], action[:, 1] / 5 - 1], dim=1)


@pytest.mark.parametrize("num_critics", [1, 3])
def test_the_losses_are_those_of_a_naive_computation(num_critics):
    algorithm = make(num_critics=num_critics)
    steps = windows()
    loss = algorithm.calc_loss(info_of(algorithm, steps))
    assert loss.loss.shape == (1, 5)
    observation, next_observation = steps.observation.unbind(1)
    next_action = algorithm._target_policy(next_observation)[0]
    next_q = algorithm._critics.target((next_observation, next_action))[0]
    y = steps.reward[:, 1] + GAMMA * steps.discount[:, 1] * next_q.min(1).values
    taken = scaled(steps.prev_action[:, 1])
    q = algorithm._critics.online((observation, taken))[0]
    critic_loss = ((y[:, None] - q) ** 2).sum(1)
    action = algorithm._policy(observation)[0]
    actor_loss = -algorithm._critics.online((observation, action))[0][:, 0]
    torch.testing.assert_close(loss.extra.critic_loss[0], critic_loss)
    torch.testing.assert_close(loss.extra.actor_loss[0], actor_loss)
    torch.testing.assert_close(loss.loss[0], critic_loss + actor_loss)
    torch.testing.assert_close(loss.priority, (y[:, None] - q).abs().mean(1))


def test_a_termination_is_not_bootstrapped_and_a_time_limit_is():
    algorithm = make()
    discount = info_of(algorithm, windows()).discount
    assert discount[0, :3].tolist() == pytest.approx([GAMMA, 0.0, GAMMA])


@pytest.mark.parametrize(
    ("loss_name", "module"),
    [("critic_loss", "_critics.online"), ("actor_loss", "_policy")],
)
def test_every_loss_reaches_its_own_parameters_only(loss_name, module):
    algorithm = make()
    loss = algorithm.calc_loss(info_of(algorithm, windows()))
    getattr(loss.extra, loss_name).sum().backward()
    for name, parameter in algorithm.named_parameters():
        is_own = name.startswith(module)
        has_gradient = parameter.grad is not None and bool(parameter.grad.any())
        assert has_gradient == is_own, name


def test_one_backward_pass_gives_both_networks_the_gradient_of_their_own_loss():
    gradients = {}
    for name in ("critic_loss", "actor_loss", "loss"):
        algorithm = make()
        loss = algorithm.calc_loss(info_of(algorithm, windows()))
        (loss.loss if name == "loss" else getattr(loss.extra, name)).sum().backward()
        gradients[name] = {
            n: p.grad for n, p in algorithm.named_parameters() if p.grad is not None
        }
    for own in (gradients["critic_loss"], gradients["actor_loss"]):
        for name, gradient in own.items():
            torch.testing.assert_close(gradients["loss"][name], gradient)


def test_a_reward_of_several_dimensions_is_weighted():
    weights = torch.tensor([1.0, -2.0])
    algorithm = make(
        reward_spec=TensorSpec((2,)), reward_weights=weights.tolist(), num_critics=2
    )
    steps = windows(reward_dims=(2,))
    info = info_of(algorithm, steps)
    assert info.q.shape == (1, 5, 2, 2)
    observation, next_observation = steps.observation.unbind(1)
    next_action = algorithm._target_policy(next_observation)[0]
    next_q = algorithm._critics.target((next_observation, next_action))[0]
    expected = torch.stack([min(q, key=lambda v: v @ weights) for q in next_q])
    torch.testing.assert_close(info.next_value[0], expected)
    action = algorithm._policy(observation)[0]
    value = algorithm._critics.online((observation, action))[0][:, 0] @ weights
    torch.testing.assert_close(info.policy_value[0], value)
    loss = algorithm.calc_loss(info)
    y = steps.reward[:, 1] + GAMMA * steps.discount[:, 1, None] * expected
    error = y[:, None] - info.q[0]
    torch.testing.assert_close(loss.extra.critic_loss[0], (error**2).sum((1, 2)))
    torch.testing.assert_close(loss.priority, (error @ weights).abs().mean(1))


@pytest.mark.parametrize("period", [1, 2, 3])
def test_the_actor_is_updated_once_per_period(period):
    algorithm = make(actor_update_period=period)
    batch = batch_of(algorithm, windows())
    moved = []
    for _ in range(6):
        before = {n: p.clone() for n, p in algorithm.named_parameters()}
        loss_info, info = batch_loss(algorithm, batch)
        update_with_gradient(algorithm, loss_info)
        algorithm.after_update(batch.inputs, info)
        changed = {
            name.split(".")[0]
            for name, p in algorithm.named_parameters()
            if not torch.equal(p, before[name])
        }
        assert "_critics" in changed
        moved.append("_policy" in changed)
    assert moved == [n % period == 0 for n in range(1, 7)]


def test_an_actor_with_its_own_optimizer_may_pause():
    algorithm = make(
        optimizer=None,
        actor_optimizer=Adam(lr=1e-4, gradient_clipping=1.0),
        critic_optimizer=Adam(lr=1e-3),
        actor_update_period=2,
    )
    batch = batch_of(algorithm, windows())
    actor = [p.clone() for p in algorithm._policy.parameters()]
    loss_info, info = batch_loss(algorithm, batch)
    norms = update_with_gradient(algorithm, loss_info)
    algorithm.after_update(batch.inputs, info)
    assert norms[0] == 0
    assert all(map(torch.equal, actor, algorithm._policy.parameters()))
    assert loss_info.extra.actor_loss == ()
    update_with_gradient(algorithm, batch_loss(algorithm, batch)[0])
    assert not all(map(torch.equal, actor, algorithm._policy.parameters()))


def test_the_targets_of_both_networks_follow_and_get_no_gradient():
    algorithm = make(target_update_tau=1.0, target_update_period=2)
    pairs = [
        (algorithm._policy, algorithm._target_policy),
        (algorithm._critics.online, algorithm._critics.target),
    ]
    algorithm.after_update(TimeStep(), ())
    for source, target in pairs:
        assert not all(map(torch.equal, source.parameters(), target.parameters()))
    algorithm.after_update(TimeStep(), ())
    for source, target in pairs:
        assert all(map(torch.equal, source.parameters(), target.parameters()))
        assert not any(p.requires_grad for p in target.parameters())


def test_a_resumed_run_continues_the_periods():
    algorithm = make(actor_update_period=3, target_update_period=2)
    algorithm.after_update(TimeStep(), ())
    resumed = make(actor_update_period=3, target_update_period=2)
    resumed.load_state_dict(algorithm.state_dict())
    assert resumed._critics.target_updater.is_due
    resumed.after_update(TimeStep(), ())
    assert resumed._actor_updates.is_due


def inputs(num_rows: int, action_spec=BOX) -> TimeStep:
    return TimeStep(
        step_type=torch.full((num_rows,), MID, dtype=torch.int32),
        observation=torch.ones(num_rows, 3),
    )


def test_prediction_has_no_noise_and_rollout_has():
    algorithm = make(
        exploration_noise_ctor=functools.partial(GaussianNoise, std=0.1), spread=0.05
    )
    steps = inputs(5000)
    greedy = algorithm.predict_step(steps, DdpgState()).output
    vector, _ = algorithm._policy(steps.observation)
    torch.testing.assert_close(scaled(greedy), vector)
    step = algorithm.rollout_step(steps, DdpgState())
    assert step.info == ()
    noise = scaled(step.output) - vector
    assert noise.std(0).tolist() == pytest.approx([0.1, 0.1], rel=0.1)
    assert noise.mean(0).tolist() == pytest.approx([0.0, 0.0], abs=0.01)


def test_noisy_actions_stay_between_the_bounds():
    noise = functools.partial(GaussianNoise, std=2.0)
    action = make(exploration_noise_ctor=noise).rollout_step(inputs(500), DdpgState())
    low, high = torch.tensor(BOX.minimum), torch.tensor(BOX.maximum)
    assert ((low <= action.output) & (action.output <= high)).all()


def test_correlated_noise_has_a_row_for_every_environment_in_the_rollout_state():
    noise = functools.partial(OrnsteinUhlenbeckNoise, std=0.1)
    algorithm = make(exploration_noise_ctor=noise)
    assert nest.is_empty(algorithm.train_state_spec)
    assert algorithm.is_temporally_independent
    state = algorithm.get_initial_rollout_state(4)
    assert state.noise.shape == (4, 2)
    first = algorithm.rollout_step(inputs(4), state)
    nest.assert_same_structure(first.state, state)
    assert len(first.state.noise.unique(dim=0)) == 4
    second = algorithm.rollout_step(inputs(4), first.state)
    increment = second.state.noise - 0.85 * first.state.noise
    assert 0 < increment.abs().max() < 0.5
    assert nest.is_empty(algorithm.predict_state_spec)


def test_actions_in_a_nest_come_back_as_that_nest():
    algorithm = make(action_spec=NESTED)
    output = algorithm.rollout_step(
        inputs(3), algorithm.get_initial_rollout_state(3)
    ).output
    nest.assert_same_structure(output, NESTED)
    assert output["a"].shape == (3,)
    assert output["b"].shape == (3, 2)
    info = info_of(algorithm, windows(NESTED))
    algorithm.calc_loss(info).loss.sum().backward()


class CountingEncoder(EncodingNetwork):
    """Has a state that does not matter: every path must give the same result."""

    def __init__(self, input_spec, **kwargs) -> None:
        super().__init__(input_spec, **kwargs)
        self._state_spec = TensorSpec(())

    def forward(self, inputs, state=()):
        return super().forward(inputs)[0], state + 1


@pytest.mark.parametrize("n", [1, 2])
def test_networks_with_memory_learn_the_same_targets(n):
    plain = make(n_step=n)
    with_state = make(
        n_step=n,
        actor_network_ctor=functools.partial(
            Actor, encoding_network_ctor=CountingEncoder
        ),
        critic_network_ctor=functools.partial(
            Critic, encoding_network_ctor=CountingEncoder
        ),
    )
    with_state.load_state_dict(plain.state_dict())
    assert not with_state.is_temporally_independent
    steps = windows(length=4)
    expected = plain.calc_loss(info_of(plain, steps))
    loss = with_state.calc_loss(info_of(with_state, steps))
    assert loss.loss.shape == expected.loss.shape == (4 - n, 5)
    valid = (steps.step_type[:, : 4 - n] != LAST).T
    torch.testing.assert_close(loss.loss[valid], expected.loss[valid])
    torch.testing.assert_close(loss.priority, expected.priority)


def test_recurrent_networks_keep_all_their_states():
    encoder = functools.partial(GRUEncodingNetwork, hidden_size=(8,))
    algorithm = make(
        actor_network_ctor=functools.partial(Actor, encoding_network_ctor=encoder),
        critic_network_ctor=functools.partial(Critic, encoding_network_ctor=encoder),
    )
    state = algorithm.get_initial_rollout_state(5)
    step = algorithm.rollout_step(inputs(5), state)
    nest.assert_same_structure(step.state, state)
    assert all(t.abs().sum() > 0 for t in nest.flatten(step.state))
    # A stored state may start training.
    batch = batch_of(algorithm, windows(length=4))
    stored = nest.map_structure(lambda t: t.unsqueeze(0), step.state)
    loss_info, _ = batch_loss(algorithm, batch._replace(state=stored))
    loss_info.loss.backward()
    for network in (algorithm._policy._network, algorithm._critics.online):
        assert network._encoder._cells[0].weight_hh.grad.abs().sum() > 0


def reward_of_the_bandit(action):
    distance = (action - torch.tensor([0.5, 8.0])) / torch.tensor([1.0, 5.0])
    return -distance.square().sum(-1)


def bandit() -> TimeStep:
    """512 one-step episodes; the best action is (0.5, 8)."""
    torch.manual_seed(3)
    action = BOX.sample((512, 2))
    step_type = torch.tensor([FIRST, LAST], dtype=torch.int32).expand(512, 2)
    return TimeStep(
        step_type=step_type,
        reward=reward_of_the_bandit(action),
        discount=(step_type != LAST).float(),
        observation=torch.ones(512, 2, 3),
        prev_action=action,
    )


def check_solves_the_bandit(algorithm: DdpgAlgorithm, num_updates: int) -> None:
    batch = batch_of(algorithm, bandit())
    for _ in range(num_updates):
        loss_info, info = batch_loss(algorithm, batch)
        update_with_gradient(algorithm, loss_info)
        algorithm.after_update(batch.inputs, info)
    action = algorithm.predict_step(inputs(1), DdpgState()).output
    assert reward_of_the_bandit(action).item() > -0.15  # at random -1.1


def test_the_best_action_of_a_bandit_is_found():
    critic = functools.partial(Critic, joint_fc_layer_params=(64,))
    algorithm = make(
        spread=0.0,
        critic_network_ctor=critic,
        optimizer=Adam(lr=1e-2),
        actor_optimizer=Adam(lr=1e-3),
    )
    check_solves_the_bandit(algorithm, 200)


def test_evaluation_needs_the_actor_only():
    algorithm = make(is_eval=True, optimizer=None)
    modules = {name.split(".")[0] for name, _ in algorithm.named_parameters()}
    assert modules == {"_policy"}
    algorithm.predict_step(inputs(2), DdpgState())


def test_unsupported_actions_name_an_algorithm_that_supports_them():
    choice = BoundedTensorSpec((), torch.int64, 0, 2)
    with pytest.raises(ValueError, match=r"DdpgAlgorithm.*\['y'\].*DqnAlgorithm for"):
        make(action_spec={"x": BOX, "y": choice})
    with pytest.raises(ValueError, match="PPOAlgorithm for unbounded"):
        make(action_spec=TensorSpec((2,)))
    with pytest.raises(ValueError, match="n_step must be"):
        make(n_step=-1)
    with pytest.raises(ValueError, match="period must be a positive integer"):
        make(actor_update_period=0)
