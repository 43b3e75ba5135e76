from __future__ import annotations

import math

import pytest
import torch
from torch import distributions as td

from alf_lite.config import files as config_files
from alf_lite.distributions import functions as distributions
from alf_lite.distributions.action_masks import ActionMask, RecordedActions
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
from alf_lite.errors import ConfigError
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec

STATE = TensorSpec((2,))
CHOICE = BoundedTensorSpec((), torch.int64, 0, 2)
PAIR = BoundedTensorSpec((2,), torch.int64, 0, [1, 2])  # 2 and 3 values
SWITCHES = BoundedTensorSpec((2,), torch.int8, 0, 1)
BOX = BoundedTensorSpec((2,), torch.float32, -1, 1)
# Flattened, the discrete parts are "choice" with 3 values and "pair" with 2 + 3.
MIXED = {"pair": PAIR, "choice": CHOICE, "force": BOX}
RECORDED_BOX = BoundedTensorSpec((2,), torch.float32, [-1.0, 0.0], [1.0, 10.0])
RECORDED_CHOICE = BoundedTensorSpec((), torch.int64, 3, 5)


def bits(*shape: int, dtype=torch.int8) -> BoundedTensorSpec:
    return BoundedTensorSpec(shape, dtype, 0, 1)


def make(mask_spec, action_spec=CHOICE, **kwargs) -> ActionMask:
    observation_spec = {"mask": mask_spec, "state": STATE}
    return ActionMask(observation_spec, action_spec, "mask", **kwargs)


def observe(mask) -> dict:
    rows = torch.as_tensor(mask) if isinstance(mask, list) else mask
    return {"mask": rows, "state": torch.zeros(1, 2)}


# Taking the mask out


def test_the_mask_is_taken_out_of_the_observation():
    action_mask = make(bits(3))
    assert action_mask.exists
    assert action_mask.remaining_spec == {"state": STATE}
    mask = torch.tensor([[0, 1, 1], [1, 0, 0]], dtype=torch.int8)
    state = torch.zeros(2, 2)
    remaining, allowed = action_mask.split({"mask": mask, "state": state})
    assert list(remaining) == ["state"]
    assert remaining["state"] is state
    assert allowed.tolist() == [[False, True, True], [True, False, False]]


def test_a_mask_of_several_dimensions_is_flattened():
    action_mask = make(bits(2, 2), BoundedTensorSpec((2,), torch.int64, 0, 1))
    _, allowed = action_mask.split(observe([[[0, 1], [1, 1]]]))
    assert allowed.tolist() == [[False, True, True, True]]


def test_the_mask_of_a_single_value_may_be_a_number():
    _, allowed = make(bits(), BoundedTensorSpec((), torch.int64, 4, 4)).split(
        observe([1, 0])
    )
    assert allowed.tolist() == [[True], [False]]


def test_a_nest_of_masks_is_joined_in_the_order_of_the_actions():
    action_mask = make({"pair": bits(5), "choice": bits(3)}, MIXED)
    mask = {
        "pair": torch.tensor([[1, 0, 0, 1, 0]]),
        "choice": torch.tensor([[0, 0, 1]]),
    }
    remaining, allowed = action_mask.split(observe(mask))
    assert list(remaining) == ["state"]
    assert allowed.int().tolist() == [[0, 0, 1, 1, 0, 0, 1, 0]]


def test_without_a_key_the_observation_stays_as_it_is():
    action_mask = ActionMask(STATE, CHOICE, None)
    assert not action_mask.exists
    assert action_mask.remaining_spec == STATE
    observation, policy, action = torch.zeros(1, 2), object(), object()
    remaining, mask = action_mask.split(observation)
    assert remaining is observation
    assert mask is None
    assert action_mask.apply(policy, mask) is policy
    assert action_mask.redraw(action, observation) is action
    assert action_mask.num_joint_values(observation) is None
    assert action_mask.allowed_joint_values(observation) is None


def test_a_mask_that_is_not_there_cannot_be_visible():
    with pytest.raises(ConfigError, match="visible_to_networks has no effect: there"):
        ActionMask({"mask": bits(3)}, CHOICE, None, visible_to_networks=True)


def test_networks_see_the_mask_if_a_conf_wants_it():
    config_files.parse_config_text("ActionMask.visible_to_networks = True")
    action_mask = make(bits(3))
    assert set(action_mask.remaining_spec) == {"mask", "state"}
    observation = observe([[0, 1, 1]])
    remaining, allowed = action_mask.split(observation)
    assert remaining is observation
    assert allowed.tolist() == [[False, True, True]]


