from __future__ import annotations

import functools
import math

import pytest
import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.algorithms.dqn_algorithm import DqnAlgorithm, DqnInfo, DqnState
from alf_lite.algorithms.learning.batch_loss import LossFunction, batch_loss
from alf_lite.algorithms.learning.training_batches import TrainingBatch, transpose
from alf_lite.algorithms.learning.updates import update_with_gradient
from alf_lite.algorithms.parts.return_heads import CategoricalHead, QuantileHead
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import BatchInfo, StepType, TimeStep
from alf_lite.networks.recurrent_networks import GRUEncodingNetwork
from alf_lite.networks.value_networks import QNetwork
from alf_lite.optimizers.optimizers import Adam
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec

NUM_STATES = 4
OBSERVATION = TensorSpec((NUM_STATES,))  # one-hot
CHOICE = BoundedTensorSpec((), torch.int64, 0, 2)
FIRST, MID, LAST = StepType.FIRST, StepType.MID, StepType.LAST
GAMMA = 0.9

Linear = functools.partial(QNetwork, fc_layer_params=())


def dqn(action_spec=CHOICE, observation_spec=OBSERVATION, **kwargs) -> DqnAlgorithm:
    arguments = {
        "gamma": GAMMA,
        "q_network_ctor": Linear,
        "optimizer": Adam(lr=0.05),
        **kwargs,
    }
    return DqnAlgorithm(observation_spec, action_spec, **arguments)


def set_table(network: QNetwork, table: Tensor) -> None:
    """``table`` [S, outputs]: the outputs in every state."""
    linear = network._advantage[-1]
    with torch.no_grad():
        linear.weight.copy_(table.T)
        linear.bias.zero_()


def windows(
    states: list[list[int]],
    step_types: list[list[int]],
    rewards: list[list[float]],
    discounts: list[list[float]],
    actions: list[list[int]],
) -> TimeStep:
    """[B, T]; ``actions`` are those taken at the steps."""
    taken = torch.tensor(actions)
    return TimeStep(
        step_type=torch.tensor(step_types, dtype=torch.int32),
        reward=torch.tensor(rewards),
        discount=torch.tensor(discounts),
        observation=torch.eye(NUM_STATES)[torch.tensor(states)],
        prev_action=taken.roll(1, dims=1),
    )


def batch_of(algorithm: DqnAlgorithm, steps: TimeStep) -> TrainingBatch:
    """The mini-batch of these windows, as training makes it."""
    with torch.no_grad():
        inputs, info = algorithm.preprocess_experience(steps, (), BatchInfo())
    valid = steps.step_type != LAST
    inputs, info, valid = transpose((inputs, info, valid))
    return TrainingBatch(inputs, info, (), valid)


def losses_of(algorithm: DqnAlgorithm, steps: TimeStep):
    """The LossInfo of ``calc_loss`` before it is averaged."""
    batch = batch_of(algorithm, steps)
    state = algorithm.get_initial_train_state(batch.valid.shape[1])
    info, _ = LossFunction(algorithm).info(batch, state)
    return algorithm.calc_loss(info)


# Three windows: one goes on, one terminates at its second step, one runs into a limit.
STATES = [[0, 1, 2], [1, 2, 0], [2, 3, 0]]
STEP_TYPES = [[FIRST, MID, MID], [MID, LAST, FIRST], [MID, LAST, FIRST]]
REWARDS = [[0.0, 1.0, 2.0], [9.0, -1.0, 0.0], [9.0, 3.0, 0.0]]
DISCOUNTS = [[1.0, 1.0, 1.0], [1.0, 0.0, 1.0], [1.0, 1.0, 1.0]]
ACTIONS = [[2, 0, 1], [1, 0, 0], [0, 2, 2]]
ONLINE = torch.tensor([[0.0, 1, 2], [3, 5, 4], [1, 0, 0.5], [0, 0, 1]])
TARGET = torch.tensor([[1.0, 1, 1], [10, 20, 30], [7, 8, 9], [4, 5, 6]])


def three_windows() -> TimeStep:
    return windows(STATES, STEP_TYPES, REWARDS, DISCOUNTS, ACTIONS)


def with_tables(**kwargs) -> DqnAlgorithm:
    algorithm = dqn(**kwargs)
    set_table(algorithm._q_network, ONLINE)
    set_table(algorithm._target_q_network, TARGET)
    return algorithm


