"""Each distribution is that of torch, or of an integral: density, entropy, samples."""

from __future__ import annotations

import math

import pytest
import torch
from torch import distributions as td

from alf_lite import nest
from alf_lite.distributions import functions as distributions
from alf_lite.distributions.continuous import (
    ActionBounds,
    DiagonalNormal,
    ScaledBeta,
    SquashedNormal,
)
from alf_lite.distributions.discrete import Categorical, MultiBernoulli
from alf_lite.distributions.location_scale import DiagonalCauchy, TruncatedNormal
from alf_lite.distributions.mixtures import NormalMixture
from alf_lite.distributions.one_hot import OneHotCategorical
from alf_lite.fast.likelihoods import NumpyChoice
from alf_lite.tensor_specs import BoundedTensorSpec

LOW, HIGH = -1.0, 3.0
DOUBLE = torch.float64


def box(shape=(1,), dtype=DOUBLE, low=LOW, high=HIGH):
    return ActionBounds(BoundedTensorSpec(shape, dtype, low, high))


def numbers(*values):
    return torch.tensor(values, dtype=DOUBLE)


# Those that torch has, too


def mixture_of_torch(logits, loc, scale):
    parts = td.Independent(td.Normal(loc, scale), 1)
    return td.MixtureSameFamily(td.Categorical(logits=logits), parts)


def stretched_beta(a, b):
    base = td.Independent(td.Beta(a, b), 1)
    return td.TransformedDistribution(base, [td.AffineTransform(-1.0, 4.0)])


def squashed_of_torch(loc, scale):
    stretch = td.AffineTransform(torch.tensor([2.5, 1.0]), torch.tensor([2.5, 2.0]))
    base = td.Independent(td.Normal(loc, scale), 1)
    return td.TransformedDistribution(base, [td.TanhTransform(), stretch])


UNEVEN = box((2,), torch.float32, [0.0, -1.0], [5.0, 3.0])
SIX = torch.Size((6,))
# Ours, torch's, and the shapes of the parameters, which are positive where they say so
OF_TORCH = {
    "categorical": (
        Categorical,
        lambda x: td.Categorical(logits=x),
        [((5,), False)],
    ),
    "bernoulli": (
        lambda x: MultiBernoulli(x, 2, torch.float32),
        lambda x: td.Independent(td.Bernoulli(logits=x), 2),
        [((2, 3), False)],
    ),
    "normal": (
        lambda loc, scale: DiagonalNormal(loc, scale, 2),
        lambda loc, scale: td.Independent(td.Normal(loc, scale), 2),
        [((2, 3), False), ((2, 3), True)],
    ),
    "scalar normal": (
        lambda loc, scale: DiagonalNormal(loc, scale, 0),
        td.Normal,
        [((), False), ((), True)],
    ),
    "squashed": (
        lambda loc, scale: SquashedNormal(loc, scale, UNEVEN),
        squashed_of_torch,
        [((2,), False), ((2,), True)],
    ),
    "beta": (
        lambda a, b: ScaledBeta(a + 1, b + 1, box((2,), torch.float32)),
        lambda a, b: stretched_beta(a + 1, b + 1),
        [((2,), True), ((2,), True)],
    ),
    "cauchy": (
        DiagonalCauchy,
        lambda loc, scale: td.Independent(td.Cauchy(loc, scale), 1),
        [((2,), False), ((2,), True)],
    ),
    "mixture": (
        lambda *x: NormalMixture(*x, torch.Size((4,))),
        mixture_of_torch,
        [((3,), False), ((3, 4), False), ((3, 4), True)],
    ),
}


