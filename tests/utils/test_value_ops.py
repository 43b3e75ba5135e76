"""Returns and advantages equal the loops of their equations, and known numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from alf_lite.data_structures import StepType
from alf_lite.utils import value_ops
from tests.fast.twins import without_twins

FIRST, MID, LAST = (int(s) for s in StepType)


def column(numbers, dtype=torch.float32):
    """[T] numbers -> [T, 1]."""
    return torch.tensor(numbers, dtype=dtype).unsqueeze(1)


def steps(step_types):
    return column(step_types, torch.int32)


def assert_equal(got, expected, tolerance=1e-5):
    torch.testing.assert_close(
        got.squeeze(1), torch.tensor(expected), rtol=0, atol=tolerance
    )


# Loops over the equations, one sequence at a time


def naive_lambda_return(r, v, step, d, lam):
    G = list(v)
    for t in reversed(range(len(r) - 1)):
        if step[t] != LAST:
            G[t] = r[t + 1] + d[t + 1] * ((1 - lam) * v[t + 1] + lam * G[t + 1])
    return G[:-1]


def naive_gae(r, v, step, d, lam):
    A = [0.0] * len(r)
    for t in reversed(range(len(r) - 1)):
        delta = r[t + 1] + d[t + 1] * v[t + 1] - v[t]
        A[t] = 0.0 if step[t] == LAST else delta + d[t + 1] * lam * A[t + 1]
    return A[:-1]


def naive_n_step(r, v, step, d, n):
    returns = []
    for t in range(len(r) - 1):
        total, discount, i = 0.0, 1.0, t
        while i < min(t + n, len(r) - 1) and step[i] != LAST:
            i += 1
            total += discount * r[i]
            discount *= d[i]
        returns.append(total + discount * v[i])
    return returns


def naive_vtrace(r, v, step, d, ratio, lam, rho_bar, c_bar, pg_rho_bar):
    """Eq. 1 as it stands: a sum over the future of every step."""
    T = len(r)
    target = list(v)
    for s in range(T - 1):
        trace, t = 1.0, s
        while t < T - 1 and step[t] != LAST:
            delta = r[t + 1] + d[t + 1] * v[t + 1] - v[t]
            target[s] += trace * min(rho_bar, ratio[t]) * delta
            trace *= d[t + 1] * lam * min(c_bar, ratio[t])
            t += 1
    advantage = [
        0.0
        if step[t] == LAST
        else min(pg_rho_bar, ratio[t]) * (r[t + 1] + d[t + 1] * target[t + 1] - v[t])
        for t in range(T - 1)
    ]
    return target[:-1], advantage


def naive(function, arrays, *args):
    """``function`` on every column of [T, B] or [T, B, D] arrays."""
    rewards = arrays[0]
    flat = [
        np.broadcast_to(
            a.reshape(a.shape + (1,) * (rewards.ndim - a.ndim)), rewards.shape
        ).reshape(len(rewards), -1)
        for a in arrays
    ]
    columns = [
        function(*(a[:, b].tolist() for a in flat), *args)
        for b in range(flat[0].shape[1])
    ]
    return np.stack(columns, axis=-1).reshape(
        *np.shape(columns)[1:-1], -1, *rewards.shape[1:]
    )


@st.composite
def sequences(draw):
    """(rewards, values, step_types, discounts, ratios), with episodes of any length."""
    T = draw(st.integers(2, 40))
    B = draw(st.integers(1, 3))
    D = draw(st.sampled_from([(), (1,), (2,)]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    end_probability = draw(st.sampled_from([0.0, 0.1, 0.5, 1.0]))
    gamma = draw(st.sampled_from([0.0, 0.5, 0.99, 1.0]))
    last = rng.random((T, B)) < end_probability
    first = np.roll(last, 1, axis=0)
    step_types = np.where(last, LAST, np.where(first, FIRST, MID)).astype(np.int32)
    terminal = last & (rng.random((T, B)) < 0.5)
    rewards = rng.normal(size=(T, B, *D)).astype(np.float32)
    values = rng.normal(size=(T, B, *D)).astype(np.float32)
    discounts = (gamma * ~terminal).astype(np.float32)
    ratios = np.exp(rng.normal(size=(T, B))).astype(np.float32)
    return rewards, values, step_types, discounts, ratios


def tensors(arrays):
    return [torch.from_numpy(a) for a in arrays]


def assert_same_numbers(got, expected):
    assert tuple(got.shape) == expected.shape
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-4, atol=1e-5)


unit_interval = st.sampled_from([0.0, 0.3, 0.95, 1.0])
bounded = settings(max_examples=50)


@bounded
@given(sequences(), unit_interval)
def test_gae_and_lambda_return_equal_their_loops(arrays, lam):
    inputs = tensors(arrays[:4])
    assert_same_numbers(
        value_ops.generalized_advantage_estimation(*inputs, lam),
        naive(naive_gae, arrays[:4], lam),
    )
    assert_same_numbers(
        value_ops.lambda_return(*inputs, lam),
        naive(naive_lambda_return, arrays[:4], lam),
    )


@bounded
@given(sequences(), st.integers(1, 45))
def test_n_step_return_equals_its_loop(arrays, n):
    assert_same_numbers(
        value_ops.n_step_return(*tensors(arrays[:4]), n),
        naive(naive_n_step, arrays[:4], n),
    )


@bounded
@given(
    sequences(),
    unit_interval,
    st.sampled_from([(1.0, 1.0, 1.0), (2.0, 0.5, 1.5), (math.inf, math.inf, math.inf)]),
)
def test_vtrace_equals_the_sum_of_equation_1(arrays, lam, clips):
    if clips[1] > 2:  # Without clipping, products of ratios must stay representable.
        arrays = (*arrays[:4], arrays[4] ** 0.1)
    rho_bar, c_bar, pg_rho_bar = clips
    targets, advantages = value_ops.vtrace(
        *tensors(arrays),
        td_lambda=lam,
        rho_clip=rho_bar,
        c_clip=c_bar,
        policy_gradient_rho_clip=pg_rho_bar,
    )
    expected = naive(naive_vtrace, arrays, lam, *clips)
    assert_same_numbers(targets, expected[0])
    assert_same_numbers(advantages, expected[1])


@bounded
@given(sequences())
def test_identities_between_the_returns(arrays):
    inputs = tensors(arrays[:4])
    values, num_steps = inputs[1][:-1], len(arrays[0])
    one_step = value_ops.one_step_discounted_return(*inputs)
    monte_carlo = value_ops.discounted_return(*inputs)
    lambda_return = value_ops.lambda_return(*inputs, 0.7)
    gae = value_ops.generalized_advantage_estimation(*inputs, 0.7)
    vtrace = value_ops.vtrace(*inputs, torch.ones_like(inputs[3]), td_lambda=0.7)

    def assert_close(a, b):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)

    assert_close(value_ops.lambda_return(*inputs, 0.0), one_step)
    assert_close(value_ops.n_step_return(*inputs, 1), one_step)
    assert_close(value_ops.n_step_return(*inputs, num_steps), monte_carlo)
    assert_close(gae + values, lambda_return)
    assert_close(vtrace.targets, lambda_return)
    valid = (inputs[2][:-1] != LAST).reshape(
        *inputs[2][:-1].shape, *[1] * (values.ndim - 2)
    )
    for advantage in (gae, vtrace.advantages, one_step - values, monte_carlo - values):
        assert torch.all(advantage[~valid.expand_as(advantage)] == 0)


@pytest.mark.ci
@bounded
@given(sequences())
def test_batch_major_and_single_sequences_give_the_same_numbers(arrays):
    inputs = tensors(arrays)
    swapped = [t.transpose(0, 1).contiguous() for t in inputs]
    calls = {
        value_ops.discounted_return: (4, ()),
        value_ops.one_step_discounted_return: (4, ()),
        value_ops.n_step_return: (4, (3,)),
        value_ops.lambda_return: (4, (0.8,)),
        value_ops.generalized_advantage_estimation: (4, (0.8,)),
        lambda *a, **k: value_ops.vtrace(*a, **k).targets: (5, ()),
        lambda *a, **k: value_ops.vtrace(*a, **k).advantages: (5, ()),
    }
    for function, (count, args) in calls.items():
        expected = function(*inputs[:count], *args)
        assert torch.equal(
            function(*swapped[:count], *args, time_major=False),
            expected.transpose(0, 1),
        )
        single = function(*(t[:, 0] for t in inputs[:count]), *args)
        torch.testing.assert_close(single, expected[:, 0])


# Numbers worked out by hand

REWARDS, VALUES = [0.0, 1.0, 1.0, 1.0], [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    ("step_types", "discounts", "expected"),
    [
        ([MID] * 4, [0.9] * 4, [3.85344, 2.852, 1.6]),
        ([MID] * 3 + [LAST], [0.9, 0.9, 0.9, 0.0], [1.9872, 0.26, -2.0]),
        ([MID] * 3 + [LAST], [0.9] * 4, [3.85344, 2.852, 1.6]),
        ([MID, MID, LAST, FIRST], [0.9, 0.9, 0.0, 0.9], [1.08, -1.0, 0.0]),
        ([MID, MID, LAST, FIRST], [0.9] * 4, [3.024, 1.7, 0.0]),
    ],
    ids=["no end", "terminal", "time limit", "terminal inside", "time limit inside"],
)
def test_gae_of_known_numbers(step_types, discounts, expected):
    got = value_ops.generalized_advantage_estimation(
        column(REWARDS), column(VALUES), steps(step_types), column(discounts), 0.8
    )
    assert_equal(got, expected)


@pytest.mark.parametrize(
    ("discount", "expected"), [(0.0, 1.0), (0.9, 10.0)], ids=["terminal", "time limit"]
)
def test_time_limit_keeps_bootstrapping(discount, expected):
    inputs = (
        column([0.0, 1.0]),
        column([0.0, 10.0]),
        steps([MID, LAST]),
        column([0.9, discount]),
    )
    for function in (
        value_ops.one_step_discounted_return,
        value_ops.discounted_return,
        value_ops.generalized_advantage_estimation,
    ):
        assert_equal(function(*inputs), [expected])


@pytest.mark.parametrize(
    ("step_types", "discounts", "expected"),
    [
        ([MID] * 5, [0.9] * 5, 12.52),
        ([MID, MID, LAST, FIRST, MID], [0.9, 0.9, 0.0, 0.9, 0.9], 2.8),
        ([MID, MID, LAST, FIRST, MID], [0.9] * 5, 10.9),
    ],
    ids=["no end", "terminal", "time limit"],
)
def test_three_step_return_of_known_numbers(step_types, discounts, expected):
    got = value_ops.n_step_return(
        column([0.0, 1.0, 2.0, 3.0, 4.0]),
        column([10.0] * 5),
        steps(step_types),
        column(discounts),
        3,
    )
    assert got[0, 0].item() == pytest.approx(expected, abs=1e-5)


def test_vtrace_of_known_numbers():
    # Ratios 2 and 0.5 give ρ = 1 and 0.5, c = 0.8 and 0.5.
    # δ_0 = 1 + 0.5·2 − 2 = 0, δ_1 = 3 + 0.5·2 − 2 = 2.
    # v_1 = 2 + 0.5·2 = 3, v_0 = 2 + 1·0 + 0.5·0.8·(3 − 2) = 2.4.
    targets, advantages = value_ops.vtrace(
        column([0.0, 1.0, 3.0]),
        column([2.0, 2.0, 2.0]),
        steps([MID] * 3),
        column([0.5] * 3),
        column([2.0, 0.5, 9.0]),
        c_clip=0.8,
    )
    assert_equal(targets, [2.4, 3.0])
    # A_0 = 1·(1 + 0.5·3 − 2), A_1 = 0.5·(3 + 0.5·2 − 2).
    assert_equal(advantages, [0.5, 1.0])


# The rest of the contract


def test_vtrace_ignores_the_ratio_at_last():
    inputs = [
        column([0.0, 1.0, 0.0, 1.0]),
        column([1.0, 2.0, 3.0, 4.0]),
        steps([MID, LAST, FIRST, MID]),
        column([0.9] * 4),
    ]
    usual = value_ops.vtrace(*inputs, column([1.0, 1.0, 1.0, 1.0]))
    odd = value_ops.vtrace(*inputs, column([1.0, math.nan, 1.0, math.inf]))
    for a, b in zip(usual, odd, strict=True):
        assert torch.equal(a, b)


def test_inputs_are_left_as_they_were_and_no_gradient_is_kept():
    inputs = [torch.rand(9, 2), torch.rand(9, 2, requires_grad=True)]
    inputs += [torch.randint(0, 3, (9, 2)), torch.rand(9, 2)]
    before = [t.detach().clone() for t in inputs]
    results = [
        value_ops.discounted_return(*inputs),
        value_ops.one_step_discounted_return(*inputs),
        value_ops.n_step_return(*inputs, 4),
        value_ops.lambda_return(*inputs, 0.5),
        value_ops.generalized_advantage_estimation(*inputs, 0.5),
        *value_ops.vtrace(*inputs, inputs[0]),
    ]
    assert not any(result.requires_grad for result in results)
    for tensor, copy in zip(inputs, before, strict=True):
        assert torch.equal(tensor, copy)


def test_works_on_tensors_from_inference_mode():
    with torch.inference_mode():
        inputs = torch.rand(5, 2), torch.rand(5, 2)
        step_types, discounts = torch.zeros(5, 2), torch.rand(5, 2)
    got = value_ops.generalized_advantage_estimation(
        *inputs, step_types, discounts, 0.9
    )
    assert got.isfinite().all()


def test_gae_compiles_to_the_same_numbers_as_one_graph():
    inputs = [torch.rand(6, 2), torch.rand(6, 2), torch.randint(0, 3, (6, 2))]
    inputs += [torch.rand(6, 2)]
    function = value_ops.generalized_advantage_estimation
    # The eager backend keeps this quick; what matters here is that the graph is whole.
    compiled = torch.compile(function, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(*inputs, 0.9), function(*inputs, 0.9))


def test_importance_ratio_stays_finite_and_passes_gradient_to_the_policy_only():
    log_prob = torch.tensor([0.0, math.log(3), 1000.0], requires_grad=True)
    rollout_log_prob = torch.tensor([0.0, 0.0, -1000.0], requires_grad=True)
    ratio = value_ops.action_importance_ratio(log_prob, rollout_log_prob)
    torch.testing.assert_close(ratio[:2], torch.tensor([1.0, 3.0]))
    assert ratio.isfinite().all()
    ratio.sum().backward()
    torch.testing.assert_close(log_prob.grad[:2], torch.tensor([1.0, 3.0]))
    assert rollout_log_prob.grad is None


GOOD = {
    "rewards": torch.zeros(3, 2),
    "values": torch.zeros(3, 2),
    "step_types": torch.zeros(3, 2),
    "discounts": torch.zeros(3, 2),
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"values": torch.zeros(3, 2, 1)}, r"values \[3, 2, 1\] and rewards \[3, 2\]"),
        ({"discounts": torch.zeros(3, 1)}, r"discounts \[3, 1\]"),
        (
            {"step_types": torch.zeros(2, 3), "discounts": torch.zeros(2, 3)},
            r"step_types \[2, 3\]",
        ),
        ({name: tensor[:1] for name, tensor in GOOD.items()}, "T=2 steps, got T=1"),
        (
            {name: tensor[:, 0] for name, tensor in GOOD.items()}
            | {"time_major": False},
            r"needs step_types \[B, T\]",
        ),
        ({"td_lambda": 1.5}, "got 1.5"),
        ({"td_lambda": math.nan}, "got nan"),
    ],
)
def test_bad_input_is_an_error_with_the_shapes(changes, message):
    with pytest.raises(ValueError, match=message):
        value_ops.generalized_advantage_estimation(**(GOOD | changes))


def test_bad_parameters_are_errors():
    with pytest.raises(ValueError, match="n must be at least 1, got 0"):
        value_ops.n_step_return(**GOOD, n=0)
    with pytest.raises(ValueError, match="c_clip must be positive, got 0"):
        value_ops.vtrace(**GOOD, importance_ratios=torch.ones(3, 2), c_clip=0)
    with pytest.raises(ValueError, match="importance_ratios"):
        value_ops.vtrace(**GOOD, importance_ratios=torch.ones(2, 2))


@pytest.mark.gpu
def test_gae_on_a_gpu_equals_the_cpu():
    inputs = [torch.rand(65, 4), torch.rand(65, 4), torch.randint(0, 3, (65, 4))]
    inputs += [torch.rand(65, 4)]
    function = value_ops.generalized_advantage_estimation
    got = function(*(t.cuda() for t in inputs), 0.9)
    torch.testing.assert_close(got.cpu(), function(*inputs, 0.9))


@pytest.mark.parametrize("num_steps", [2, 3, 17])
@pytest.mark.parametrize("reward_shape", [(), (2,)])
@pytest.mark.parametrize("time_major", [True, False])
def test_in_numpy_they_are_those_of_torch(num_steps, reward_shape, time_major):
    torch.manual_seed(0)
    shape = (num_steps, 5) if time_major else (5, num_steps)
    rewards, values = torch.randn(2, *shape, *reward_shape)
    step_types = torch.randint(3, shape, dtype=torch.int32)
    discounts = 0.9 * (torch.rand(shape) > 0.2)
    rewards[0, 1] = torch.inf
    values.requires_grad_()

    def results():
        inputs = rewards, values, step_types, discounts
        return [
            value_ops.generalized_advantage_estimation(*inputs, 0.7, time_major),
            value_ops.lambda_return(*inputs, 0.7, time_major),
            value_ops.discounted_return(*inputs, time_major),
        ]

    found = results()
    with without_twins():
        expected = results()
    for a, b in zip(found, expected, strict=True):
        assert not a.requires_grad
        assert not b.requires_grad
        torch.testing.assert_close(a, b, equal_nan=True)