def expected_td_errors(double: bool, n: int) -> list[float]:
    """δ of the first step of every window, by a loop."""
    errors = []
    for b in range(3):
        target, discount, t = 0.0, 1.0, 0
        while t < n and STEP_TYPES[b][t] != LAST:
            t += 1
            target += discount * REWARDS[b][t]
            discount *= GAMMA * DISCOUNTS[b][t]
        chooser = ONLINE if double else TARGET
        best = chooser[STATES[b][t]].argmax()
        target += discount * TARGET[STATES[b][t], best].item()
        errors.append(target - ONLINE[STATES[b][0], ACTIONS[b][0]].item())
    return errors


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("n", [1, 2])
def test_the_loss_is_the_huber_loss_of_a_naive_loop(double, n):
    algorithm = with_tables(double=double, n_step=n)
    loss = losses_of(algorithm, three_windows())
    assert loss.loss.shape == (3 - n, 3)
    errors = expected_td_errors(double, n)
    huber = [0.5 * e * e if abs(e) <= 1 else abs(e) - 0.5 for e in errors]
    assert loss.loss[0].tolist() == pytest.approx(huber, rel=1e-5)
    sizes = [abs(e) for e in errors]
    assert loss.extra.td_error[0].tolist() == pytest.approx(sizes, rel=1e-5)
    if n == 2:
        assert loss.priority.tolist() == pytest.approx(sizes, rel=1e-5)


def test_by_hand_double_q_learning_takes_the_value_of_the_online_choice():
    loss = losses_of(with_tables(double=True), three_windows())
    # In state 1 the online network prefers action 1: 1 + 0.9 · 20 − 2.
    assert loss.extra.td_error[0, 0].item() == pytest.approx(17.0)
    loss = losses_of(with_tables(double=False), three_windows())
    assert loss.extra.td_error[0, 0].item() == pytest.approx(1 + 0.9 * 30 - 2)


def test_a_termination_is_not_bootstrapped_and_a_time_limit_is():
    loss = losses_of(with_tables(double=False), three_windows())
    assert loss.extra.td_error[0, 1].item() == pytest.approx(abs(-1 - 5))
    assert loss.extra.td_error[0, 2].item() == pytest.approx(3 + 0.9 * 6 - 1)


def test_a_window_that_begins_with_last_has_priority_0():
    steps = windows([[2, 0]], [[LAST, FIRST]], [[5.0, 0.0]], [[0.0, 1.0]], [[0, 1]])
    assert losses_of(with_tables(), steps).priority.tolist() == [0.0]


def test_only_the_online_network_gets_a_gradient_and_only_for_the_action_taken():
    algorithm = with_tables()
    loss_info, _ = batch_loss(algorithm, batch_of(algorithm, three_windows()))
    loss_info.loss.backward()
    assert all(p.grad is None for p in algorithm._target_q_network.parameters())
    gradient = algorithm._q_network._advantage[-1].weight.grad.T  # [S, A]
    taken = torch.zeros(NUM_STATES, 3, dtype=torch.bool)
    for b, t in ((0, 0), (0, 1), (1, 0), (2, 0)):  # the steps that are not LAST
        taken[STATES[b][t], ACTIONS[b][t]] = True
    assert torch.equal(gradient != 0, taken)


def test_the_target_network_follows_after_an_update():
    algorithm = with_tables(target_update_tau=0.25, target_update_period=2)
    before = TARGET.clone()
    algorithm.after_update(TimeStep(), ())
    table = algorithm._target_q_network._advantage[-1].weight
    torch.testing.assert_close(table.T, before)
    algorithm.after_update(TimeStep(), ())
    torch.testing.assert_close(table.T.detach(), 0.75 * before + 0.25 * ONLINE)


@pytest.mark.parametrize(("tau", "period"), [(1.0, 128), (0.5, 1)])
def test_the_target_is_copied_from_time_to_time_or_follows_always(tau, period):
    algorithm = with_tables(target_update_tau=tau)
    table = algorithm._target_q_network._advantage[-1].weight
    before = table.clone()
    for _ in range(period):
        assert torch.equal(table, before)
        algorithm.after_update(TimeStep(), ())
    assert not torch.equal(table, before)