# Ruling out


def mixed_policy(batch_size: int = 1) -> dict:
    torch.manual_seed(0)
    return {
        "choice": Categorical(torch.randn(batch_size, 3)),
        "force": DiagonalNormal(torch.randn(batch_size, 2), torch.ones(batch_size, 2)),
        "pair": MultiCategorical(torch.randn(batch_size, 5), CategoryLayout(PAIR)),
    }


def test_every_component_has_a_mask_of_its_own():
    policy = mixed_policy()
    action_mask = make(bits(8), MIXED)
    _, mask = action_mask.split(observe([[1, 0, 1, 0, 1, 1, 1, 0]]))
    masked = action_mask.apply(policy, mask)
    assert masked["force"] is policy["force"]

    def renormalized(logits: list[float], allowed: list[int]) -> dict[int, float]:
        total = sum(math.exp(logits[i]) for i in allowed)
        return {i: math.exp(logits[i]) / total for i in allowed}

    choice = renormalized(policy["choice"].logits[0].tolist(), [0, 2])
    second = renormalized(policy["pair"].logits[0, 2:].tolist(), [0, 1])
    force = torch.zeros(1, 2)
    entropy = policy["force"].entropy().item()
    for probs in (choice, second):
        entropy -= sum(p * math.log(p) for p in probs.values())
    assert distributions.entropy(masked).item() == pytest.approx(entropy, rel=1e-5)
    for i in range(3):
        for j in range(2):
            for k in range(3):
                action = {
                    "choice": torch.tensor([i]),
                    "pair": torch.tensor([[j, k]]),
                    "force": force,
                }
                prob = choice.get(i, 0.0) * (j == 1) * second.get(k, 0.0)
                log_prob = distributions.log_prob(masked, action)
                log_prob = log_prob - policy["force"].log_prob(force)
                assert math.isfinite(log_prob.item())
                assert log_prob.exp().item() == pytest.approx(prob, rel=1e-5)


def test_samples_and_modes_are_allowed_whatever_the_logits_are():
    torch.manual_seed(0)
    action_mask = make(bits(8), MIXED)
    mask = torch.rand(2000, 8) < 0.5
    mask[:, [1, 3, 5]] |= ~torch.stack(
        [rows.any(1) for rows in mask.split([3, 2, 3], dim=1)], dim=1
    )
    mask = mask.to(torch.int8)
    policy = mixed_policy(2000)
    policy["choice"] = Categorical(1e4 * policy["choice"].logits)
    policy["pair"] = MultiCategorical(1e4 * policy["pair"].logits, CategoryLayout(PAIR))
    _, allowed = action_mask.split({"mask": mask, "state": torch.zeros(2000, 2)})
    masked = action_mask.apply(policy, allowed)
    for draw in (
        distributions.sample(masked),
        distributions.mode(masked),
        distributions.epsilon_greedy(masked, 0.5),
        action_mask.redraw(distributions.sample(policy), {"mask": mask}),
    ):
        rows = torch.arange(2000)
        assert mask[rows, draw["choice"]].all()
        assert mask[rows, 3 + draw["pair"][:, 0]].all()
        assert mask[rows, 5 + draw["pair"][:, 1]].all()


def test_binary_elements_have_an_entry_for_0_and_one_for_1():
    action_mask = make(bits(2, 2), SWITCHES)
    rows = [[[1, 0], [1, 1]], [[0, 1], [0, 1]], [[1, 1], [1, 0]]]
    _, mask = action_mask.split(observe(rows))
    policy = MultiBernoulli(torch.tensor([[3.0, 0.5]]).repeat(3, 1), 1, torch.int8)
    masked = action_mask.apply(policy, mask)
    p, q = torch.tensor([3.0, 0.5]).sigmoid().tolist()
    torch.testing.assert_close(
        masked.probs, torch.tensor([[0.0, q], [1.0, 1.0], [p, 0.0]])
    )
    torch.manual_seed(0)
    assert (masked.sample((500,))[:, 1] == 1).all()
    assert masked.mode.tolist() == [[0, 1], [1, 1], [1, 0]]

    def entropy(p: float) -> float:
        return -(p * math.log(p) + (1 - p) * math.log(1 - p))

    assert masked.entropy().tolist() == pytest.approx([entropy(q), 0.0, entropy(p)])
    log_prob = masked.log_prob(torch.tensor([[0, 1], [1, 1], [0, 0]]))
    assert log_prob.tolist() == pytest.approx([math.log(q), 0.0, math.log(1 - p)])