@pytest.mark.parametrize("kind", OF_TORCH)
def test_they_equal_torchs(kind):
    torch.manual_seed(0)
    make, make_torchs, shapes = OF_TORCH[kind]

    def parameters():
        for shape, is_positive in shapes:
            x = torch.randn(6, *shape)
            yield x.abs() + 0.2 if is_positive else x

    first, second = list(parameters()), list(parameters())
    ours, theirs = make(*first), make_torchs(*first)
    assert (ours.batch_shape, ours.event_shape) == (SIX, theirs.event_shape)
    action = ours.sample((7,))
    assert action.shape == (7, 6, *theirs.event_shape)
    torch.testing.assert_close(
        ours.log_prob(action), theirs.log_prob(action), rtol=1e-4, atol=1e-4
    )
    torch.testing.assert_close(distributions.mode(ours), distributions.mode(theirs))
    if kind in ("squashed", "mixture"):  # estimates, see below
        return
    others, stretch = make_torchs(*second), 0.0
    if kind == "beta":  # of what is stretched by 4
        theirs, others, stretch = theirs.base_dist, others.base_dist, 2 * math.log(4)
    torch.testing.assert_close(ours.entropy(), theirs.entropy() + stretch)
    kl = td.kl_divergence(theirs, others)
    torch.testing.assert_close(ours.kl_divergence(make(*second)), kl)


def test_a_mixture_of_one_is_what_it_consists_of():
    torch.manual_seed(0)
    loc, scale, bounds = (
        torch.randn(6, 4),
        torch.rand(6, 4) + 0.1,
        box((4,), torch.float32),
    )
    one = NormalMixture(
        torch.zeros(6, 1), loc[:, None], scale[:, None], torch.Size((4,)), bounds
    )
    alone = SquashedNormal(loc, scale, bounds)
    action = alone.sample()
    torch.testing.assert_close(one.log_prob(action), alone.log_prob(action))
    assert one.mode.equal(alone.mode)


# Those of one dimension, by integrals


def mixture(bounds=None, shift=0.0):
    loc = numbers([-1.0], [0.5], [2.0]) + shift
    scale = numbers([0.3], [0.5], [0.2])
    return NormalMixture(numbers(0.2, 1.0, -0.5), loc, scale, torch.Size((1,)), bounds)


ONE_DIMENSIONAL = {
    "cauchy": (lambda shift: DiagonalCauchy(numbers(0.3 + shift), numbers(0.7)), None),
    "truncated": (
        lambda shift: TruncatedNormal(numbers(0.3 - shift), numbers(0.6), box()),
        box(),
    ),
    "wide": (
        lambda shift: TruncatedNormal(numbers(-0.9 + shift), numbers(7.0), box()),
        box(),
    ),
    "beta": (
        lambda shift: ScaledBeta(numbers(2.5 + shift), numbers(1.5), box()),
        box(),
    ),
    "squashed": (
        lambda shift: SquashedNormal(numbers(0.7 - shift), numbers(0.3), box()),
        box(),
    ),
    "squashed wide": (
        lambda shift: SquashedNormal(numbers(-1.0), numbers(1.5 + shift), box()),
        box(),
    ),
    "mixture": (lambda shift: mixture(None, shift), None),
    "squashed mixture": (lambda shift: mixture(box(), shift), box()),
}


def grid(bounds):
    """Midpoints of cells and their widths, of the box or of the whole line."""
    n = 400_001
    unit = (torch.arange(n, dtype=DOUBLE) + 0.5) / n
    if bounds is not None:
        return LOW + (HIGH - LOW) * unit, torch.full((n,), (HIGH - LOW) / n)
    angle = math.pi * (unit - 0.5)  # x = tan(angle)
    return angle.tan(), math.pi / n / angle.cos().square()


def repeated(distribution, n):
    return nest.map_structure(lambda t: t.expand(n, *t.shape), distribution)


