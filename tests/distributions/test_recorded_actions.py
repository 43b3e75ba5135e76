from __future__ import annotations

import math

import pytest
import torch

from alf_lite.distributions.action_masks import ActionMask
from alf_lite.distributions.continuous import (
    ActionBounds,
    ScaledBeta,
    SquashedNormal,
)
from alf_lite.distributions.discrete import Categorical
from alf_lite.distributions.recorded_actions import RecordedActions
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec

BOX = BoundedTensorSpec((2,), torch.float32, [-1.0, 0.0], [1.0, 10.0])
CHOICE = BoundedTensorSpec((), torch.int64, 3, 5)


def recorded(action_spec, **kwargs) -> RecordedActions:
    mask = ActionMask(TensorSpec((3,)), action_spec, None)
    return RecordedActions(action_spec, mask, **kwargs)


def test_continuous_actions_keep_a_margin_from_their_bounds():
    action = torch.tensor([[[-1.0, 12.0], [0.5, 5.0]]])  # [B, T, 2]
    clipped = recorded(BOX, margin=0.1).clip(action)
    torch.testing.assert_close(
        clipped, torch.tensor([[[-0.9, 9.5], [0.5, 5.0]]]), atol=1e-6, rtol=0
    )
    assert torch.equal(
        recorded(BOX, margin=0).clip(action),
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
    spec = {"a": CHOICE, "b": TensorSpec((), torch.bool), "c": TensorSpec((1,))}
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
    bounds = ActionBounds(BOX)
    loc = torch.zeros(1, 2, requires_grad=True)
    scale = torch.ones(1, 2, requires_grad=True)
    actions = recorded(BOX)
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
        CHOICE,
        "mask",
    )
    observation = {
        "mask": torch.tensor([[1, 1, 0], [1, 1, 0], [0, 0, 0]], dtype=torch.int8),
        "x": torch.zeros(3, 1),
    }
    logits = torch.zeros(3, 3, requires_grad=True)
    policy = mask.apply(Categorical(logits, 3), observation["mask"].bool())
    actions = RecordedActions(CHOICE, mask)
    log_prob = actions.log_prob(policy, torch.tensor([4, 5, 3]), observation)
    assert log_prob.tolist() == pytest.approx([-math.log(2), 0.0, 0.0])
    log_prob.sum().backward()
    assert logits.grad[0].tolist() == pytest.approx([-0.5, 0.5, 0.0])
    assert not logits.grad[1:].any()


@pytest.mark.parametrize("margin", [-0.1, 1.0])
def test_a_margin_that_leaves_nothing_is_an_error(margin):
    with pytest.raises(ValueError, match=r"action_margin must lie in \[0, 1\)"):
        recorded(BOX, margin=margin)
