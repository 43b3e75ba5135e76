import math

import pytest
import torch

from alf_lite.distributions.continuous import (
    DiagonalNormal,
    ScaledBeta,
    SquashedNormal,
)
from alf_lite.distributions.discrete import (
    Categorical,
    MultiBernoulli,
    MultiCategorical,
)
from alf_lite.networks.projection_networks import NormalProjection, make_projection
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec

FEATURES = 16


def bounded(shape, dtype, minimum, maximum):
    return BoundedTensorSpec(shape, dtype, minimum, maximum)


DISCRETE = [
    (bounded((), torch.int64, 0, 1), Categorical),
    (bounded((), torch.int64, 5, 6), Categorical),
    (bounded((), torch.int32, -1, 3), Categorical),
    (bounded((), torch.int64, 0, 0), Categorical),
    (bounded((3,), torch.int64, 0, [1, 4, 2]), MultiCategorical),
    (bounded((2, 2), torch.int64, 1, 3), MultiCategorical),
    (bounded((1,), torch.int64, 5, 6), MultiCategorical),
    (bounded((4,), torch.int8, 0, 1), MultiBernoulli),
    (bounded((2, 3), torch.int64, 0, 1), MultiBernoulli),
    (TensorSpec((4,), torch.bool), MultiBernoulli),
    (TensorSpec((), torch.bool), MultiBernoulli),
]
CONTINUOUS = [
    bounded((), torch.float32, -1, 1),
    bounded((1,), torch.float32, -1, 1),
    bounded((3,), torch.float32, [-1, 0, -5], [1, 5, -4]),
    bounded((2, 2), torch.float32, -1, 1),
]
PROJECTIONS = {
    "normal": DiagonalNormal,
    "tanh_normal": SquashedNormal,
    "beta": ScaledBeta,
}


def check_action(action, spec, batch_shape):
    assert action.shape == (*batch_shape, *spec.shape)
    assert action.dtype == spec.dtype
    if isinstance(spec, BoundedTensorSpec):
        assert (action >= torch.tensor(spec.minimum)).all()
        assert (action <= torch.tensor(spec.maximum)).all()


@pytest.mark.parametrize("batch_shape", [(200,), (7, 30)])
@pytest.mark.parametrize(("spec", "expected"), DISCRETE)
def test_discrete_actions_lie_in_the_spec(spec, expected, batch_shape):
    torch.manual_seed(0)
    distribution = make_projection("a", spec, FEATURES)(
        torch.randn(*batch_shape, FEATURES)
    )
    assert type(distribution) is expected
    assert distribution.batch_shape == batch_shape
    assert distribution.event_shape == spec.shape
    action = distribution.sample()
    check_action(action, spec, batch_shape)
    check_action(distribution.mode, spec, batch_shape)
    if isinstance(spec, BoundedTensorSpec):
        flat = action.reshape(-1, spec.numel)
        low, high = spec.minimum.reshape(-1), spec.maximum.reshape(-1)
        for i in range(spec.numel):
            assert set(flat[:, i].tolist()) == set(range(low[i], high[i] + 1))
    assert distribution.log_prob(action).shape == batch_shape
    assert distribution.entropy().shape == batch_shape


@pytest.mark.parametrize("projection", PROJECTIONS)
@pytest.mark.parametrize("spec", CONTINUOUS)
@pytest.mark.parametrize("batch_shape", [(20,), (3, 20)])
def test_continuous_actions_have_the_shape_and_bounds(projection, spec, batch_shape):
    torch.manual_seed(0)
    head = make_projection("a", spec, FEATURES, continuous_projection=projection)
    distribution = head(torch.randn(*batch_shape, FEATURES))
    assert type(distribution) is PROJECTIONS[projection]
    assert distribution.batch_shape == batch_shape
    assert distribution.event_shape == spec.shape
    action = distribution.sample()
    assert action.shape == (*batch_shape, *spec.shape)
    if projection != "normal":
        check_action(action, spec, batch_shape)
        check_action(distribution.mode, spec, batch_shape)
    assert distribution.log_prob(action).shape == batch_shape
    assert distribution.entropy().shape == batch_shape
    (distribution.log_prob(action) + distribution.entropy()).sum().backward()
    for name, parameter in head.named_parameters():
        assert parameter.grad.isfinite().all(), name
        assert (parameter.grad != 0).any(), name