def test_values_that_the_mask_rules_out_are_no_targets():
    mask = BoundedTensorSpec((3,), torch.int8, 0, 1)
    algorithm = dqn(
        observation_spec={"x": OBSERVATION, "mask": mask},
        action_mask_key="mask",
        double=False,
    )
    set_table(algorithm._q_network, ONLINE)
    set_table(algorithm._target_q_network, TARGET)
    steps = three_windows()
    allowed = torch.ones(3, 3, 3, dtype=torch.int8)
    allowed[0, 1, 2] = 0  # in state 1, the best action has the value 30
    steps = steps._replace(observation={"x": steps.observation, "mask": allowed})
    td_error = losses_of(algorithm, steps).extra.td_error
    assert td_error[0, 0].item() == pytest.approx(1 + 0.9 * 20 - 2)


def time_step(states: list[int], **observation) -> TimeStep:
    batch_size = len(states)
    x = torch.eye(NUM_STATES)[states]
    return TimeStep(
        step_type=torch.full((batch_size,), MID, dtype=torch.int32),
        reward=torch.zeros(batch_size),
        discount=torch.ones(batch_size),
        observation={"x": x, **observation} if observation else x,
    )


def test_prediction_is_greedy_and_rollout_explores():
    torch.manual_seed(0)
    algorithm = with_tables(rollout_epsilon_greedy=0.5)
    steps = time_step([1] * 3000)
    assert (algorithm.predict_step(steps, DqnState()).output == 1).all()
    step = algorithm.rollout_step(steps, DqnState())
    explored = (step.output != 1).float().mean().item()
    assert explored == pytest.approx(1 / 3, abs=0.03)
    assert step.info == ()
    assert step.output.dtype == torch.int64


def test_prediction_uses_the_epsilon_of_the_trainer_and_not_that_of_the_rollout():
    torch.manual_seed(0)
    config = TrainerConfig(num_iterations=1, epsilon_greedy=1.0)
    algorithm = with_tables(rollout_epsilon_greedy=0.0, config=config)
    steps = time_step([1] * 3000)
    uniform = algorithm.predict_step(steps, DqnState()).output
    assert (uniform == 1).float().mean().item() == pytest.approx(1 / 3, abs=0.03)
    assert (algorithm.rollout_step(steps, DqnState()).output == 1).all()


def test_a_mask_rules_actions_out_whether_greedy_or_random():
    mask_spec = BoundedTensorSpec((3,), torch.int8, 0, 1)
    algorithm = dqn(
        observation_spec={"x": OBSERVATION, "mask": mask_spec},
        action_mask_key="mask",
        rollout_epsilon_greedy=0.7,
    )
    set_table(algorithm._q_network, ONLINE)
    mask = torch.tensor([[1, 0, 1]], dtype=torch.int8).expand(500, 3)
    steps = time_step([1] * 500, mask=mask)
    assert (algorithm.predict_step(steps, DqnState()).output == 2).all()
    assert set(algorithm.rollout_step(steps, DqnState()).output.tolist()) == {0, 2}


MANY = BoundedTensorSpec((18,), torch.int64, 0, [10, 10, *[1] * 16])


def test_many_components_act_and_learn_each_on_its_own():
    torch.manual_seed(0)
    algorithm = dqn(MANY, rollout_epsilon_greedy=1.0)
    steps = time_step([0] * 400)
    action = algorithm.rollout_step(steps, DqnState()).output
    assert action.shape == (400, 18)
    assert action.amax(0).tolist() == [10, 10, *[1] * 16]
    assert action.amin(0).tolist() == [0] * 18
    window = nest.map_structure(
        lambda t: torch.stack([t, t], dim=1), steps._replace(prev_action=action)
    )
    loss = losses_of(algorithm, window)
    assert loss.loss.shape == (1, 400)
    loss.loss.sum().backward()
    gradient = algorithm._q_network._advantage[-1].weight.grad
    per_output = gradient.abs().sum(1).unflatten(0, (18, 11)) > 0
    exists = torch.ones(18, 11, dtype=torch.bool)
    exists[2:, 2:] = False
    assert not per_output[~exists].any()
    assert per_output.any(1).all()