@pytest.mark.parametrize("kind", ONE_DIMENSIONAL)
def test_densities_entropies_and_divergences_are_those_of_integrals(kind):
    torch.manual_seed(0)
    make, bounds = ONE_DIMENSIONAL[kind]
    p, q = make(0.0), make(0.2)
    x, width = grid(bounds)
    log_p, log_q = p.log_prob(x[:, None]), q.log_prob(x[:, None])
    probs = log_p.exp() * width
    assert probs.sum().item() == pytest.approx(1.0, abs=1e-4)
    entropy = -(probs * log_p).sum().item()
    divergence = (probs * (log_p - log_q)).sum().item()
    is_estimate = "squashed" in kind or "mixture" in kind
    tolerance = 0.02 if is_estimate else 1e-3
    many = repeated(p, 40_000)
    assert many.entropy().mean().item() == pytest.approx(entropy, abs=tolerance)
    found = many.kl_divergence(repeated(q, 40_000)).mean().item()
    assert found == pytest.approx(divergence, abs=tolerance)
    # Samples fall where the density is, the mode where it is highest.
    draws = p.sample((100_000,)).flatten()
    for level in (-0.5, 0.2, 0.9):
        below = probs[x < level].sum().item()
        assert (draws < level).double().mean().item() == pytest.approx(below, abs=0.01)
    assert draws.isfinite().all()
    if "squashed" not in kind:  # that of what is squashed
        assert p.log_prob(p.mode) >= log_p.max() - 1e-2
    assert bounds is None or (draws.min() >= LOW and draws.max() <= HIGH)


@pytest.mark.parametrize("kind", ["squashed", "squashed wide", "squashed mixture"])
def test_estimates_of_entropies_have_the_gradients_of_integrals(kind):
    torch.manual_seed(0)
    p = ONE_DIMENSIONAL[kind][0](0.0)
    parameters = [t.requires_grad_() for t in nest.flatten(p)]
    x, width = grid(box())
    log_probs = p.log_prob(x[:, None])
    entropy = -(log_probs.exp() * width * log_probs).sum()
    expected = torch.autograd.grad(entropy, parameters)
    found = torch.autograd.grad(repeated(p, 200_000).entropy().mean(), parameters)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, atol=0.02, rtol=0)


@pytest.mark.parametrize("kind", ["truncated", "squashed", "beta"])
def test_samples_have_the_gradients_of_expectations(kind):
    torch.manual_seed(0)
    p = ONE_DIMENSIONAL[kind][0](0.0)
    parameters = [t.requires_grad_() for t in nest.flatten(p)]
    sample = p.rsample((200_000,))
    found = torch.autograd.grad(sample.square().mean(), parameters)
    x, width = grid(box())
    probs = p.log_prob(x[:, None]).exp() * width
    expected = torch.autograd.grad((probs * x.square()).sum(), parameters)
    for a, b in zip(found, expected, strict=True):
        assert a.item() == pytest.approx(b.item(), abs=0.03)


def test_per_dimension_bounds_integrate_to_one_in_two_dimensions():
    bounds = box((2,), DOUBLE, [0.0, -1.0], [5.0, 3.0])
    n = 400
    unit = (torch.arange(n, dtype=DOUBLE) + 0.5) / n
    points = torch.cartesian_prod(unit * 5, unit * 4 - 1)
    loc = numbers(0.4, -0.2)
    for distribution in (
        SquashedNormal(loc, loc.abs() + 0.4, bounds),
        ScaledBeta(loc.abs() + 2, loc.abs() + 3, bounds),
    ):
        total = distribution.log_prob(points).exp().sum() * (5 / n) * (4 / n)
        assert total.item() == pytest.approx(1.0, abs=1e-3)


# At the edges


@pytest.mark.parametrize("u", [20.0, -20.0])
@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1.0])
def test_saturated_actions_have_finite_numbers_and_samples_exact_ones(u, scale):
    loc = torch.tensor([[u]], requires_grad=True)
    log_scale = torch.tensor([[math.log(scale)]], requires_grad=True)
    bounds = box((1,), torch.float32, -1.0, 1.0)
    p = SquashedNormal(loc, log_scale.exp(), bounds)
    action = p.sample()
    assert action.abs().item() == 1.0
    drawn, exact = p.rsample_and_log_prob()
    if scale < 1:
        # log(1 − tanh²u) = 2 log 2 − 2|u| far out; the normal part is at its peak or
        # below.
        jacobian = 2 * math.log(2) - 2 * 20.0
        peak = -math.log(scale) - 0.5 * math.log(2 * math.pi)
        assert peak - 12 - jacobian < exact.item() <= peak - jacobian + 1e-2
    log_prob = p.log_prob(action)
    (log_prob.sum() + exact.sum() + drawn.sum()).backward()
    assert log_prob.isfinite().all()
    assert loc.grad.isfinite().all()
    assert log_scale.grad.isfinite().all()