def test_discrete_policy_starts_nearly_uniform():
    head = make_projection("a", bounded((), torch.int64, 0, 3), FEATURES)
    probs = head(torch.randn(100, FEATURES)).probs
    torch.testing.assert_close(probs, torch.full((100, 4), 0.25), atol=0.02, rtol=0)


def test_std_is_a_parameter_or_a_function_of_the_features():
    spec = bounded((2,), torch.float32, -1, 1)
    features = torch.randn(5, FEATURES)
    fixed = make_projection("a", spec, FEATURES, initial_log_std=-0.5)
    scale = fixed(features).scale
    torch.testing.assert_close(scale, torch.full((5, 2), math.exp(-0.5)))
    assert {n for n, _ in fixed.named_parameters()} == {
        "_log_std",
        "_loc.weight",
        "_loc.bias",
    }
    varying = make_projection(
        "a", spec, FEATURES, initial_log_std=-0.5, state_dependent_std=True
    )
    scale = varying(features * 10).scale
    assert (scale.std(0) > 0).all()
    torch.testing.assert_close(scale.log().mean(), torch.tensor(-0.5), atol=0.2, rtol=0)


@pytest.mark.parametrize("log_std", [-100.0, 100.0])
@pytest.mark.parametrize("projection", ["normal", "tanh_normal"])
def test_extreme_std_keeps_loss_and_gradient_finite(log_std, projection):
    spec = bounded((2,), torch.float32, -1, 1)
    head = make_projection("a", spec, FEATURES, continuous_projection=projection)
    head._log_std.data.fill_(log_std)
    distribution = head(torch.randn(5, FEATURES))
    action = torch.tensor([[1.0, -0.5]]).expand(5, 2)
    loss = distribution.log_prob(action) + distribution.entropy()
    loss.sum().backward()
    assert loss.isfinite().all()
    assert all(p.grad.isfinite().all() for p in head.parameters())


@pytest.mark.parametrize("projection", PROJECTIONS)
def test_extreme_features_keep_loss_and_gradient_finite(projection):
    spec = bounded((2,), torch.float32, -1, 1)
    head = make_projection("a", spec, FEATURES, continuous_projection=projection)
    distribution = head(torch.randn(5, FEATURES) * 1e4)
    loss = distribution.log_prob(distribution.sample()) + distribution.entropy()
    loss.sum().backward()
    assert loss.isfinite().all()
    assert all(p.grad.isfinite().all() for p in head.parameters())


# Bad input


def test_normal_accepts_unbounded_actions():
    distribution = make_projection("a", TensorSpec((2,)), 4)(torch.randn(3, 4))
    assert type(distribution) is DiagonalNormal


@pytest.mark.parametrize("projection", ["tanh_normal", "beta"])
@pytest.mark.parametrize(
    "spec",
    [
        TensorSpec((2,)),
        bounded((2,), torch.float32, [-1, -math.inf], 1),
        bounded((2,), torch.float32, [-1, 1], 1),
    ],
)
def test_bounded_projections_refuse_specs_without_a_box(projection, spec):
    with pytest.raises(ValueError, match=f"arm: '{projection}' needs finite bounds"):
        make_projection("arm", spec, 4, continuous_projection=projection)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (TensorSpec((), torch.int64), "arm: expected bounds for a discrete action"),
        (bounded((), torch.int64, 0, 10**6), "arm: expected at most 100000"),
        (bounded((2,), torch.int64, -(2**62), 2**62), "arm: expected at most 100000"),
        (TensorSpec((0,)), "arm: expected at least one element"),
    ],
)
def test_unsupported_specs_are_refused_by_name(spec, message):
    with pytest.raises(ValueError, match=message):
        make_projection("arm", spec, 4)


def test_other_bad_arguments_are_refused():
    spec = TensorSpec((2,))
    with pytest.raises(TypeError, match="arm: expected a TensorSpec, got int"):
        make_projection("arm", 3, 4)
    for any_spec in (spec, bounded((), torch.int64, 0, 1)):
        with pytest.raises(ValueError, match="continuous_projection: expected one of"):
            make_projection("arm", any_spec, 4, continuous_projection="gaussian")
    with pytest.raises(ValueError, match="initial_log_std: expected a value within"):
        NormalProjection(4, spec, initial_log_std=3.0)