def test_the_loss_is_the_mean_over_the_components():
    algorithm = dqn(BoundedTensorSpec((2,), torch.int64, 0, 1))
    info = DqnInfo(
        outputs=torch.tensor([[[[1.0], [2.0]]]]),
        next_outputs=torch.tensor([[[[4.0], [0.0]]]]),
        reward=torch.tensor([[1.0]]),
        discount=torch.tensor([[0.5]]),
        num_steps=torch.ones(1, 1, dtype=torch.int64),
        step_type=torch.tensor([[MID]]),
    )
    loss = algorithm.calc_loss(info)
    # δ = 1 + 2 − 1 = 2 and 1 + 0 − 2 = −1
    assert loss.loss.item() == pytest.approx((1.5 + 0.5) / 2)
    assert loss.priority.item() == pytest.approx(1.5)
    assert loss.extra.q.item() == 1.5


def test_actions_in_a_nest_come_back_as_that_nest():
    spec = {"gear": BoundedTensorSpec((), torch.int32, -1, 1), "brake": CHOICE}
    algorithm = dqn(spec)
    output = algorithm.rollout_step(time_step([0, 1]), DqnState()).output
    assert output["gear"].dtype == torch.int32
    assert output["gear"].shape == output["brake"].shape == (2,)
    nest.assert_same_structure(output, spec)


def test_a_reward_of_several_dimensions_is_weighted():
    algorithm = dqn(reward_spec=TensorSpec((2,)), reward_weights=[1.0, -0.5])
    set_table(algorithm._q_network, ONLINE)
    set_table(algorithm._target_q_network, TARGET)
    steps = three_windows()
    several = steps._replace(reward=torch.stack([steps.reward] * 2, dim=-1))
    single = steps._replace(reward=0.5 * steps.reward)
    expected = losses_of(with_tables(), single)
    torch.testing.assert_close(losses_of(algorithm, several).loss, expected.loss)


def optimize(algorithm: DqnAlgorithm, steps: TimeStep, num_updates: int) -> Tensor:
    """Trains on the same windows; the values of all states, [S, A]."""
    batch = batch_of(algorithm, steps)
    for _ in range(num_updates):
        loss_info, info = batch_loss(algorithm, batch)
        update_with_gradient(algorithm, loss_info)
        algorithm.after_update(batch.inputs, info)
    outputs, _ = algorithm._q_network(torch.eye(NUM_STATES))
    return algorithm._return_model.mean(outputs)[:, 0].detach()


QUANTILES = QuantileHead(num_quantiles=5)
CATEGORIES = CategoricalHead(v_min=-2.0, v_max=8.0, num_atoms=21)


@pytest.mark.parametrize(
    ("return_model", "dueling"),
    [
        pytest.param(None, False, id="expected"),
        pytest.param(None, True, id="expected-dueling"),
        pytest.param(QUANTILES, False, id="quantiles", marks=pytest.mark.slow),
        pytest.param(QUANTILES, True, id="quantiles-dueling"),
        pytest.param(CATEGORIES, False, id="categories"),
        pytest.param(CATEGORIES, True, id="categories-dueling", marks=pytest.mark.slow),
    ],
)
def test_the_values_of_a_small_chain_are_learnt(return_model, dueling):
    """0 → 1 → 2 → end; action 0 goes on, action 1 stops with reward 1, 2 stays."""
    torch.manual_seed(0)
    states, types, rewards, discounts, actions = [], [], [], [], []
    for s in (0, 1, 2):
        goes_on = (s + 1, 0.0, 1.0) if s < 2 else (3, 5.0, 0.0)
        for action, (next_state, reward, discount) in enumerate(
            (goes_on, (3, 1.0, 0.0), (s, -1.0, 1.0))
        ):
            states.append([s, next_state])
            types.append([MID, MID if discount else LAST])
            rewards.append([0.0, reward])
            discounts.append([1.0, discount])
            actions.append([action, 0])
    steps = windows(states, types, rewards, discounts, actions)
    ctor = functools.partial(Linear, dueling=dueling)
    algorithm = dqn(
        q_network_ctor=ctor, return_model=return_model, target_update_tau=0.2
    )
    q = optimize(algorithm, steps, num_updates=400)
    v = [5 * GAMMA**2, 5 * GAMMA, 5.0]
    expected = torch.tensor([[v[s], 1.0, -1 + GAMMA * v[s]] for s in range(3)])
    torch.testing.assert_close(q[:3], expected, atol=0.1, rtol=0.0)