def test_a_sample_with_its_log_prob_is_differentiated_through_both():
    bounds, gradients = box((3,), DOUBLE, -2.0, 6.0), []
    for with_log_prob in (True, False):
        torch.manual_seed(1)
        loc = torch.linspace(-1, 1, 12, dtype=DOUBLE).reshape(4, 3).requires_grad_()
        log_scale = torch.linspace(-1, 0.5, 12, dtype=DOUBLE).reshape(4, 3)
        p = SquashedNormal(loc, log_scale.requires_grad_().exp(), bounds)
        if with_log_prob:
            action, log_prob = p.rsample_and_log_prob()
        else:
            action = p.rsample()
            log_prob = p.log_prob(action)
        (action.square().sum() + log_prob.square().sum()).backward()
        gradients.append((action, log_prob, loc.grad, log_scale.grad))
    for exact, inverted in zip(*gradients, strict=True):
        torch.testing.assert_close(exact, inverted)


@pytest.mark.parametrize(
    ("make", "first", "second"),
    [
        (SquashedNormal, [0.0] * 3, [math.exp(-20), 1.0, math.exp(2)]),
        (ScaledBeta, [1.0, 0.5, 40.0], [40.0, 0.5, 1.0]),
        (TruncatedNormal, [1.0, -1.0, 1.0], [1e-3, 1e-3, 10.0]),
        (TruncatedNormal, [0.0] * 3, [1e-3] * 3),
    ],
)
def test_extreme_parameters_and_edges_stay_finite(make, first, second):
    parameters = [torch.tensor([x] * 2, requires_grad=True) for x in (first, second)]
    bounds = box((3,), torch.float32)
    p = make(*parameters, bounds)
    x = p.rsample((1000,))
    total = x.sum() + p.log_prob(x.detach()).sum() + p.entropy().sum()
    total = total + p.kl_divergence(make(*parameters, bounds)).sum()
    if make is not TruncatedNormal:  # whose density falls to 0
        edges = torch.stack([torch.full((3,), edge) for edge in (LOW, HIGH)])
        total = total + p.log_prob(edges).sum()
    total.backward()
    assert total.isfinite()
    assert all(t.grad.isfinite().all() for t in parameters)
    assert (x.min() >= LOW) & (x.max() <= HIGH)


def test_modes_for_every_shape_of_the_density():
    a, b = (
        torch.tensor([3.0, 0.5, 2.0, 1.0, 0.5]),
        torch.tensor([2.0, 2.0, 0.5, 1, 0.5]),
    )
    beta = ScaledBeta(a, b, box((5,), torch.float32, 0, 10))
    # a single peak at 2/3; at the lower edge; at the upper one; flat; two peaks
    expected = torch.tensor([20 / 3, 0.0, 10.0, 5.0, 5.0])
    torch.testing.assert_close(beta.mode, expected)
    # The image of the location
    normal = SquashedNormal(torch.tensor([[0.0, 50.0]]), torch.ones(1, 2), UNEVEN)
    assert normal.mode.tolist() == [[2.5, 3.0]]


def test_maps_stay_in_the_box_and_are_inverse_to_each_other():
    bounds = box((3,), torch.float32, [0.1, -7.3, 1e-3], [0.7, 0.2, 1e3])
    low, high = torch.tensor(bounds.spec.minimum), torch.tensor(bounds.spec.maximum)
    y = torch.linspace(-1, 1, 2001).unsqueeze(-1).expand(-1, 3)
    action = bounds.from_symmetric(y)
    assert torch.equal(action[0], low)
    assert torch.equal(action[-1], high)
    assert ((action >= low) & (action <= high)).all()
    torch.testing.assert_close(bounds.to_symmetric(action), y, atol=1e-5, rtol=0)
    unit = (y + 1) / 2
    found = bounds.to_unit(bounds.from_unit(unit))
    torch.testing.assert_close(found, unit, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("minimum", "maximum"), [(-math.inf, 1.0), (0.0, math.inf), (1.0, 1.0)]
)
def test_open_or_empty_boxes_are_refused(minimum, maximum):
    with pytest.raises(ValueError, match=r"finite bounds.*BoundedTensorSpec"):
        box((1,), torch.float32, minimum, maximum)


