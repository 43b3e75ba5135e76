from __future__ import annotations

import pytest
import torch

from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec
from alf_lite.utils.action_masks import ActionMask

MASK = BoundedTensorSpec((3,), torch.int8, 0, 1)
STATE = TensorSpec((2,))


def test_the_mask_is_taken_out_of_the_observation():
    action_mask = ActionMask({"mask": MASK, "state": STATE}, "mask", 3)
    assert action_mask.remaining_spec == {"state": STATE}
    state = torch.zeros(2, 2)
    mask = torch.tensor([[0, 1, 1], [1, 0, 0]], dtype=torch.int8)
    remaining, allowed = action_mask.split({"mask": mask, "state": state})
    assert list(remaining) == ["state"]
    assert remaining["state"] is state
    assert allowed.tolist() == [[False, True, True], [True, False, False]]


def test_a_mask_of_several_dimensions_is_flattened():
    spec = BoundedTensorSpec((2, 2), torch.int8, 0, 1)
    action_mask = ActionMask({"mask": spec, "state": STATE}, "mask", 4)
    mask = torch.tensor([[[0, 1], [1, 1]]], dtype=torch.int8)
    _, allowed = action_mask.split({"mask": mask, "state": torch.zeros(1, 2)})
    assert allowed.tolist() == [[False, True, True, True]]


def test_without_a_key_the_observation_stays_as_it_is():
    action_mask = ActionMask(STATE, None, 3)
    assert action_mask.remaining_spec == STATE
    observation = torch.zeros(1, 2)
    remaining, mask = action_mask.split(observation)
    assert remaining is observation
    assert mask is None


def test_a_mask_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="expected a dict of observations"):
        ActionMask(STATE, "mask", 3)
    with pytest.raises(ValueError, match="with the key 'legal'"):
        ActionMask({"mask": MASK, "state": STATE}, "legal", 3)
    with pytest.raises(ValueError, match="one entry for each of the 4 values"):
        ActionMask({"mask": MASK, "state": STATE}, "mask", 4)