@pytest.mark.parametrize(
    "policy",
    [
        Categorical(torch.tensor([[1.0, 2.0, 3.0]])),
        td.Categorical(logits=torch.tensor([[1.0, 2.0, 3.0]])),
    ],
)
def test_torchs_categories_are_masked_alike(policy):
    action_mask = make(bits(3))
    masked = action_mask.apply(policy, action_mask.split(observe([[1, 1, 0]]))[1])
    assert type(masked) is type(policy)
    p = 1 / (1 + math.e)
    expected = torch.tensor([[p, 1 - p, 0.0]])
    torch.testing.assert_close(masked.probs, expected, atol=0, rtol=1e-5)
    assert masked.probs[0, 2] == 0
    entropy = -(p * math.log(p) + (1 - p) * math.log(1 - p))
    assert distributions.entropy(masked).item() == pytest.approx(entropy)


def test_torchs_independent_distributions_are_masked():
    mask = torch.tensor([[True, False, True, True]])
    categories = td.Independent(td.Categorical(logits=torch.zeros(1, 2, 2)), 1)
    two = BoundedTensorSpec((2,), torch.int64, 0, [1, 1])
    masked = make(bits(4), two).apply(categories, mask)
    assert masked.base_dist.probs.tolist() == [[[1.0, 0.0], [0.5, 0.5]]]
    coins = td.Independent(td.Bernoulli(logits=torch.zeros(1, 2)), 1)
    masked = make(bits(4), two).apply(coins, mask)
    assert masked.base_dist.probs.tolist() == [[0.0, 0.5]]
    assert masked.entropy().item() == pytest.approx(math.log(2))


def test_a_row_without_an_allowed_value_stays_finite():
    action_mask = make(bits(8), MIXED)
    _, mask = action_mask.split(observe([[0] * 8]))
    policy = mixed_policy()
    logits = policy["pair"].logits.requires_grad_()
    masked = action_mask.apply(policy, mask)
    choices = {key: masked[key] for key in ("choice", "pair")}
    entropy = distributions.entropy(choices)
    assert entropy.item() == pytest.approx(math.log(3 * 2 * 3), rel=1e-5)
    entropy.backward()
    assert (logits.grad == 0).all()
    torch.manual_seed(0)
    for _ in range(100):  # no value that the smaller component does not have
        assert (distributions.sample(masked)["pair"] <= torch.tensor([1, 2])).all()
    drawn = action_mask.redraw(distributions.sample(policy), observe([[0] * 8]))
    assert (drawn["pair"] <= torch.tensor([1, 2])).all()


def test_random_actions_are_uniform_over_those_allowed():
    torch.manual_seed(0)
    action_mask = make(bits(8), MIXED)
    mask = torch.tensor([[1, 0, 1, 1, 1, 0, 1, 1]]).repeat(4000, 1)
    action = {
        "choice": torch.ones(4000, dtype=torch.int64),
        "force": torch.randn(4000, 2),
        "pair": torch.zeros(4000, 2, dtype=torch.int64),
    }
    drawn = action_mask.redraw(action, {"mask": mask})
    assert drawn["force"] is action["force"]
    columns = [drawn["choice"], *drawn["pair"].T]
    for column, values in zip(columns, [(0, 2), (0, 1), (1, 2)], strict=True):
        assert set(column.tolist()) == set(values)
        share = (column == values[0]).float().mean().item()
        assert share == pytest.approx(0.5, abs=0.03)


def test_joint_values_are_counted():
    action_mask = make(bits(8), MIXED)
    mask = torch.tensor([[1, 0, 1, 1, 1, 0, 1, 0], [1] * 8, [1] * 3 + [0] * 5])
    counts = action_mask.num_joint_values({"mask": mask})
    assert counts.tolist() == [2 * 2 * 1, 3 * 2 * 3, 0]


def test_joint_values_are_allowed_if_all_of_their_components_are():
    action_mask = make(bits(8), MIXED)
    torch.manual_seed(0)
    mask = torch.randint(0, 2, (20, 8), dtype=torch.int8)
    allowed = action_mask.allowed_joint_values({"mask": mask})
    assert allowed.shape == (20, 18)
    for row, expected in zip(mask.bool(), allowed, strict=True):
        choice, first, second = row.split([3, 2, 3])
        joint = [bool(a & b & c) for a in choice for b in first for c in second]
        assert expected.tolist() == joint
    assert torch.equal(allowed.sum(1), action_mask.num_joint_values({"mask": mask}))


