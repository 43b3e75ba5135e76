"""Nests of distributions: structure, functions over nests, speed-related contracts."""

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
from alf_lite.distributions.discrete import (
    Categorical,
    CategoryLayout,
    MultiBernoulli,
    MultiCategorical,
)
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec

BATCH = 5
BOUNDS = ActionBounds(BoundedTensorSpec((3,), torch.float32, [-1, 0, 2], [1, 5, 2.5]))
LAYOUT = CategoryLayout(BoundedTensorSpec((3,), torch.int64, 0, [1, 4, 2]))


def make_own(outer=(BATCH,)):
    """One of each of the library's distributions, parameters with gradient."""
    torch.manual_seed(0)

    def leaf(*shape, positive=False):
        values = torch.randn(*outer, *shape)
        return (values.exp() if positive else values).requires_grad_()

    return {
        "categorical": Categorical(leaf(4), minimum=2),
        "multi_categorical": MultiCategorical(leaf(10), LAYOUT),
        "multi_bernoulli": MultiBernoulli(leaf(2, 2), 2, torch.int8),
        "normal": DiagonalNormal(leaf(3), leaf(3, positive=True)),
        "scalar_normal": DiagonalNormal(leaf(), leaf(positive=True), 0),
        "squashed": SquashedNormal(leaf(3), leaf(3, positive=True), BOUNDS),
        "beta": ScaledBeta(leaf(3, positive=True), leaf(3, positive=True), BOUNDS),
    }


def make_torch():
    torch.manual_seed(0)
    loc, scale = torch.randn(BATCH, 3), torch.rand(BATCH, 3) + 0.1
    tanh = [td.TanhTransform(), td.AffineTransform(torch.zeros(3), torch.ones(3) * 2)]
    return {
        "categorical": td.Categorical(probs=torch.rand(BATCH, 4)),
        "normal": td.Independent(td.Normal(loc, scale), 1),
        "beta": td.Independent(td.Beta(scale + 1, scale + 2), 1),
        "bernoulli": td.Independent(td.Bernoulli(logits=loc), 1),
        "one_hot": td.OneHotCategorical(logits=loc),
        "straight_through": td.OneHotCategoricalStraightThrough(logits=loc),
        "squashed": td.TransformedDistribution(
            td.Independent(td.Normal(loc, scale), 1), tanh
        ),
    }


ALL = {
    **{f"own_{k}": d for k, d in make_own().items()},
    **{f"torch_{k}": d for k, d in make_torch().items()},
}


@pytest.fixture(params=ALL.values(), ids=ALL.keys())
def distribution(request):
    torch.manual_seed(1)
    return request.param


# Nodes of nests


def test_flatten_gives_tensors_and_packing_gives_the_same_distribution(distribution):
    leaves = nest.flatten(distribution)
    assert leaves
    assert all(isinstance(leaf, torch.Tensor) for leaf in leaves)
    rebuilt = nest.pack_sequence_as(distribution, leaves)
    assert type(rebuilt) is type(distribution)
    action = distributions.sample(distribution)
    torch.testing.assert_close(
        distributions.log_prob(rebuilt, action),
        distributions.log_prob(distribution, action),
    )


def test_index_and_stack_commute_with_log_prob(distribution):
    action = distributions.sample(distribution)
    expected = distributions.log_prob(distribution, action)
    rows = [nest.map_structure(lambda t, i=i: t[i], distribution) for i in range(BATCH)]
    assert rows[2].batch_shape == ()
    torch.testing.assert_close(
        torch.stack([distributions.log_prob(r, action[i]) for i, r in enumerate(rows)]),
        expected,
    )
    stacked = nest.stack([distribution, distribution])
    assert stacked.batch_shape == (2, BATCH)
    assert stacked.event_shape == distribution.event_shape
    torch.testing.assert_close(
        distributions.log_prob(stacked, torch.stack([action, action])),
        torch.stack([expected, expected]),
    )


def test_extract_spec_keeps_the_node_and_tells_shapes(distribution):
    spec = nest.extract_spec(distribution)
    assert type(spec) is type(distribution)
    leaves = nest.flatten(spec)
    assert all(type(leaf) is TensorSpec for leaf in leaves)
    assert [leaf.shape for leaf in leaves] == [
        t.shape[1:] for t in nest.flatten(distribution)
    ]
    nest.assert_same_structure(spec, distribution)
    zeros = nest.zeros(spec, (2,))
    assert zeros.batch_shape == (2,)


