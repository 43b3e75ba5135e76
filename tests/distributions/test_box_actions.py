from __future__ import annotations

import math

import pytest
import torch

from alf_lite import nest
from alf_lite.distributions.box_actions import BoxActions
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec

UNIT = BoundedTensorSpec((2,), torch.float32, -1, 1)
WIDE = BoundedTensorSpec((2, 1), torch.float32, [[0.0], [-5.0]], [[10.0], [-4.0]])
SCALAR = BoundedTensorSpec((), torch.float32, 0.0, 2.0)


def test_a_vector_becomes_actions_between_their_bounds():
    boxes = BoxActions({"a": UNIT, "b": WIDE, "c": SCALAR})
    assert boxes.numel == 5
    vector = torch.tensor([[-1.0, 0.5, -1.0, 1.0, 0.0]])
    action = boxes.to_action(vector)
    assert action["a"].tolist() == [[-1.0, 0.5]]
    assert action["b"].tolist() == [[[0.0], [-4.0]]]
    assert action["c"].tolist() == [1.0]
    torch.testing.assert_close(boxes.to_vector(action), vector)


@pytest.mark.parametrize("spec", [UNIT, WIDE, SCALAR, (SCALAR, WIDE)])
def test_vectors_and_actions_are_inverse(spec):
    boxes = BoxActions(spec)
    action = nest.map_structure(lambda s: s.sample((7,)), spec)
    vector = boxes.to_vector(action)
    assert vector.shape == (7, boxes.numel)
    assert vector.abs().max() <= 1
    back = boxes.to_action(vector)
    for restored, original in zip(
        nest.flatten(back), nest.flatten(action), strict=True
    ):
        torch.testing.assert_close(restored, original, atol=1e-5, rtol=1e-5)


def test_the_gradient_passes_through():
    boxes = BoxActions(SCALAR)
    vector = torch.zeros(1, 1, requires_grad=True)
    boxes.to_action(vector).sum().backward()
    assert vector.grad.item() == 1.0


def test_the_scale_is_the_volume_over_that_of_the_unit_box():
    assert BoxActions(UNIT).log_scale == pytest.approx(0.0)
    # Half widths 5 and ½, and 1.
    assert BoxActions((WIDE, SCALAR)).log_scale == pytest.approx(math.log(2.5))


def test_other_actions_are_refused_by_their_path():
    with pytest.raises(ValueError, match=r"\['x'\]: expected a continuous action"):
        BoxActions({"x": BoundedTensorSpec((), torch.int64, 0, 1)})
    with pytest.raises(ValueError, match="expected finite bounds"):
        BoxActions(TensorSpec((2,)))
    with pytest.raises(ValueError, match="expected finite bounds"):
        BoxActions(BoundedTensorSpec((2,), torch.float32, 0, float("inf")))
    with pytest.raises(ValueError, match="at least one TensorSpec"):
        BoxActions(())
