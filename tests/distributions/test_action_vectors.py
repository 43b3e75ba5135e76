from __future__ import annotations

import math

import pytest
import torch

from alf_lite import nest
from alf_lite.distributions.action_vectors import BoxActions, DiscreteActions
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec

UNIT = BoundedTensorSpec((2,), torch.float32, -1, 1)
WIDE = BoundedTensorSpec((2, 1), torch.float32, [[0.0], [-5.0]], [[10.0], [-4.0]])
SCALAR = BoundedTensorSpec((), torch.float32, 0.0, 2.0)
NUMBER = BoundedTensorSpec((), torch.int64, 0, 3)
SHIFTED = BoundedTensorSpec((), torch.int32, -1, 1)
VECTOR = BoundedTensorSpec((2,), torch.int64, 0, [3, 1])
BINARY = BoundedTensorSpec((2, 2), torch.int8, 0, 1)
BOOLS = TensorSpec((3,), torch.bool)


def test_a_vector_becomes_actions_between_their_bounds():
    boxes = BoxActions({"a": UNIT, "b": WIDE, "c": SCALAR})
    assert boxes.vector_size == 5
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
    assert vector.shape == (7, boxes.vector_size)
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


@pytest.mark.parametrize(
    ("spec", "sizes"),
    [
        (NUMBER, [4]),
        (SHIFTED, [3]),
        (VECTOR, [4, 2]),
        (BINARY, [2, 2, 2, 2]),
        (BOOLS, [2, 2, 2]),
        ({"b": VECTOR, "a": SHIFTED}, [3, 4, 2]),
        ((NUMBER, BOOLS), [4, 2, 2, 2]),
    ],
)
def test_index_and_action_are_inverse(spec, sizes):
    actions = DiscreteActions(spec)
    assert actions.sizes.tolist() == sizes
    assert actions.num_components == len(sizes)
    assert actions.max_values == max(sizes)
    assert actions.total_values == sum(sizes)
    action = nest.map_structure(
        lambda s: s.sample((20,)) % 2 if s.dtype == torch.bool else s.sample((20,)),
        spec,
    )
    index = actions.to_index(action)
    assert index.shape == (20, len(sizes))
    assert index.dtype == torch.int64
    assert (index >= 0).all()
    assert (index < torch.tensor(sizes)).all()
    back = actions.to_action(index)
    nest.assert_same_structure(back, action)
    for restored, original, s in zip(
        *map(nest.flatten, (back, action, spec)), strict=True
    ):
        assert restored.dtype == s.dtype
        assert restored.shape == original.shape
        assert (restored == original).all()


def test_values_are_numbered_from_the_minimum():
    actions = DiscreteActions({"a": SHIFTED, "b": VECTOR})
    action = actions.to_action(torch.tensor([[0, 3, 1], [2, 0, 0]]))
    assert action["a"].tolist() == [-1, 1]
    assert action["b"].tolist() == [[3, 1], [0, 0]]


def test_where_all_components_are_alike_nothing_is_ruled_out():
    actions = DiscreteActions(NUMBER)
    cpu = torch.device("cpu")
    assert actions.allowed(None, cpu) is None
    mask = torch.tensor([[True, False, True, True]])
    assert actions.allowed(mask, cpu).tolist() == [[[True, False, True, True]]]


def test_values_that_a_component_does_not_have_are_ruled_out():
    actions = DiscreteActions(VECTOR)
    cpu = torch.device("cpu")
    exists = [[True, True, True, True], [True, True, False, False]]
    assert actions.allowed(None, cpu).tolist() == exists
    mask = torch.tensor([[False, True, True, True, True, False]])
    assert actions.allowed(mask, cpu).tolist() == [
        [[False, True, True, True], [True, False, False, False]]
    ]


def test_other_actions_than_discrete_ones_are_refused_by_their_path():
    with pytest.raises(ValueError, match=r"\['x'\]: expected a discrete action"):
        DiscreteActions({"x": BoundedTensorSpec((), torch.float32, -1, 1)})
    with pytest.raises(ValueError, match="expected bounds for a discrete action"):
        DiscreteActions(TensorSpec((), torch.int64))
    with pytest.raises(ValueError, match="at most 100000 discrete values"):
        DiscreteActions(BoundedTensorSpec((), torch.int64, 0, 10**6))
    with pytest.raises(ValueError, match="expected at least one TensorSpec"):
        DiscreteActions(())


def test_no_action_is_the_first_value_where_values_start_above_zero():
    actions = DiscreteActions(BoundedTensorSpec((), torch.int64, 1, 3))
    assert actions.to_index(torch.tensor([0, 1, 3])).tolist() == [[0], [0], [2]]