@pytest.mark.parametrize("filler", ["text", TensorSpec((2,)), 1.5])
def test_placeholder_has_the_structure_and_a_repr(distribution, filler):
    placeholder = nest.map_structure(lambda _: filler, distribution)
    nest.assert_same_structure(placeholder, distribution)
    assert nest.flatten(placeholder) == [filler] * len(nest.flatten(distribution))
    assert type(distribution).__name__ in repr(placeholder)
    back = nest.pack_sequence_as(placeholder, nest.flatten(distribution))
    action = distributions.sample(distribution)
    torch.testing.assert_close(
        distributions.log_prob(back, action),
        distributions.log_prob(distribution, action),
    )


def test_none_leaves_give_a_placeholder(distribution):
    placeholder = nest.map_structure(lambda _: None, distribution)
    assert type(placeholder) is type(distribution)
    assert nest.is_empty(placeholder)


def test_detach_removes_every_gradient():
    detached = distributions.detach(make_own())
    assert not any(t.requires_grad for t in nest.flatten(detached))
    action = distributions.sample(detached)
    assert not distributions.log_prob(detached, action).requires_grad


def test_parts_are_the_distributions_in_the_order_of_the_leaves():
    first, second = Categorical(torch.zeros(2, 3)), Categorical(torch.zeros(2, 4))
    assert distributions.parts({"b": second, "a": first}) == [first, second]
    assert distributions.parts(first) == [first]


def test_constants_are_part_of_the_structure():
    logits = torch.zeros(2, 3)
    with pytest.raises(ValueError, match="different kinds"):
        nest.assert_same_structure(Categorical(logits), Categorical(logits, minimum=1))
    wide = ActionBounds(BoundedTensorSpec((3,), torch.float32, -2, 2))
    loc, scale = torch.zeros(2, 3), torch.ones(2, 3)
    with pytest.raises(ValueError, match="different kinds"):
        nest.assert_same_structure(
            SquashedNormal(loc, scale, BOUNDS), SquashedNormal(loc, scale, wide)
        )
    equal = ActionBounds(BOUNDS.spec)
    nest.assert_same_structure(
        SquashedNormal(loc, scale, BOUNDS), SquashedNormal(loc, scale, equal)
    )


# Functions over nests


def test_log_prob_entropy_and_kl_are_sums_over_the_nest_and_have_batch_shape():
    own, other = make_own(), nest.map_structure(lambda t: t * 0.9, make_own())
    policy = {"a": own["categorical"], "b": (own["beta"], [own["normal"]])}
    reference = {"a": other["categorical"], "b": (other["beta"], [other["normal"]])}
    actions = distributions.sample(policy)
    assert set(actions) == {"a", "b"}
    assert isinstance(actions["b"][1], list)
    parts = [own["categorical"], own["beta"], own["normal"]]
    flat_actions = [actions["a"], actions["b"][0], actions["b"][1][0]]
    expected = sum(d.log_prob(a) for d, a in zip(parts, flat_actions, strict=True))
    assert expected.shape == (BATCH,)
    torch.testing.assert_close(distributions.log_prob(policy, actions), expected)
    torch.testing.assert_close(
        distributions.entropy(policy), sum(d.entropy() for d in parts)
    )
    others = [other["categorical"], other["beta"], other["normal"]]
    torch.testing.assert_close(
        distributions.kl_divergence(policy, reference),
        sum(td.kl_divergence(p, q) for p, q in zip(parts, others, strict=True)),
    )


def test_time_major_batches_give_time_major_results():
    policy = make_own(outer=(7, BATCH))
    actions = distributions.sample(policy)
    assert distributions.log_prob(policy, actions).shape == (7, BATCH)
    assert distributions.entropy(policy).shape == (7, BATCH)
    assert distributions.epsilon_greedy(policy, 0.5)["squashed"].shape == (7, BATCH, 3)


def test_samples_follow_the_global_generator_and_carry_no_gradient(distribution):
    torch.manual_seed(3)
    first = distributions.sample(distribution)
    torch.manual_seed(3)
    second = distributions.sample(distribution)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    assert not first.requires_grad


def test_sample_shape_is_put_in_front(distribution):
    draws = distribution.sample((11,))
    assert draws.shape == (11, BATCH, *distribution.event_shape)
    assert distribution.log_prob(draws).shape == (11, BATCH)
    # Rows of one distribution differ: noise is not shared.
    assert len(torch.unique(distribution.sample((50,)).flatten(1), dim=0)) > 1