# Choices of one element


@pytest.mark.parametrize(
    "bounds",
    [
        ActionBounds(BoundedTensorSpec((3,), torch.float32, -1.0, 1.0)),
        ActionBounds(BoundedTensorSpec((3,), torch.int64, 0, 1)),
        ActionBounds(BoundedTensorSpec((3,), torch.bool, 0, 1)),
    ],
    ids=["floats", "integers", "bool"],
)
def test_one_hot_is_a_categorical_choice_written_otherwise(bounds):
    torch.manual_seed(0)
    logits = torch.randn(5, 3)
    p, reference = OneHotCategorical(logits, bounds), td.Categorical(logits=logits)
    x = p.sample((1000,))
    assert (x.shape, x.dtype) == ((1000, 5, 3), bounds.spec.dtype)
    unit = bounds.to_unit(x.float())
    assert set(unit.unique().tolist()) == {0.0, 1.0}
    assert (unit.sum(-1) == 1).all()
    index = unit.argmax(-1)
    torch.testing.assert_close(p.log_prob(x), reference.log_prob(index))
    torch.testing.assert_close(p.entropy(), reference.entropy())
    torch.testing.assert_close(unit.mean(0), reference.probs, atol=0.06, rtol=0)
    assert bounds.to_unit(p.mode.float()).argmax(-1).equal(logits.argmax(-1))
    other = OneHotCategorical(torch.randn(5, 3), bounds)
    expected = td.kl_divergence(reference, td.Categorical(logits=other.logits))
    torch.testing.assert_close(p.kl_divergence(other), expected)
    both = p.log_prob_and_entropy(x[0])
    torch.testing.assert_close(both, (p.log_prob(x[0]), p.entropy()))
    allowed = torch.tensor([True, False, True])
    pairs = torch.stack([torch.ones(3, dtype=torch.bool), allowed], -1).flatten()
    for mask in (allowed, pairs):
        masked = p.masked(mask.expand(5, -1))
        values = bounds.to_unit(masked.sample((500,)).float())
        assert not values[..., 1].any()
        assert masked.entropy().isfinite().all()


def test_one_hot_samples_have_the_gradient_of_the_probabilities():
    bounds = ActionBounds(BoundedTensorSpec((3,), torch.float32, -1.0, 1.0))
    logits = torch.randn(4, 3, requires_grad=True)
    weights = torch.randn(3)
    p = OneHotCategorical(logits, bounds)
    sample = p.rsample()
    assert set(sample.detach().unique().tolist()) == {-1.0, 1.0}
    (found,) = torch.autograd.grad((sample * weights).sum(), logits)
    expected = 2 * (logits.softmax(-1) * weights).sum()
    torch.testing.assert_close(found, torch.autograd.grad(expected, logits)[0])
    # −log p of a differentiable sample has the gradient of the entropy, on average.
    repeated = OneHotCategorical(logits.expand(20_000, -1, -1), bounds)
    action, log_prob = repeated.rsample_and_log_prob()
    assert set(action.detach().unique().tolist()) == {-1.0, 1.0}
    torch.testing.assert_close(log_prob, repeated.log_prob(action))
    (found,) = torch.autograd.grad(-log_prob.mean(0).sum(), logits)
    (expected,) = torch.autograd.grad(p.entropy().sum(), logits)
    torch.testing.assert_close(found, expected, atol=0.02, rtol=0)
    binary = ActionBounds(BoundedTensorSpec((3,), torch.int64, 0, 1))
    with pytest.raises(ValueError, match="integers, which no gradient goes through"):
        OneHotCategorical(logits, binary).rsample()