def recurrent(**kwargs) -> DqnAlgorithm:
    ctor = functools.partial(
        QNetwork,
        encoding_network_ctor=functools.partial(GRUEncodingNetwork, hidden_size=(8,)),
    )
    return dqn(q_network_ctor=ctor, **kwargs)


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("double", [False, True])
def test_a_recurrent_network_learns_the_same_targets_from_its_sequence(n, double):
    torch.manual_seed(0)
    algorithm = recurrent(n_step=n, double=double)
    with torch.no_grad():
        for parameter in algorithm._target_q_network.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    steps = three_windows()
    loss = losses_of(algorithm, steps)
    assert loss.loss.shape == (3 - n, 3)

    def unroll(network, b):
        state, q = network.initial_state(1), []
        for t in range(3):
            if STEP_TYPES[b][t] == FIRST:
                state = network.initial_state(1)
            outputs, state = network(steps.observation[b, t : t + 1], state)
            q.append(outputs[0, 0, :, 0])
        return torch.stack(q)

    for b in range(3):
        online, target = (
            unroll(network, b)
            for network in (algorithm._q_network, algorithm._target_q_network)
        )
        reward, discount, t = 0.0, 1.0, 0
        while t < n and STEP_TYPES[b][t] != LAST:
            t += 1
            reward += discount * REWARDS[b][t]
            discount *= GAMMA * DISCOUNTS[b][t]
        best = (online if double else target)[t].argmax()
        delta = reward + discount * target[t, best] - online[0, ACTIONS[b][0]]
        assert loss.extra.td_error[0, b].item() == pytest.approx(
            abs(delta.item()), abs=1e-5
        )


def test_the_state_of_a_rollout_starts_both_networks_and_training_reaches_back():
    algorithm = recurrent()
    state = algorithm.get_initial_rollout_state(2)
    step = algorithm.rollout_step(time_step([0, 1]), state)
    nest.assert_same_structure(step.state, state)
    assert torch.equal(
        nest.flatten(step.state.q)[0], nest.flatten(step.state.target_q)[0]
    )
    assert not algorithm.is_temporally_independent
    loss = losses_of(algorithm, three_windows())
    loss.loss[1].sum().backward()
    cell = algorithm._q_network._encoder._cells[0]
    assert cell.weight_hh.grad.abs().sum() > 0


def test_evaluation_needs_no_target_network():
    algorithm = dqn(is_eval=True, optimizer=None)
    algorithm.predict_step(time_step([0]), DqnState())
    assert not hasattr(algorithm, "_target_q_network")


def test_the_state_of_the_target_network_is_part_of_the_checkpoint():
    algorithm = with_tables(target_update_period=3)
    algorithm.after_update(TimeStep(), ())
    state = algorithm.state_dict()
    resumed = dqn(target_update_period=3, target_update_tau=1.0)
    resumed.load_state_dict(state)
    table = resumed._target_q_network._advantage[-1].weight
    torch.testing.assert_close(table.T, TARGET)
    for _ in range(2):
        resumed.after_update(TimeStep(), ())
    torch.testing.assert_close(table.T, ONLINE)


def test_other_actions_and_bad_coefficients_are_refused():
    box = BoundedTensorSpec((2,), torch.float32, -1, 1)
    with pytest.raises(ValueError, match=r"\['x'\].*Use SacAlgorithm"):
        dqn({"x": box, "y": CHOICE})
    with pytest.raises(ValueError, match=r"gamma must lie in \[0, 1\]"):
        dqn(gamma=1.1)
    with pytest.raises(ValueError, match="n_step must be a positive integer"):
        dqn(n_step=0)
    with pytest.raises(ValueError, match=r"epsilon must lie in \[0, 1\]"):
        dqn(rollout_epsilon_greedy=1.5)
    with pytest.raises(ValueError, match="action mask: expected a dict"):
        dqn(action_mask_key="mask")


def test_windows_that_are_too_short_name_the_setting():
    with pytest.raises(ValueError, match="mini_batch_length = 4"):
        losses_of(with_tables(n_step=3), three_windows())


def test_the_loss_is_finite_at_extreme_values():
    algorithm = with_tables(return_model=None)
    set_table(algorithm._target_q_network, 1e6 * TARGET)
    loss = losses_of(algorithm, three_windows())
    assert all(math.isfinite(x) for x in loss.loss.flatten().tolist())