def test_rsample_and_log_prob_agree_with_log_prob_and_have_gradients():
    own = make_own()
    policy = (own["normal"], own["squashed"], own["beta"])
    actions, log_prob = distributions.rsample_and_log_prob(policy)
    # The density of an action is as precise as its float32 digits.
    torch.testing.assert_close(
        log_prob, distributions.log_prob(policy, actions), rtol=1e-3, atol=1e-3
    )
    (sum(a.sum() for a in actions) + log_prob.sum()).backward()
    for leaf in nest.flatten(policy):
        assert leaf.grad.isfinite().all()
        assert (leaf.grad != 0).any()


@pytest.mark.parametrize("as_nest", [False, True])
def test_rsample_of_a_discrete_distribution_is_refused(as_nest):
    categorical = Categorical(torch.zeros(2, 3))
    policy = {"x": categorical} if as_nest else categorical
    with pytest.raises(ValueError, match=r"Categorical.*no reparametrised sample"):
        distributions.rsample(policy)
    with pytest.raises(ValueError, match="no reparametrised sample"):
        distributions.rsample_and_log_prob(policy)


def test_mode_maximises_log_prob_among_samples():
    own = make_own()
    for name in ("categorical", "multi_categorical", "multi_bernoulli", "normal"):
        best = own[name].log_prob(distributions.mode(own[name]))
        draws = own[name].sample((200,))
        assert (own[name].log_prob(draws) <= best + 1e-5).all(), name


def test_mode_of_torch_distributions():
    logits = torch.tensor([[-1.0, 0.0, 2.0]])
    bernoulli = td.Independent(td.Bernoulli(logits=logits), 1)
    torch.testing.assert_close(
        distributions.mode(bernoulli), torch.tensor([[0.0, 0.0, 1.0]])
    )
    normal = td.Independent(td.Normal(logits, torch.ones(1, 3)), 1)
    squashed = td.TransformedDistribution(normal, [td.TanhTransform()])
    torch.testing.assert_close(distributions.mode(squashed), logits.tanh())
    one_hot = td.OneHotCategorical(logits=logits)
    torch.testing.assert_close(
        distributions.mode(one_hot), torch.tensor([[0.0, 0.0, 1.0]])
    )


def test_epsilon_greedy_mixes_per_row_and_alike_for_all_parts():
    rows = 4000
    policy = {
        "discrete": Categorical(torch.tensor([2.0, 0.0]).expand(rows, 2)),
        "continuous": DiagonalNormal(torch.zeros(rows, 2), torch.ones(rows, 2)),
    }
    torch.manual_seed(0)
    actions = distributions.epsilon_greedy(policy, 0.25)
    explored = (actions["continuous"] != 0).any(-1)
    assert explored.float().mean().item() == pytest.approx(0.25, abs=0.03)
    assert (actions["discrete"][~explored] == 0).all()
    p_other = 1 / (1 + math.exp(2))
    drawn = actions["discrete"][explored].float().mean().item()
    assert drawn == pytest.approx(p_other, abs=0.04)

    greedy = distributions.epsilon_greedy(policy, 0.0)
    assert (greedy["discrete"] == 0).all()
    assert (greedy["continuous"] == 0).all()
    sampled = distributions.epsilon_greedy(policy, 1.0)
    assert (sampled["continuous"] != 0).any(-1).all()
    with pytest.raises(ValueError, match=r"epsilon must be in \[0, 1\], got 1.5"):
        distributions.epsilon_greedy(policy, 1.5)


def test_entropy_without_closed_form_is_estimated_with_the_right_gradient():
    loc = torch.zeros(40000, 1)
    scale = torch.tensor(0.5, requires_grad=True)
    normal = td.Independent(td.Normal(loc, scale.expand_as(loc)), 1)
    scaled = td.TransformedDistribution(normal, [td.AffineTransform(0.0, 3.0)])
    torch.manual_seed(0)
    entropy = distributions.entropy(scaled).mean()
    expected = 0.5 * math.log(2 * math.pi * math.e * (1.5) ** 2)
    assert entropy.item() == pytest.approx(expected, abs=0.02)
    entropy.backward()
    assert scale.grad.item() == pytest.approx(1 / 0.5, rel=0.02)


def test_torch_and_own_classes_mix_in_one_nest():
    own, torchs = make_own(), make_torch()
    policy = {"x": own["normal"], "y": torchs["one_hot"]}
    actions = distributions.sample(policy)
    torch.testing.assert_close(
        distributions.log_prob(policy, actions),
        own["normal"].log_prob(actions["x"]) + torchs["one_hot"].log_prob(actions["y"]),
    )


# Bad input