def test_they_are_nodes_of_nests():
    policies = {
        "cauchy": DiagonalCauchy(torch.zeros(4, 2), torch.ones(4, 2)),
        "mixture": NormalMixture(
            torch.zeros(4, 3),
            torch.zeros(4, 3, 2),
            torch.ones(4, 3, 2),
            torch.Size((2,)),
        ),
        "truncated": TruncatedNormal(
            torch.zeros(4, 2), torch.ones(4, 2), box((2,), torch.float32)
        ),
        "one hot": OneHotCategorical(torch.zeros(4, 2), box((2,), torch.float32)),
        "torch gumbel": td.Independent(td.Gumbel(torch.zeros(4, 2), 1.0), 1),
        "torch mixture": td.MixtureSameFamily(
            td.Categorical(logits=torch.zeros(4, 3)),
            td.Independent(td.Normal(torch.zeros(4, 3, 2), 1.0), 1),
        ),
    }
    assert len(nest.flatten(policies)) == 2 + 3 + 2 + 1 + 2 + 3
    rows = nest.map_structure(lambda t: t[1:3], policies)
    actions = distributions.sample(rows)
    assert distributions.log_prob(rows, actions).shape == (2,)
    assert distributions.entropy(rows).shape == (2,)
    assert distributions.kl_divergence(rows, rows).abs().max() < 1e-6
    stacked = nest.stack([rows, rows])
    assert stacked["mixture"].batch_shape == (2, 2)
    specs = nest.extract_spec(policies)
    nest.assert_same_structure(specs, policies)
    assert specs["mixture"].loc.shape == (3, 2)
    assert stacked["torch mixture"].batch_shape == (2, 2)
    assert distributions.sample(stacked)["torch gumbel"].shape == (2, 2, 2)


def test_mixtures_and_gumbels_of_torch_have_modes_entropies_and_divergences():
    torch.manual_seed(0)
    n = 20_000
    ours, other = (
        NormalMixture(
            torch.randn(3).expand(n, 3),
            torch.randn(3, 4).expand(n, 3, 4),
            (torch.rand(3, 4) + 0.2).expand(n, 3, 4),
            torch.Size((4,)),
        )
        for _ in range(2)
    )
    theirs, others = (
        td.MixtureSameFamily(
            td.Categorical(logits=p.logits),
            td.Independent(td.Normal(p.loc, p.scale), 1),
        )
        for p in (ours, other)
    )
    assert distributions.mode(theirs).equal(ours.mode)
    assert distributions.is_unbounded(theirs)
    expected = ours.entropy().mean().item()
    entropies = distributions.entropy(theirs)
    assert entropies.mean().item() == pytest.approx(expected, abs=0.05)
    expected = ours.kl_divergence(other).mean().item()
    divergence = distributions.kl_divergence(theirs, others).mean().item()
    assert divergence == pytest.approx(expected, rel=0.05)
    gumbel = td.Gumbel(torch.randn(5), torch.rand(5) + 0.1)
    assert distributions.mode(gumbel).equal(gumbel.loc)
    assert distributions.is_unbounded(gumbel)
    choices = td.MixtureSameFamily(
        td.Categorical(logits=torch.zeros(2, 3)),
        td.Categorical(logits=torch.zeros(2, 3, 5)),
    )
    with pytest.raises(ValueError, match="no entropy and no divergence of this"):
        distributions.entropy(choices)


@pytest.mark.parametrize("shape", [(1, 3), (4, 1), (4, 3)])
def test_the_likelihood_in_numpy_leaves_logits_as_they_are(shape):
    logits = torch.randn(*shape)
    before = logits.clone()
    (log_prob, entropy), _ = NumpyChoice(torch.zeros(shape[0]).long())(logits.numpy())
    assert torch.equal(logits, before)
    expected = td.Categorical(logits=before)
    torch.testing.assert_close(torch.from_numpy(entropy), expected.entropy())
    found = torch.from_numpy(log_prob)
    torch.testing.assert_close(found, before.log_softmax(-1)[:, 0])