# Bad input


def test_a_key_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="expected a dict of observations"):
        ActionMask(STATE, CHOICE, "mask")
    with pytest.raises(ValueError, match=r"with the key 'masks'.*Did you mean 'mask'"):
        ActionMask({"mask": bits(3), "state": STATE}, CHOICE, "masks")


def test_an_action_is_allowed_if_all_of_its_discrete_parts_are():
    action_mask = make(bits(8), MIXED)
    mask = torch.tensor(
        # choice   pair
        [[0, 1, 1, 1, 0, 1, 0, 1]] * 4 + [[0] * 8],
        dtype=torch.int8,
    )
    action = {
        "choice": torch.tensor([1, 0, 1, 2, 1]),
        "pair": torch.tensor([[0, 2], [0, 2], [1, 2], [0, 1], [0, 0]]),
        "force": torch.zeros(5, 2),
    }
    allowed = action_mask.allows(action, observe(mask))
    assert allowed.tolist() == [True, False, False, False, False]
    without = ActionMask({"state": STATE}, MIXED, None)
    assert without.allows(action, observe(mask)) is None


@pytest.mark.parametrize(
    ("mask_spec", "action_spec", "match"),
    [
        (bits(4), CHOICE, r"\['mask'\] must have one entry for each of the 3 values"),
        (bits(3), MIXED, r"one entry for each of the 8 values .*\[3, 2, 3\]"),
        (bits(2, 4), MIXED, "one entry for each of the 8 values"),
        (
            bits(3, 2),
            BoundedTensorSpec((2,), torch.int64, 0, 2),
            r"one entry for each of the 6 values.*shape=\(3, 2\)",
        ),
        (
            {"pair": bits(3), "choice": bits(5)},
            MIXED,
            r"observation\['mask'\].choice must have one entry for each of the 3",
        ),
        ({"pair": bits(5)}, MIXED, r"entries of the discrete actions.*'choice'"),
        (TensorSpec((3,)), CHOICE, "must be bool, or integers that are 0 or 1"),
        (bits(3, dtype=torch.float32), CHOICE, "must be bool, or integers"),
        (TensorSpec((3,), torch.int8), CHOICE, "must be bool, or integers"),
        (BoundedTensorSpec((3,), torch.int8, -1, 1), CHOICE, "must be bool"),
        (bits(3), BOX, "no action is discrete"),
        (
            bits(3),
            {"choice": TensorSpec((), torch.int64)},
            r"\['choice'\]: expected bounds for a discrete action",
        ),
    ],
)
def test_a_mask_that_does_not_fit_is_refused(mask_spec, action_spec, match):
    with pytest.raises(ValueError, match=match):
        make(mask_spec, action_spec)


def test_masks_of_bools_are_taken():
    _, allowed = make(TensorSpec((3,), torch.bool)).split(
        observe([[True, False, True]])
    )
    assert allowed.tolist() == [[True, False, True]]


def test_an_observation_of_nothing_but_the_mask_names_the_way_out():
    with pytest.raises(ValueError, match="visible_to_networks = True"):
        ActionMask({"mask": bits(3)}, CHOICE, "mask")
    visible = ActionMask({"mask": bits(3)}, CHOICE, "mask", visible_to_networks=True)
    assert visible.remaining_spec == {"mask": bits(3)}


def test_a_policy_that_is_not_discrete_is_refused():
    mask = torch.ones(1, 3, dtype=torch.bool)
    normal = DiagonalNormal(torch.zeros(1, 3), torch.ones(1, 3))
    with pytest.raises(ValueError, match=r"DiagonalNormal.*is not discrete"):
        make(bits(3)).apply(normal, mask)
    with pytest.raises(ValueError, match=r"Normal.*is not discrete"):
        make(bits(3)).apply(td.Normal(torch.zeros(1), torch.ones(1)), mask)


def recorded(action_spec, **kwargs) -> RecordedActions:
    mask = ActionMask(TensorSpec((3,)), action_spec, None)
    return RecordedActions(action_spec, mask, **kwargs)