def test_actions_of_another_structure_are_refused():
    policy = {"arm": Categorical(torch.zeros(2, 3))}
    action = torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ValueError, match="arm"):
        distributions.log_prob(policy, {"leg": action})


def test_leaves_that_are_no_distributions_are_refused():
    for function in (distributions.sample, distributions.mode):
        with pytest.raises(TypeError, match=r"nest of distributions.*Tensor"):
            function({"x": torch.zeros(2)})


def test_an_empty_nest_is_refused():
    with pytest.raises(ValueError, match="empty nest"):
        distributions.log_prob((), ())


def test_batch_shapes_that_differ_are_refused():
    policy = (Categorical(torch.zeros(2, 3)), td.Normal(torch.zeros(2, 4), 1.0))
    actions = distributions.sample(policy)
    with pytest.raises(ValueError, match=r"different batch shapes.*Independent"):
        distributions.log_prob(policy, actions)


def test_kl_between_different_kinds_or_boxes_is_refused():
    loc, scale = torch.zeros(2, 3), torch.ones(2, 3)
    other = ActionBounds(BoundedTensorSpec((3,), torch.float32, -2, 2))
    squashed = SquashedNormal(loc, scale, BOUNDS)
    with pytest.raises(ValueError, match="kl_divergence"):
        distributions.kl_divergence(squashed, DiagonalNormal(loc, scale))
    with pytest.raises(ValueError, match="kl_divergence"):
        distributions.kl_divergence(squashed, SquashedNormal(loc, scale, other))


# torch.compile


def _act_and_evaluate(logits, loc):
    policy = {
        "discrete": Categorical(logits, minimum=1),
        "vector": MultiCategorical(logits.repeat(1, 5), LAYOUT),
        "continuous": SquashedNormal(loc, loc.exp(), BOUNDS),
    }
    actions = distributions.sample(policy)
    # A nest that goes through the functions of alf_lite.nest within the graph.
    policy = nest.map_structure(lambda t: t * 1.0, policy)
    log_prob = distributions.log_prob(policy, actions)
    bounded = (policy["continuous"], ScaledBeta(loc.exp(), loc.exp() + 1, BOUNDS))
    drawn, _ = distributions.rsample_and_log_prob(bounded)
    assert len(distributions.epsilon_greedy(bounded, 0.5)) == len(drawn)
    kl = distributions.kl_divergence(bounded, distributions.detach(bounded))
    log_prob = log_prob + kl + distributions.entropy(bounded) * 0
    return policy, actions, log_prob, distributions.entropy(policy["discrete"])


def _check_compiled(backend):
    torch.manual_seed(0)
    logits, loc = torch.randn(4, 2, requires_grad=True), torch.randn(4, 3)
    compiled = torch.compile(_act_and_evaluate, fullgraph=True, backend=backend)
    policy, actions, log_prob, entropy = compiled(logits, loc)
    assert type(policy["continuous"]) is SquashedNormal
    torch.testing.assert_close(log_prob, distributions.log_prob(policy, actions))
    torch.testing.assert_close(entropy, policy["discrete"].entropy())
    assert log_prob.requires_grad


@pytest.mark.ci
def test_traces_without_a_graph_break():
    _check_compiled("eager")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_compiles_without_a_graph_break():
    _check_compiled("inductor")


def test_many_equal_choices_are_drawn_and_evaluated_as_one_after_the_other():
    torch.manual_seed(0)
    choices = [Categorical(torch.randn(5, 3)) for _ in range(6)]
    others = [DiagonalNormal(torch.randn(5, 2), torch.rand(5, 2) + 0.1)]
    smaller = [Categorical(torch.randn(5, 2), minimum=1) for _ in range(4)]
    policy = [*choices, *others, *smaller]
    torch.manual_seed(1)
    expected = [part.sample() for part in policy]
    torch.manual_seed(1)
    actions = distributions.sample(policy)
    assert all(map(torch.equal, actions, expected))
    modes = distributions.mode(policy)
    assert all(torch.equal(a, part.mode) for a, part in zip(modes, policy, strict=True))
    log_probs = [part.log_prob(a) for part, a in zip(policy, actions, strict=True)]
    torch.testing.assert_close(distributions.log_prob(policy, actions), sum(log_probs))
    entropies = [part.entropy() for part in policy]
    torch.testing.assert_close(distributions.entropy(policy), sum(entropies))
    # Actions with a dimension of their own
    several = [torch.stack([a, a, a]) for a in actions]
    log_prob = distributions.log_prob(policy, several)
    torch.testing.assert_close(log_prob, torch.stack([sum(log_probs)] * 3))
