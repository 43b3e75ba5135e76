"""Mixtures, Cauchy, truncated normal and one-hot: densities, moments, divergences."""

from __future__ import annotations

import math

import pytest
import torch
from torch import distributions as td

from alf_lite import nest
from alf_lite.distributions import functions as distributions
from alf_lite.distributions.continuous import ActionBounds, SquashedNormal
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
    if isinstance(p, NormalMixture):  # estimates
        shape = (40_000,)
        parameters = [
            getattr(p, n).expand(*shape, *getattr(p, n).shape)
            for n in p.parameter_names
        ]
        many = NormalMixture(*parameters, p.shape, p.bounds)
        others = [
            getattr(q, n).expand(*shape, *getattr(q, n).shape)
            for n in q.parameter_names
        ]
        found = many.entropy().mean().item()
        found_kl = many.kl_divergence(NormalMixture(*others, q.shape, q.bounds)).mean()
        tolerance = 0.02
    else:
        found, found_kl, tolerance = p.entropy().item(), p.kl_divergence(q), 1e-3
    assert found == pytest.approx(entropy, abs=tolerance)
    assert found_kl.item() == pytest.approx(divergence, abs=tolerance)
    # Samples fall where the density is, the mode where it is highest.
    draws = p.sample((100_000,)).flatten()
    for level in (-0.5, 0.2, 0.9):
        below = probs[x < level].sum().item()
        assert (draws < level).double().mean().item() == pytest.approx(below, abs=0.01)
    assert draws.isfinite().all()
    at_mode = p.log_prob(p.mode)
    if kind != "squashed mixture":  # that of what is squashed
        assert at_mode >= log_p.max() - 1e-2
    assert bounds is None or (draws.min() >= LOW and draws.max() <= HIGH)


def test_they_equal_torchs():
    torch.manual_seed(0)
    loc, scale = torch.randn(6, 2), torch.rand(6, 2) + 0.3
    ours = DiagonalCauchy(loc, scale)
    theirs = td.Independent(td.Cauchy(loc, scale), 1)
    x = torch.randn(6, 2)
    torch.testing.assert_close(ours.log_prob(x), theirs.log_prob(x))
    torch.testing.assert_close(ours.entropy(), theirs.entropy())
    logits, locs, scales = torch.randn(6, 3), torch.randn(6, 3, 4), torch.rand(6, 3, 4)
    ours = NormalMixture(logits, locs, scales + 0.1, torch.Size((2, 2)))
    parts = td.Independent(td.Normal(locs, scales + 0.1), 1)
    theirs = td.MixtureSameFamily(td.Categorical(logits=logits), parts)
    x = torch.randn(5, 6, 2, 2)
    torch.testing.assert_close(ours.log_prob(x), theirs.log_prob(x.flatten(-2)))
    assert ours.sample((7,)).shape == (7, 6, 2, 2)
    assert (ours.batch_shape, ours.event_shape) == ((6,), (2, 2))
    draws = ours.sample((50_000,)).flatten(-2)
    torch.testing.assert_close(draws.mean(0), theirs.mean, atol=0.03, rtol=0.02)
    # One component is what it consists of.
    bounds = box((4,), torch.float32)
    one = NormalMixture(
        logits[:, :1], locs[:, :1], scales[:, :1] + 0.1, torch.Size((4,)), bounds
    )
    normal = SquashedNormal(locs[:, 0], scales[:, 0] + 0.1, bounds)
    action = normal.sample()
    torch.testing.assert_close(one.log_prob(action), normal.log_prob(action))
    assert one.mode.equal(normal.mode)


def test_samples_and_estimates_have_the_gradients_of_expectations():
    torch.manual_seed(0)
    loc, scale = numbers(0.4).requires_grad_(), numbers(0.5).requires_grad_()
    n = 200_000
    sample = TruncatedNormal(loc, scale, box()).rsample((n,))
    found = torch.autograd.grad(sample.square().mean(), [loc, scale])
    x, width = grid(box())
    probs = TruncatedNormal(loc, scale, box()).log_prob(x[:, None]).exp() * width
    expected = torch.autograd.grad((probs * x.square()).sum(), [loc, scale])
    for a, b in zip(found, expected, strict=True):
        assert a.item() == pytest.approx(b.item(), abs=0.03)
    p = mixture(box())
    parameters = [getattr(p, name).requires_grad_() for name in p.parameter_names]
    log_probs = p.log_prob(x[:, None])
    entropy = -(log_probs.exp() * width * log_probs).sum()
    expected = torch.autograd.grad(entropy, parameters)
    many = NormalMixture(
        *(t.expand(n, *t.shape) for t in parameters), p.shape, p.bounds
    )
    found = torch.autograd.grad(many.entropy().mean(), parameters)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, atol=0.02, rtol=0)


def test_extreme_parameters_stay_finite():
    for loc, scale in ((1.0, 1e-3), (-1.0, 1e-3), (1.0, 10.0), (0.0, 1e-3)):
        tensors = torch.tensor([loc]), torch.tensor([scale])
        for tensor in tensors:
            tensor.requires_grad_()
        p = TruncatedNormal(*tensors, box(dtype=torch.float32))
        x = p.rsample((1000,))
        total = p.log_prob(x.detach()).sum() + p.entropy() + x.sum()
        total = total + p.kl_divergence(TruncatedNormal(*tensors, p.bounds))
        total.sum().backward()
        assert total.isfinite().all()
        assert all(t.grad.isfinite().all() for t in tensors), (loc, scale)
        assert x.min() >= LOW
        assert x.max() <= HIGH


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
            *(torch.zeros(4, 3), torch.zeros(4, 3, 2), torch.ones(4, 3, 2)),
            torch.Size((2,)),
        ),
        "truncated": TruncatedNormal(
            *(torch.zeros(4, 2), torch.ones(4, 2), box((2,), torch.float32))
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
            *(torch.randn(3).expand(n, 3), torch.randn(3, 4).expand(n, 3, 4)),
            *((torch.rand(3, 4) + 0.2).expand(n, 3, 4), torch.Size((4,))),
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