def test_continuous_actions_keep_a_margin_from_their_bounds():
    action = torch.tensor([[[-1.0, 12.0], [0.5, 5.0]]])  # [B, T, 2]
    clipped = recorded(RECORDED_BOX, action_margin=0.1).clip(action)
    torch.testing.assert_close(
        clipped, torch.tensor([[[-0.9, 9.5], [0.5, 5.0]]]), atol=1e-6, rtol=0
    )
    assert torch.equal(
        recorded(RECORDED_BOX, action_margin=0).clip(action),
        torch.tensor([[[-1.0, 10.0], [0.5, 5.0]]]),
    )


def test_a_bound_on_one_side_only_has_no_margin():
    spec = BoundedTensorSpec((2,), torch.float32, [0.0, -math.inf], [math.inf, 1.0])
    action = torch.tensor([[-1.0, -1e30], [1e30, 2.0]])
    expected = torch.tensor([[0.0, -1e30], [1e30, 1.0]])
    assert torch.equal(recorded(spec).clip(action), expected)


def test_a_range_too_wide_for_its_dtype_counts_as_unbounded():
    spec = BoundedTensorSpec((), torch.float32, -3e38, 3e38)
    action = torch.tensor([-1e38, 2.0])
    assert torch.equal(recorded(spec).clip(action), action)


def test_discrete_actions_become_possible_ones_and_unbounded_ones_stay():
    spec = {
        "a": RECORDED_CHOICE,
        "b": TensorSpec((), torch.bool),
        "c": TensorSpec((1,)),
    }
    action = {
        "a": torch.tensor([0, 4, 9]),
        "b": torch.tensor([True, False, True]),
        "c": torch.tensor([[1e9], [0.0], [-7.0]]),
    }
    clipped = recorded(spec).clip(action)
    assert clipped["a"].tolist() == [3, 4, 5]
    assert clipped["a"].dtype == torch.int64
    assert torch.equal(clipped["b"], action["b"])
    assert torch.equal(clipped["c"], action["c"])
    assert action["a"].tolist() == [0, 4, 9]  # the caller's stay


@pytest.mark.parametrize("edge", [[-1.0, 0.0], [1.0, 10.0]])
def test_actions_on_their_bounds_do_not_dwarf_the_others(edge):
    bounds = ActionBounds(RECORDED_BOX)
    loc = torch.zeros(1, 2, requires_grad=True)
    scale = torch.ones(1, 2, requires_grad=True)
    actions = recorded(RECORDED_BOX)
    clipped = actions.clip(torch.tensor([edge]))
    policy = SquashedNormal(loc, scale, bounds)
    actions.log_prob(policy, clipped, ()).sum().backward()
    # d log N(u; 0, 1) / d loc = u
    u = math.atanh(0.999)
    torch.testing.assert_close(
        loc.grad.abs(), torch.full((1, 2), u), atol=1e-2, rtol=0.0
    )
    torch.testing.assert_close(
        scale.grad, torch.full((1, 2), u * u - 1), atol=0.1, rtol=0.0
    )
    beta = ScaledBeta(torch.full((1, 2), 3.0), torch.full((1, 2), 2.0), bounds)
    assert actions.log_prob(beta, clipped, ()).item() > -30  # -62 on the edge


def test_what_the_mask_rules_out_has_no_gradient():
    mask = ActionMask(
        {"mask": BoundedTensorSpec((3,), torch.int8, 0, 1), "x": TensorSpec((1,))},
        RECORDED_CHOICE,
        "mask",
    )
    observation = {
        "mask": torch.tensor([[1, 1, 0], [1, 1, 0], [0, 0, 0]], dtype=torch.int8),
        "x": torch.zeros(3, 1),
    }
    logits = torch.zeros(3, 3, requires_grad=True)
    policy = mask.apply(Categorical(logits, 3), observation["mask"].bool())
    actions = RecordedActions(RECORDED_CHOICE, mask)
    log_prob = actions.log_prob(policy, torch.tensor([4, 5, 3]), observation)
    assert log_prob.tolist() == pytest.approx([-math.log(2), 0.0, 0.0])
    log_prob.sum().backward()
    assert logits.grad[0].tolist() == pytest.approx([-0.5, 0.5, 0.0])
    assert not logits.grad[1:].any()


@pytest.mark.parametrize("margin", [-0.1, 1.0])
def test_a_margin_that_leaves_nothing_is_an_error(margin):
    with pytest.raises(ValueError, match=r"action_margin must lie in \[0, 1\)"):
        recorded(RECORDED_BOX, action_margin=margin)
